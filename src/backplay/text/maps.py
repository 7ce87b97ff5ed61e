"""Token maps: what every token of a text contributes to one logit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from backplay.text import html, terminal
from backplay.text.shown import Shown
from backplay.text.targets import Goal
from backplay.text.tokens import Tokens, readable


@dataclass(frozen=True, eq=False, repr=False)
class TokenMap(Shown):
    """The tokens of a text, a score for each, and what was explained."""

    source: Tokens
    scores: Tensor  # (T,) the map of the embeddings, summed over their features; of a gradient its length there
    goal: Goal
    method: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])  # those that were given
    arrives: float | None = None  # the share of the walk that arrives at the embeddings; None where nobody walks

    @property
    def text(self) -> str:
        """The text itself."""
        return self.source.text

    @property
    def special(self) -> list[bool]:
        """Which tokens are special: put there by the tokenizer, or such as [MASK]."""
        return list(self.source.special)

    @property
    def value(self) -> float:
        """The logit that is explained, or the difference of two."""
        return self.goal.value

    @property
    def target(self) -> str:
        """The name of the class or token whose logit is explained."""
        return self.goal.name

    @property
    def against(self) -> str | None:
        """The name of the class or token whose logit is subtracted; None where none is."""
        return None if self.goal.against is None else self.goal.against_name

    @property
    def position(self) -> int | None:
        """The token at which the logit stands; None where it is one of the whole text."""
        return self.goal.position

    @property
    def scale(self) -> float:
        """The largest score in size among tokens that are not special; of the others where it is 0."""
        plain = self.scores[~torch.tensor(self.special)].abs()
        largest = float(plain.max()) if len(plain) else 0.0
        return largest or float(self.scores.abs().max()) or 1.0

    def words(self) -> TokenMap:
        """The same map by words: the scores of a word's tokens summed."""
        joined = self.source.joined()
        sums = self.scores.new_zeros(len(joined)).index_add(0, torch.tensor(self.source.words), self.scores)
        position = None if self.position is None else self.source.words[self.position]
        return replace(self, source=joined, scores=sums, goal=replace(self.goal, position=position))

    def caption(self) -> str:
        """What was explained and how, in a line."""
        where = "" if self.position is None else f" at token {self.position} ({self.source.pieces[self.position]})"
        walk = "" if self.arrives is None else f" · {100 * self.arrives:.2g} % of the walk arrives"
        rather = "" if self.against is None else f" rather than {readable(self.against)}"
        what = "logit" if self.against is None else "difference of logits"
        return f"{readable(self.target)}{rather}{where} · {what} {self.value:.4g} · {self.way}{walk}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for JSON."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "pieces": self.pieces,
            "special": self.special,
            "scores": self.scores.tolist(),
            "target": self.target,
            "index": self.goal.index,
            "against": self.against,
            "position": self.position,
            "value": self.value,
            "method": self.method,
            "params": dict(self.params),
            "arrives": self.arrives,
        }

    def html(self) -> str:
        """A piece of HTML that needs nothing else: the text, each token on the colour of its score."""
        return html.text_map(self)

    def lines(self, coloured: bool) -> str:
        return terminal.text_map(self, coloured)

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 40 else f"{self.text[:39]}…"
        return f"TokenMap({text!r}, {len(self.source)} tokens; {self.caption()})"


class TokenMaps(list[TokenMap]):
    """The maps of several texts: a list that a notebook shows."""

    def words(self) -> TokenMaps:
        """The same maps by words."""
        return TokenMaps(one.words() for one in self)

    def html(self) -> str:
        """All maps, one below the other."""
        return "\n".join(one.html() for one in self)

    def show(self) -> None:
        """All maps, where one looks."""
        terminal.show(self.html(), "\n\n".join(one.lines(terminal.colourful()) for one in self))

    def _repr_html_(self) -> str:
        return self.html()
