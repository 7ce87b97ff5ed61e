"""Text: tokens in, token maps out."""

from backplay.text.explaining import explain
from backplay.text.maps import TokenMap, TokenMaps

__all__ = ["TokenMap", "TokenMaps", "explain"]
