"""Data sets: images with masks of the object, by the layouts in which they are published."""

from backplay.bench.data.entries import SPLITS, DataError, Entry
from backplay.bench.data.sets import KINDS, DataSet, open_data

__all__ = ["KINDS", "SPLITS", "DataError", "DataSet", "Entry", "open_data"]
