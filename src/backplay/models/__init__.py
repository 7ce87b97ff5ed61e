"""Networks by name, each with its own preprocessing and class names; nothing is ever downloaded."""

from backplay.models.loaded import Loaded
from backplay.models.sources import SOURCES, Source, load
from backplay.models.weights import RANDOM

__all__ = ["RANDOM", "SOURCES", "Loaded", "Source", "load"]
