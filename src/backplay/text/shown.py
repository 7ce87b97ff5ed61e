"""What token maps and matrices of generation have in common: their tokens, and how they are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from backplay.text import terminal
from backplay.text.tokens import Tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown(ABC):
    """Scores of the tokens of a text, that are shown as HTML, as a figure, or on a terminal."""

    source: Tokens
    scores: Tensor
    method: str
    params: Mapping[str, Any]  # those that were given

    @property
    def tokens(self) -> list[str]:
        """As the vocabulary spells them: `##ing`, `Ġworld`."""
        return list(self.source.tokens)

    @property
    def pieces(self) -> list[str]:
        """What each token stands for in the text, without spaces; the name of a special token."""
        return list(self.source.pieces)

    @property
    def way(self) -> str:
        """The method and the parameters that were given: `rg tau=0.5`."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.params.items())])

    @property
    @abstractmethod
    def scale(self) -> float:
        """The score that has the darkest colour."""

    @abstractmethod
    def caption(self) -> str:
        """What was explained and how, in a line."""

    @abstractmethod
    def html(self) -> str:
        """A piece of HTML that needs nothing else."""

    @abstractmethod
    def lines(self, coloured: bool) -> str:
        """The same for a terminal, with colours or without."""

    def plot(self) -> Figure:
        """The same as a matplotlib figure: a bar for each token, or the matrix of a generation."""
        from backplay.view.tokens import tokens

        return tokens(self)

    def show(self) -> None:
        """The same where one looks: in a notebook as HTML, else on the terminal."""
        terminal.show(self.html(), self.lines(terminal.colourful()))

    def __str__(self) -> str:
        return self.lines(coloured=False)

    def _repr_html_(self) -> str:
        return self.html()
