"""Timing in interleaved rounds: a busy machine then slows all calls alike, and their ratios stay."""

import statistics
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Call = Callable[[], object]
Say = Callable[[str], None]  # progress, for a person
MOST = 15  # rounds; more tell nothing new


@dataclass(frozen=True)
class Pace:
    """How long a row is measured: until its calls have taken `seconds` together, but `least` times where that is cheap.

    A call of more than half of `seconds` is made three times at least, a longer one twice, one of twice `seconds` once.
    """

    seconds: float = 1.5
    least: int = 5

    def goes_on(self, times: list[float], least: int = 1) -> bool:
        """Whether a row with these times is called once more; `least` is the row's own wish."""
        if not times:
            return True
        longest = max(times) / self.seconds if self.seconds else MOST
        usual = self.least if longest < 0.5 else 3 if longest < 1 else 2 if longest < 2 else 1
        wanted = max(usual, min(least, self.least))
        return len(times) < wanted or (sum(times) < self.seconds and len(times) < MOST)


@dataclass
class Row:
    """What one call took. A call that does not run has no times, and says why."""

    what: str
    times: list[float] = field(default_factory=list[float])  # seconds, one for each round
    first: float | None = None  # seconds of the call before the rounds, which prepares what later ones find ready
    ratio: float | None = None  # of the median to that of the reference, in the rounds that both took part in
    why: str | None = None  # it does not run, or what its figure leaves out
    facts: dict[str, float] = field(default_factory=dict[str, float])  # counts and sizes beside the time

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.times) if self.times else None


@dataclass(frozen=True)
class Timed:
    """A call to time, what to call before the rounds, and how many units of the reference it is weighed against."""

    call: Call
    warm: Call | None = None  # None: the call itself
    parts: int = 1  # equal parts that one call does, each stated alone: draws of an average
    least: int = 1  # rounds that it takes part in, however long it takes: for what has a bar to meet
    against: int = 1  # references that stand for one call: a distance is weighed against a pair of gradients
    why: str | None = None  # what a reader has to know of its figure


def seconds(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(calls: Mapping[str, Timed], reference: str, pace: Pace, say: Say) -> list[Row]:
    """A row for each call, in their order; `reference` names the one that the others are weighed against.

    Every round makes each call that still wants one, and always the reference. A call that raises is left out.
    """
    rows = {name: Row(name, why=timed.why) for name, timed in calls.items()}
    running: dict[str, Timed] = {}
    for name, timed in calls.items():
        say(f"{name}, first call")
        try:
            rows[name].first = seconds(timed.warm or timed.call)
            running[name] = timed
        except Exception as error:  # whatever a library cannot do becomes a row that says so
            if name == reference:
                raise
            rows[name].why = in_words(error)

    def wants(name: str) -> bool:
        timed = running[name]
        return pace.goes_on([t * timed.parts for t in rows[name].times], timed.least)

    taken: dict[str, list[int]] = {name: [] for name in running}  # the rounds that each took part in
    for k in range(MOST):
        chosen = [name for name in running if name != reference and wants(name)]
        if not chosen and not (wants(reference) and k < pace.least):
            break
        say(f"round {k + 1}, {len(chosen)} of {len(calls) - 1}")
        for name in running:
            if name == reference or name in chosen:
                rows[name].times.append(seconds(running[name].call) / running[name].parts)
                taken[name].append(k)
    beside = rows[reference].times
    for name, timed in running.items():
        one = statistics.median(beside[k] for k in taken[name])
        rows[name].ratio = statistics.median(rows[name].times) / (one * timed.against)
    return list(rows.values())


def in_words(error: BaseException) -> str:
    """An error in one short line."""
    said = textwrap.shorten(str(error).strip().split("\n")[0], 160, placeholder=" …")
    return f"does not run: {said} ({type(error).__name__})"
