"""Methods: every explanation by name, the games and their rivals."""

from backplay.methods import cam, games, gradients, perturbation
from backplay.methods.registry import MethodInfo, explain, methods

FAMILIES = (games, gradients, cam, perturbation)  # importing a family registers its methods

__all__ = ["FAMILIES", "MethodInfo", "explain", "methods"]
