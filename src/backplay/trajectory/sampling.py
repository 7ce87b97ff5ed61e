"""`play.sample`: trajectories drawn from the walk, node by node: any of them, or only those that arrive (S32)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from backplay.entry import entries
from backplay.errors import InputError, list_words
from backplay.kernels.draws import CEMETERY, CONSTANT, Standing
from backplay.kernels.kernel import WALK, WALK_DIFFERENCE, Kernel
from backplay.network import Node
from backplay.network.layout import PLAIN
from backplay.network.mass import Mass
from backplay.pictured import Pictured
from backplay.trajectory.passes import BackwardPass, arrived, crossing, no_mass, run
from backplay.trajectory.survival import conditioned, log2_survival, root_given_survival, survival

if TYPE_CHECKING:
    from backplay.games.play import Play

INPUT = 0  # how a trajectory ends: at an input element, in † (CEMETERY) or in a constant (CONSTANT)


@entries
@dataclass
class Trajectories(Pictured):
    """`n` trajectories for each sample of a play (def:trajectory-distribution, eq:path-measure). Tensors are (B, n).

    `states[name]` is the element of that node that each trajectory visits, as an index into the sample's flattened
    output, −1 where it does not come there; `players[name]` whose turn it is (±1, 0: not there), `streams[name]` the
    stream taken at nodes that have streams (±1, 0: none). `ends` is 0 at the input, −1 in †, −2 in constants. If
    `arriving`, only trajectories that reach the input were drawn, so that `ends` is 0 throughout.
    """

    play: Play
    n: int
    ends: Tensor
    arriving: bool = False
    states: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    players: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    streams: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        drawn = f"{self.n} for each of {len(self.ends)} samples"
        if self.arriving:
            return f"Trajectories({drawn}, all reach the input, as {float(self.share.amin()):.1e} of all walks do)"
        return f"Trajectories({drawn}, {float((self.ends == INPUT).double().mean()):.1%} reach the input)"

    @property
    def share(self) -> Tensor:
        """(B,) the share of all walks that reach the input, drawn or not: `Z` (eq:survival-mass)."""
        return self.log_share.exp()

    @property
    def log_share(self) -> Tensor:
        """(B,) its natural logarithm, right even where the share is below any float."""
        mass = arrived(self.play.passed(WALK), self.play)
        return mass.layout.sum(mass.value).log() + mass.log_scale

    def expected(self, name: str | Node = "input") -> Tensor:
        """What `frequencies` tend to, float64: `play.marginal`, or if they arrive `α h / Z` (eq:conditioned-alpha)."""
        node = self._node(name)
        if not self.arriving:
            return self.play.mass(node, WALK).double().plain()
        mass = crossing(self.play, node, WALK, self._survival) or no_mass(self.play, node)
        if node in self._survival:
            here, h = self.play.visited()[node], self._survival[node]
            mass = mass.plus(Mass(here.value * h.value, here.exponent + h.exponent, node.layout))
        return Mass(mass.value.double(), mass.exponent - self.log_share / math.log(2), node.layout).plain()

    @cached_property
    def _survival(self) -> dict[Node, Mass]:
        return survival(self.play)

    def frequencies(self, name: str | Node = "input") -> Tensor:
        """Share of the trajectories that visit each element of a node; `expected` is what they tend to."""
        node = self._node(name)
        value = self.play.solved[node]
        rows = node.layout.rows(_positions(node, value.shape).to(value.device))
        visits = torch.zeros(rows.shape, dtype=torch.float64, device=value.device)
        if node.name in self.states:
            states = self.states[node.name]
            visits.scatter_add_(1, states.clamp(min=0), (states >= 0).double())
        shares = torch.zeros(value.numel(), dtype=torch.float64, device=value.device)
        shares[_elements(node, value.shape).to(value.device).flatten()] = visits.flatten() / self.n
        return shares.view(value.shape)

    def check(self, name: str | Node = "input", least: float = 5.0) -> Tensor:
        """(B,) p-values of the χ² test of the visits to a node against what is expected.

        Elements that expect fewer than `least` visits are taken together with their neighbours.
        """
        node = self._node(name)
        seen = node.layout.rows(self.frequencies(node)) * self.n
        expected = node.layout.rows(self.expected(node)) * self.n
        return torch.stack([_p_value(s, e, self.n, least) for s, e in zip(seen, expected, strict=True)])

    def _node(self, name: str | Node) -> Node:
        """A module or node; where a module is called several times, its first node still has a name of its own."""
        try:
            return self.play.network.find(name)
        except InputError:
            exact = [n for n in self.play.network.nodes if n.name == name and name in self.states]
            if exact:
                return exact[0]
            raise


Drawn = TypeVar("Drawn", bound=Trajectories)
Walkers = list[tuple[Tensor, Tensor, Tensor]]  # groups of walks: their numbers, flat states and players, each (walks,)


class SamplingPass(BackwardPass[Walkers]):
    """Walks on their way back: all that stand at a node move together."""

    def __init__(
        self,
        drawn: Trajectories,
        start: Walkers,
        kernel: Callable[[Node], Kernel],
        generator: torch.Generator,
    ) -> None:
        self.play = drawn.play
        super().__init__(self.play.network, {self.play.start: start}, keep=False)
        self.drawn, self.kernel, self.generator = drawn, kernel, generator

    def move(self, node: Node, here: Walkers) -> Iterator[tuple[Node, Walkers]]:
        walks, states, players = self.write_down(node, here)
        if not len(walks):
            return
        kernel = self.kernel(node)
        step = kernel.draw(Standing(states, self.play.solved[node].shape, self.generator))
        if bool((step.stream != 0).any()):
            self.drawn.streams[node.name] = self._table(walks, step.stream, 0)
        on = step.between >= 0
        for crossed, places in kernel.crossings(step.between[on]):
            self.write_down(crossed, [(walks[on], places, (players * step.turn)[on])])
        for end in (CEMETERY, CONSTANT):
            self.drawn.ends.view(-1)[walks[step.carrier == end]] = end
        for k, operand in enumerate(kernel.carriers or node.carriers):
            on = step.carrier == k
            yield operand, [(walks[on], step.element[on], (players * step.turn)[on])]

    def add(self, one: Walkers, other: Walkers) -> Walkers:
        return one + other

    def write_down(self, node: Node, here: Walkers) -> tuple[Tensor, Tensor, Tensor]:
        """Who stands at a node, as one group; who has crossed it before is written there already."""
        walks, states, players = (torch.cat(parts) for parts in zip(*here, strict=True))
        places = _positions(node, self.play.solved[node].shape).to(states.device).flatten()
        drawn, name = self.drawn, node.name
        drawn.states[name] = self._table(walks, places[states], -1, drawn.states.get(name))
        drawn.players[name] = self._table(walks, players, 0, drawn.players.get(name))
        return walks, states, players

    def _table(self, walks: Tensor, values: Tensor, absent: int, before: Tensor | None = None) -> Tensor:
        """(B, n) with the given values; for everybody else what stood there `before`, or `absent`."""
        shape = self.drawn.ends.shape
        table = torch.full(shape, absent, dtype=torch.long, device=walks.device) if before is None else before
        table = table.flatten()
        table[walks] = values
        return table.view(-1, self.drawn.n)


def sample(play: Play, n: int, seed: int, arriving: bool = False) -> Trajectories:
    """`n` trajectories of each sample of a play; if `arriving`, of the walk given that it reaches the input.

    That walk has kernels of its own (eq:conditioned-kernel, eq:conditioned-path-measure): every move is drawn in
    proportion to its probability times that of arriving from there, so that no trajectory is drawn in vain however few
    arrive.
    """
    root, kernel = play.root(WALK_DIFFERENCE), play.kernel
    if arriving:
        h = survival(play)
        at_root = h[play.start]
        _check_arrival(log2_survival(play, at_root))
        root = root_given_survival(play, at_root).copysign(root)
        kernel = lambda node: conditioned(node, play.kernel(node), h)  # noqa: E731
    return draw(Trajectories(play, n, nowhere(play, n), arriving), root, kernel, seed)


def nowhere(play: Play, n: int) -> Tensor:
    """(B, n) the ends of trajectories that are still to be drawn."""
    return torch.full((len(play.value), n), INPUT, device=play.value.device)


def draw(drawn: Drawn, root: Tensor, kernel: Callable[[Node], Kernel], seed: int) -> Drawn:
    """Fill trajectories: they start by `root`, signed by player, and move by the kernels."""
    play, n, device = drawn.play, drawn.n, root.device
    generator = torch.Generator(device=device).manual_seed(seed)
    places = _elements(play.start, root.shape).to(device).flatten()  # of each sample's elements, one after the other
    start = places[_first(play.start.layout.rows(root), n, generator)]
    walks = torch.arange(len(start), device=device)
    sampling = SamplingPass(drawn, [(walks, start, root.flatten()[start].sign().long())], kernel, generator)
    run(sampling)
    for node in play.network.inputs:
        if node in sampling.standing:
            sampling.write_down(node, sampling.standing[node])
    return drawn


def _check_arrival(log_share: Tensor) -> None:
    never = (log_share == -math.inf).nonzero()[:, 0].tolist()
    if never:
        raise InputError(
            f"no walk of samples {list_words(never)} reaches the input, so arriving=True has none to "
            "draw;\nplay.health() says where they end, play.sample(n) draws them all."
        )


def _first(root: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(B · n) the logit or neuron, by its place in all rows, at which each trajectory starts (S26b)."""
    chance = root.abs()
    if bool((chance.ne(0).sum(1) == 1).all()):  # one logit a sample: nothing to draw
        column = chance.argmax(1, keepdim=True).expand(-1, n)
    else:
        steps = chance.double().cumsum(1)
        drawn = torch.rand(len(root), n, generator=generator, dtype=torch.float64, device=root.device) * steps[:, -1:]
        last = chance.ne(0).long().cumsum(1).argmax(1, keepdim=True)  # the last logit that has a chance
        column = torch.minimum(torch.searchsorted(steps, drawn, right=True), last)
    return (column + torch.arange(len(root), device=root.device)[:, None] * root.shape[1]).flatten()


