"""Randomisation experiments: does an explanation depend on what a network has learned, and does its calculation?"""

from backplay.sanity.baselines import InputPair, NoiseLevel, Round, double_random, input_noise, separability
from backplay.sanity.cascade import Step, cascade
from backplay.sanity.distances import NetworkDistances, network_distances
from backplay.sanity.randomise import Stage, layers, randomise
from backplay.sanity.similarity import rank_correlations, readouts_of
from backplay.sanity.walks import Compared

__all__ = [
    "Compared",
    "InputPair",
    "NetworkDistances",
    "NoiseLevel",
    "Round",
    "Stage",
    "Step",
    "cascade",
    "double_random",
    "input_noise",
    "layers",
    "network_distances",
    "randomise",
    "rank_correlations",
    "readouts_of",
    "separability",
]
