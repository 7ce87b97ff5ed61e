"""A case: one network at one size, measured at once and stored at once."""

from collections.abc import Callable
from dataclasses import dataclass

from rounds import Pace, Row, Say


@dataclass(frozen=True)
class Case:
    """What the suite runs, skips, repeats and stores as a whole."""

    section: str
    network: str
    axis: str  # what `size` counts: batch, side, layers, tokens
    size: int
    run: Callable[[Pace, Say], list[Row]]

    @property
    def key(self) -> str:
        return f"{self.section}: {self.network}, {self.axis} {self.size}"
