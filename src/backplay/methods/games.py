"""The games as methods: SG, RG, Excitation Backprop, and games averaged over moved images."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from backplay.errors import NEVER_WALKED, InputError
from backplay.games import Play, Reynolds, RoutingGame, StoppingGame
from backplay.games.modes import RoutingModes, StoppingModes
from backplay.games.reynolds import AVERAGE
from backplay.kernels.kernel import DIFFERENCE
from backplay.methods.registry import method
from backplay.methods.subject import Subject
from backplay.network import Node
from backplay.network.nodes import Input

PAPER = "Playing the network backward, tab:main-search-grid"

_RISKS, _VARIANCES = (-5.0, -2.0, -1.0, -0.3, 0.0), (1.0, 2.0, 5.0, 10.0)


def _stopping_grid() -> tuple[dict[str, Any], ...]:
    risky = [
        {"risk": r, "input_variance": v, "gate": gate}
        for r, v, gate in product(_RISKS, _VARIANCES, ("exact", "noisy"))
        if r != 0
    ]
    return ({}, {"gate": "noisy"}, *risky)  # without risk the variance changes nothing


def _routing_grid() -> tuple[dict[str, Any], ...]:
    taus, epsilons = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.1, 0.25, 0.5, 1.0)
    grid: list[dict[str, Any]] = []
    for tau, epsilon, risk, oracle in product(taus, epsilons, _RISKS, (-50.0, -10.0, -5.0, -2.0, -1.0, 0.0)):
        plain = {"tau": tau, "epsilon": epsilon, "risk": risk, "attention_risk": oracle}
        certain = risk == 0 and oracle == 0  # then the variance changes nothing
        grid += [plain] if certain else [plain | {"input_variance": v} for v in _VARIANCES]
    return tuple(grid)


def maps_of(subject: Subject, game: RoutingGame | StoppingGame) -> list[Tensor]:
    """The game's map of each explained input, or that of a layer."""
    if subject.layer is not None:
        return [_at_layer(subject, subject.layer, game)]
    return Play(game, subject.network, subject.inputs, subject.target, keep=False).maps()


def _at_layer(subject: Subject, layer: Node, game: RoutingGame | StoppingGame) -> Tensor:
    """`Γ₊ − Γ₋` at a node, in the units of the map: of the logit in the Routing Game."""
    if layer not in subject.network.reached and not isinstance(layer, Input):
        raise InputError(f"layer={layer.name!r} is {NEVER_WALKED}.")
    play = Play(game, subject.network, subject.inputs, subject.target)
    root = game.map_root(play.aim, play.solved.logits)
    if root is not None:  # weights: the map is the pull of `w · logit` (S26b)
        play = Play(game.replace(output="one"), subject.network, subject.inputs, root)
    difference = play.mass(layer, DIFFERENCE).plain()
    if isinstance(game, StoppingGame):
        return difference * play.solved[layer] if game.modes.multiply_by_input else difference
    if play.game.modes.output == "one":
        return difference
    return difference * layer.layout.spread(play.value, difference)


@method(
    "sg",
    title="SG",
    family="gradient",
    reference=PAPER,
    params=StoppingModes.accepts(),
    grid=_stopping_grid(),
    neurons=True,
    layers=True,
)
def stopping_game(subject: Subject, **modes: Any) -> list[Tensor]:
    """The Stopping Game: its discounted visits are the gradient (thm:gradient)."""
    return maps_of(subject, StoppingGame(subject.network, **modes))


@method(
    "rg",
    title="RG",
    family="relevance",
    reference=PAPER,
    params=RoutingModes.accepts(),
    grid=_routing_grid(),
    neurons=True,
    layers=True,
)
def routing_game(subject: Subject, **modes: Any) -> list[Tensor]:
    """The Routing Game: at τ = 1 the αβ-LRP family (thm:ab-recovery)."""
    return maps_of(subject, RoutingGame(subject.network, **modes))


@method(
    "excitation_backprop",
    title="EB",
    family="relevance",
    reference="Zhang et al., Top-down neural attention by excitation backprop, IJCV 2018",
    neurons=True,
    layers=True,
)
def excitation_backprop(subject: Subject) -> list[Tensor]:
    """Excitation Backprop: the Routing Game at α = 1, β = 0, ε = 0, which follows positive contributions alone.

    Its `output="one"`: the map, at the input or at a layer, holds marginal winning probabilities,
    `P(i | j) ∝ [a_i W_ij]⁺`, from 1 at the target. Operands of a sum win in proportion to their values.
    """
    modes: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "epsilon": 0.0, "output": "one", "residual": "proportional"}
    return maps_of(subject, RoutingGame(subject.network, **modes))


@method(
    "rg_eq",
    title="RG+Eq",
    family="relevance",
    reference=PAPER,
    needs=("image",),
    params=RoutingModes.accepts() | AVERAGE,
    grid=_routing_grid(),
    alone=True,
    neurons=True,
)
def equivariant_routing(subject: Subject, **params: Any) -> Tensor:
    """The Routing Game averaged over rotations, shifts and flips (S36)."""
    average = {name: params.pop(name) for name in AVERAGE}
    game = RoutingGame(subject.network, **params)
    return averaged(subject, game, **average)


def averaged(subject: Subject, game: RoutingGame | StoppingGame, **average: Any) -> Tensor:
    """The game's map, averaged; what stands beside the image stays as it is."""
    maps = [Reynolds(_Sample(one, game), **average).attribute(one.x, one.target) for one in subject.samples()]
    return torch.cat(maps)


class _Sample:
    """A game on one sample: it takes the image alone, as `Reynolds` moves it, and puts it among the sample's inputs."""

    def __init__(self, subject: Subject, game: RoutingGame | StoppingGame) -> None:
        self.subject, self.game = subject, game

    def together(self, x: Tensor) -> int:
        return self.subject.network.together(x)

    def targets(self, x: Tensor, target: Tensor) -> Tensor:
        return target

    def attribute(self, x: Tensor, target: Any = None) -> Tensor:
        return self.game.attribute(self.subject.with_inputs([x]), target)
