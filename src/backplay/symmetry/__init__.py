"""What leaves a network's function as it is: channels that change places or size, and distances that do not see it."""

from backplay.symmetry import nearest, transforms

__all__ = ["nearest", "transforms"]
