"""Slow, obvious float64 re-implementations that the fast code is compared with.

Nothing in here imports `backplay`: each oracle is written from the paper and the specification alone.
"""
