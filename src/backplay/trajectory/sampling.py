"""`play.sample`: trajectories drawn from the walk, node by node, all at once (S32)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.entry import at as here
from backplay.entry import entries
from backplay.errors import InputError
from backplay.kernels.draws import CEMETERY, CONSTANT, draw
from backplay.kernels.kernel import WALK_DIFFERENCE
from backplay.network import Node
from backplay.network.layout import PLAIN
from backplay.network.nodes import Input
from backplay.pictured import Pictured

if TYPE_CHECKING:
    from backplay.games.play import Play

INPUT = 0  # how a trajectory ends: at an input element, in † (CEMETERY) or in a constant (CONSTANT)


@entries
@dataclass
class Trajectories(Pictured):
    """`n` trajectories for each sample of a play. Tensors are (B, n).

    `states[name]` is the element of that node that each trajectory visits, as an index into the sample's flattened
    output, −1 where it does not come there; `players[name]` whose turn it is (±1, 0: not there), `streams[name]` the
    stream taken at nodes that have streams (±1, 0: none). `ends` is 0 at the input, −1 in †, −2 in constants.
    """

    play: Play
    n: int
    ends: Tensor
    states: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    players: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    streams: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        alive = float((self.ends == INPUT).double().mean())
        return f"Trajectories({self.n} for each of {len(self.ends)} samples, {alive:.1%} reach the input)"

    def frequencies(self, name: str | Node = "input") -> Tensor:
        """Share of the trajectories that visit each element of a node; what `play.marginal` predicts."""
        node = self._node(name)
        value = self.play.values[node]
        rows = node.layout.rows(_positions(node, value.shape).to(value.device))
        visits = torch.zeros(rows.shape, dtype=torch.float64, device=value.device)
        if node.name in self.states:
            states = self.states[node.name]
            visits.scatter_add_(1, states.clamp(min=0), (states >= 0).double())
        found = torch.zeros(value.numel(), dtype=torch.float64, device=value.device)
        found[_owners(node, value.shape).to(value.device).flatten()] = visits.flatten() / self.n
        return found.view(value.shape)

    def check(self, name: str | Node = "input", least: float = 5.0) -> Tensor:
        """(B,) p-values of the χ² test of the visits to a node against its marginal.

        Elements that expect fewer than `least` visits are taken together with their neighbours.
        """
        node = self._node(name)
        seen = node.layout.rows(self.frequencies(node)) * self.n
        expected = node.layout.rows(self.play.marginal(node)).double() * self.n
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


def sample(play: Play, n: int, seed: int) -> Trajectories:
    """Every node once, in the order of the walk; all trajectories that stand there move together."""
    batch, device = len(play.value), play.value.device
    generator = torch.Generator(device=device).manual_seed(seed)
    root = play.root(WALK_DIFFERENCE)
    start = _first(root.flatten(1), n, generator)
    at: dict[Node, list[tuple[Tensor, Tensor, Tensor]]] = {}
    walks = torch.arange(batch * n, device=device)
    at[play.network.output] = [(walks, start, root.flatten()[start].sign().long())]
    found = Trajectories(play, n, torch.full((batch * n,), INPUT, device=device))
    for node in reversed(play.network.nodes):
        if node in at:
            with here(node):
                _leave(play, node, at, found, generator)
    found.ends = found.ends.view(batch, n)
    return found


def _first(root: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(B · n) the logit, by its place in the whole output, at which each trajectory starts (S26b)."""
    chance = root.abs()
    if bool((chance.ne(0).sum(1) == 1).all()):  # one logit a sample: nothing to draw
        column = chance.argmax(1, keepdim=True).expand(-1, n)
    else:
        steps = chance.double().cumsum(1)
        drawn = torch.rand(len(root), n, generator=generator, dtype=torch.float64, device=root.device) * steps[:, -1:]
        last = chance.ne(0).long().cumsum(1).argmax(1, keepdim=True)  # the last logit that has a chance
        column = torch.minimum(torch.searchsorted(steps, drawn, right=True), last)
    return (column + torch.arange(len(root), device=root.device)[:, None] * root.shape[1]).flatten()


def _leave(
    play: Play,
    node: Node,
    at: dict[Node, list[tuple[Tensor, Tensor, Tensor]]],
    found: Trajectories,
    generator: torch.Generator,
) -> None:
    """Write down who stands at a node, and let them go on."""
    walks, states, players = (torch.cat(parts) for parts in zip(*at.pop(node), strict=True))
    shape = play.values[node].shape
    owners = _positions(node, shape).to(states.device).flatten()
    found.states[node.name] = _written(found, walks, owners[states], -1)
    found.players[node.name] = _written(found, walks, players, 0)
    if isinstance(node, Input) or not len(walks):
        return
    kernel = play.kernel(node)
    step = draw(kernel, node, states, shape, generator)
    if bool((step.stream != 0).any()):
        found.streams[node.name] = _written(found, walks, step.stream, 0)
    for end in (CEMETERY, CONSTANT):
        found.ends[walks[step.carrier == end]] = end
    for k, operand in enumerate(kernel.carriers or node.carriers):
        here = step.carrier == k
        at.setdefault(operand, []).append((walks[here], step.element[here], (players * step.turn)[here]))


def _written(found: Trajectories, walks: Tensor, values: Tensor, absent: int) -> Tensor:
    """A (B, n) table with the given values, `absent` for everybody else."""
    table = torch.full((found.ends.numel(),), absent, dtype=torch.long, device=walks.device)
    table[walks] = values
    return table.view(-1, found.n)


def _positions(node: Node, shape: torch.Size) -> Tensor:
    """For each element of a node's tensor, its index within its own sample."""
    index = torch.arange(shape.numel()).view(shape)
    if node.layout == PLAIN:
        return index % (shape.numel() // shape[0])
    owners = node.layout.rows(index)
    flat = torch.empty(shape.numel(), dtype=torch.long)
    flat[owners.flatten()] = torch.arange(owners.shape[1]).repeat(len(owners))
    return flat.view(shape)


def _owners(node: Node, shape: torch.Size) -> Tensor:
    """(B, elements of a sample) flat index of each element."""
    return node.layout.rows(torch.arange(shape.numel()).view(shape))


def _p_value(seen: Tensor, expected: Tensor, n: int, least: float) -> Tensor:
    """Upper tail of χ². Rare elements share bins with their neighbours; walks that do not come here have one too."""
    often = expected >= least
    shared = (expected[~often].cumsum(0) / (4 * least)).long()
    bins, counts = (_binned(v, often, shared, n) for v in (expected, seen))
    rest = bins < least  # what is left over is no bin of its own: it would divide by rounding errors
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
