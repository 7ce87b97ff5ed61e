"""Randomisation experiments: does an explanation depend on what a network has learned?"""

from backplay.sanity.cascade import Step, cascade
from backplay.sanity.randomise import Layer, layers, randomise

__all__ = ["Layer", "Step", "cascade", "layers", "randomise"]
