"""Networks that have forgotten: copies of a model whose layers, from the output on, are drawn anew (app:sanity-check).

The order is that of the graph, not that in which modules were registered, and every parameter belongs to a layer: a
transformer's in-projection, class token and position embedding too.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from backplay.entry import entry
from backplay.errors import CaptureError, InputError, KeywordError, instead
from backplay.keywords import SEED
from backplay.methods.registry import at_hand
from backplay.network import Model, Network, capture, read_model

Which = Literal["all", "weights"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one step of a cascade draws anew."""

    name: str  # path of the module that owns the parameters; of the model's own, the parameter's name
    parameters: tuple[str, ...]  # their names in the model

    def __str__(self) -> str:
        return self.name


@entry
def layers(model: Model, example: Any = None, which: Which = "all") -> tuple[Stage, ...]:
    """The layers of a model from its output to its input, each parameter in exactly one of them.

    A captured network knows its order. A module is captured on `example`; without one its last capture serves, or one
    on an input that is guessed. Parameters of one module that are read one
    after the other form a layer. With `which="weights"` only the weights of convolutions and linear layers count, and
    norms, biases and embeddings are left as they are (tab:double-random-hellinger).
    """
    check_which(which)
    found = read_model(model, "layers")
    if not isinstance(found, Network):
        found = _at_hand(found) if example is None else capture(found, example)
    groups: list[tuple[str, list[str]]] = []
    for name in _each_once(found):
        if which == "weights" and not _is_weight(found.model, name):
            continue
        owner = name.rpartition(".")[0] or name
        if groups and groups[-1][0] == owner:
            groups[-1][1].append(name)
        else:
            groups.append((owner, [name]))
    return tuple(Stage(name=owner, parameters=tuple(names)) for owner, names in groups)


def check_which(which: object) -> None:
    """Refuse a choice of parameters that there is not."""
    if which not in ("all", "weights"):
        raise KeywordError(f"which={which!r} is out of range: it must be 'all' or 'weights'.")


def _at_hand(model: nn.Module) -> Network:
    """A capture for the order of the layers: the last one of the model, else one on a guessed input."""
    try:
        return at_hand(model)
    except (InputError, CaptureError) as error:
        raise InputError(
            "layers have the order of the graph: give example=…, an input of the model, or a captured network."
        ) from error


def _each_once(network: Network) -> list[str]:
    """Every parameter under one name, from the output to the input; those that are never read come last."""
    known = dict(network.model.named_parameters(remove_duplicate=False))
    found: dict[int, str] = {}
    for name in (*network.learnable, *known):
        found.setdefault(id(known[name]), name)
    return list(found.values())


@entry
def randomise(
    model: Model, upto: str | None = None, seed: int = 0, *, example: Any = None, which: Which = "all"
) -> nn.Module:
    """A new module whose layers, from the output up to and including `upto`, are drawn anew; None means all.

    >>> bp.randomise(model, seed=1)
    >>> bp.randomise(bp.capture(model, x), upto="features.2")

    Weights are drawn by Kaiming's normal rule, biases become 0, scales of norms 1. What a layer draws depends on `seed`
    and on its name alone, so that a cascade that goes further leaves it as it is. The given model is not touched. The
    whole model needs no order; with `upto` the graph of a module is read on `example`, if its input cannot be guessed.
    """
    seed = SEED.check("seed", seed)
    check_which(which)
    if upto is not None and not isinstance(upto, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KeywordError(f"upto={upto!r} is out of range: it must be the name of a layer (str), such as '{upto}'.")
    found = read_model(model, "randomise")
    module = found.model if isinstance(found, Network) else found
    if upto is None and not isinstance(found, Network):
        names = [name for name, _ in module.named_parameters() if which == "all" or _is_weight(module, name)]
        twin = copy.deepcopy(module)
        draw(twin, names, seed)
        return twin
    return forgetful(module, _up_to(layers(found, example, which), upto), seed)


def forgetful(model: nn.Module, stages: Sequence[Stage], seed: int) -> nn.Module:
    """A copy of a model with these layers drawn anew."""
    twin = copy.deepcopy(model)
    for stage in stages:
        draw(twin, stage.parameters, seed)
    return twin


def _up_to(all_layers: tuple[Stage, ...], upto: str | None) -> tuple[Stage, ...]:
    """The layers from the output to the last one that belongs to the module of that name."""
    if upto is None:
        return all_layers
    inside = [k for k, layer in enumerate(all_layers) if layer.name == upto or layer.name.startswith(f"{upto}.")]
    if not inside:
        names = [layer.name for layer in all_layers]
        raise InputError(f"upto={upto!r} names no layer{instead(upto, names)}.")
    return all_layers[: inside[-1] + 1]


@torch.no_grad()
def draw(model: nn.Module, names: tuple[str, ...] | list[str], seed: int) -> None:
    """Draw parameters of a model anew, in place: of a copy, never of what was given."""
    known = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        parameter = known[name]
        # the generator reads 32 bits of its seed
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        parameter.copy_(_fresh(parameter, name, generator))


def _fresh(like: Tensor, name: str, generator: torch.Generator) -> Tensor:
    """New values for a parameter: Kaiming's normal rule for two dimensions and more, else 0 or 1."""
    if like.ndim < 2:
        return torch.zeros_like(like) if "bias" in name.rpartition(".")[2] else torch.ones_like(like)
    found = torch.empty(like.shape, dtype=torch.float32)
    return nn.init.kaiming_normal_(found, generator=generator).to(like)


def _is_weight(model: nn.Module, name: str) -> bool:
    owner, _, leaf = name.rpartition(".")
    return leaf == "weight" and isinstance(model.get_submodule(owner), (nn.Linear, _ConvNd))
