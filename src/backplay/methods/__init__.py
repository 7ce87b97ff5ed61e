"""Methods: every explanation by name, the games and their rivals."""

from backplay.methods import games
from backplay.methods.registry import MethodInfo, explain, methods

FAMILIES = (games,)  # importing a family registers its methods

__all__ = ["FAMILIES", "MethodInfo", "explain", "methods"]
