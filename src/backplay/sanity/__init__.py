"""Randomisation experiments: does an explanation depend on what a network has learned?"""

from backplay.sanity.cascade import Step, cascade
from backplay.sanity.randomise import Stage, layers, randomise

__all__ = ["Stage", "Step", "cascade", "layers", "randomise"]
