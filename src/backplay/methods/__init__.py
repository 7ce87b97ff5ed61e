"""Methods: every explanation by name, the games and their rivals."""

from backplay.methods import attention, cam, games, gradients, perturbation, relevance
from backplay.methods.registry import MethodInfo, explain, methods

FAMILIES = (games, gradients, relevance, cam, attention, perturbation)  # importing a family registers its methods

__all__ = ["FAMILIES", "MethodInfo", "explain", "methods"]
