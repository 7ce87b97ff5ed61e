"""Text: tokens in, token maps out."""

from backplay.text.explaining import explain
from backplay.text.generation import GenerationMap, generation
from backplay.text.maps import TokenMap, TokenMaps

__all__ = ["GenerationMap", "TokenMap", "TokenMaps", "explain", "generation"]
