"""Timing in interleaved rounds: a busy machine then slows all calls alike."""

import statistics
import time
from collections.abc import Callable, Mapping


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def medians(calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """The median time of each call over `repeat` rounds."""
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeat)]
    return {name: statistics.median(times[name] for times in rounds) for name in calls}
