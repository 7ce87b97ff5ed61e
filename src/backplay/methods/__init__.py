"""Methods: every explanation by name, the games and their rivals."""

from backplay.methods import attention, cam, composites, games, gradients, perturbation, relevance
from backplay.methods.registry import Explainer, MethodInfo, explain, methods

REGISTERED = (
    games,
    gradients,
    relevance,
    composites,
    cam,
    attention,
    perturbation,
)  # importing a module registers its methods

__all__ = ["REGISTERED", "Explainer", "MethodInfo", "explain", "methods"]