def _positions(node: Node, shape: torch.Size) -> Tensor:
    """For each element of a node's tensor, its index within its own sample."""
    index = torch.arange(shape.numel()).view(shape)
    if node.layout == PLAIN:
        return index % (shape.numel() // shape[0])
    elements = node.layout.rows(index)
    flat = torch.empty(shape.numel(), dtype=torch.long)
    flat[elements.flatten()] = torch.arange(elements.shape[1]).repeat(len(elements))
    return flat.view(shape)


def _elements(node: Node, shape: torch.Size) -> Tensor:
    """(B, elements of a sample) which elements of a node's tensor are a sample's, by their flat index in it."""
    return node.layout.rows(torch.arange(shape.numel()).view(shape))


def _p_value(seen: Tensor, expected: Tensor, n: int, least: float) -> Tensor:
    """Upper tail of χ². Rare elements share bins with their neighbours; walks that do not come here have one too."""
    often = expected >= least
    shared = (expected[~often].cumsum(0) / (4 * least)).long()
    bins, counts = (_binned(v, often, shared, n) for v in (expected, seen))
    rest = bins < least  # small bins are joined: their expected counts, which χ² divides by, may be rounding errors
    bins, counts = (torch.cat([v[~rest], v[rest].sum()[None]]) for v in (bins, counts))
    if bins[-1] < least:
        bins, counts = bins[:-1], counts[:-1]
    if len(bins) < 2:
        return torch.ones((), dtype=torch.float64)
    statistic = ((counts - bins).square() / bins).sum().cpu()
    return torch.special.gammaincc(torch.as_tensor((len(bins) - 1) / 2, dtype=torch.float64), statistic / 2)


def _binned(visits: Tensor, often: Tensor, shared: Tensor, n: int) -> Tensor:
    rare = torch.zeros(int(shared[-1]) + 1 if len(shared) else 0, dtype=torch.float64, device=visits.device)
    rare.index_add_(0, shared, visits[~often])
    return torch.cat([visits[often], rare, (n - visits.sum()).clamp(min=0)[None]])
