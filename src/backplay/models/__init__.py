"""Networks by name, each with its own preprocessing and class names; nothing is ever downloaded."""

from backplay.models.checkpoints import RANDOM
from backplay.models.loaded import Loaded
from backplay.models.sources import SOURCES, Source, load
from backplay.models.texts import LoadedText, load_text, reads_text

__all__ = ["RANDOM", "SOURCES", "Loaded", "LoadedText", "Source", "load", "load_text", "reads_text"]
