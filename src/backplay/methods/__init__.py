"""Methods: every explanation by name, the games and their rivals."""

from backplay.methods import attention, games, relevance
from backplay.methods.registry import MethodInfo, explain, methods

FAMILIES = (games, relevance, attention)  # importing a family registers its methods

__all__ = ["FAMILIES", "MethodInfo", "explain", "methods"]
