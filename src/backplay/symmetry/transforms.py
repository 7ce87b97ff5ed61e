"""Copies of a model that compute the same function with other weights: permuted or rescaled neurons (S33, S34).

What these do to the walk: sec:model-distance-invariances.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from backplay.entry import entry
from backplay.errors import InputError, UnsupportedError
from backplay.network import Model, read_model
from backplay.network.arguments import Inputs
from backplay.network.captures import Captures
from backplay.network.nodes import Affine
from backplay.symmetry.channels import Channels, read_channels
from backplay.symmetry.ledger import Axis, matching, present, renamed
from backplay.symmetry.orbits import Branch, Forest, Leaf, Member

Factors = Mapping[str, float | Tensor]
Permutations = Mapping[str, Tensor]


@entry
def permute_neurons(model: Model, x: Inputs, permutations: Permutations | None = None, seed: int = 0) -> nn.Module:
    """A copy of the model with hidden channels in another order; it computes the same.

    `permutations` maps the name of a layer to the order of its outputs (new channel `k` is the old `order[k]`), for
    all channels that are tied to them by sums and scores; where whole heads or groups of a convolution move, all that
    belongs to them follows. None draws an order for everything that may move.

    >>> twin = bp.transforms.permute_neurons(model, x, seed=3)
    """
    channels = _analysed(model, x)
    forest = Forest(channels.ledger, channels.signatures())
    source = torch.arange(len(channels.ledger))
    if permutations is None:
        generator = torch.Generator().manual_seed(seed)
        for members in forest.orbits():
            shuffle(source, members, members, generator)
    elif permutations:
        _follow(source, forest, {n: _wanted(n, channels.of(n), order) for n, order in permutations.items()})
    return permuted(channels.network.model, channels, source)


def permuted(model: nn.Module, channels: Channels, source: Tensor) -> nn.Module:
    """A copy of the model in which channel `c` takes over what channel `source[c]` was."""
    twin = copy.deepcopy(model)
    tensors = dict(twin.named_parameters()) | dict(twin.named_buffers())
    with torch.no_grad():
        for axis in sorted(channels.axes, key=lambda p: p.labels.ndim):  # rows before the columns of each row
            tensor = tensors[axis.parameter]
            if axis.labels.ndim == 1:
                tensor.copy_(tensor.index_select(axis.number, axis.order(source).to(tensor.device)))
                continue
            rows = next(p for p in channels.axes if p.parameter == axis.parameter and p.number == 0).order(source)
            order = matching(axis.labels[rows], renamed(axis.labels, source)).to(tensor.device)
            tensor.copy_(tensor.gather(1, order.view(*order.shape, *[1] * (tensor.ndim - 2)).expand(tensor.shape)))
    return twin


def shuffle(source: Tensor, to: Sequence[Member], members: Sequence[Member], generator: torch.Generator) -> None:
    """Members in a random order; what lies in them too."""
    order = torch.randperm(len(members), generator=generator).tolist()
    for left, k in zip(to, order, strict=True):
        right = members[k]
        if isinstance(left, Leaf) and isinstance(right, Leaf):
            source[list(left.channels)] = torch.tensor(right.channels)
        elif isinstance(left, Branch) and isinstance(right, Branch):
            for inner, others in zip(left.inner, right.inner, strict=True):
                shuffle(source, inner, others, generator)


def _wanted(name: str, channels: Sequence[int], order: Tensor) -> dict[int, int]:
    """The order of one layer's channels: which one takes over which."""
    if not channels:
        raise InputError(f"{name!r} has no channels that could change places: input and output stay.")
    order = torch.as_tensor(order)
    if sorted(order.tolist()) != list(range(len(channels))):
        raise InputError(
            f"the order of {name!r} must hold each of 0 … {len(channels) - 1} once, got {tuple(order.shape)}."
        )
    return {channels[k]: channels[int(o)] for k, o in enumerate(order)}


def _follow(source: Tensor, forest: Forest, orders: dict[str, dict[int, int]]) -> None:
    """Write the given orders into `source`, with all that has to move along; all at once, for they may be tied."""
    wanted = {c: taken for order in orders.values() for c, taken in order.items()}
    try:
        for c, taken in forest.carried(wanted).items():
            source[c] = taken
    except ValueError as error:
        raise InputError(
            f"the order of {', '.join(map(repr, orders))} moves channels that must stay, or tears apart what keeps "
            "together: tied channels, attention heads, groups of a convolution."
        ) from error


@entry
def rescale_neurons(model: Model, x: Inputs, factors: Factors | None = None, seed: int = 0) -> nn.Module:
    """A copy of the model whose hidden channels are `factor > 0` times as large; what reads them divides by it.

    With positively homogeneous gates (ReLU, LeakyReLU, max) it computes the same. `factors` maps the name of a layer to
    one number or to one for each channel; None draws one for every hidden channel.

    >>> twin = bp.transforms.rescale_neurons(model, x, {"features.0": 3.0})
    """
    channels = _analysed(model, x)
    model = channels.network.model
    forest = Forest(channels.ledger, channels.signatures())
    unit = {c: u for u, tied in forest.units.items() for c in tied}
    fixed = forest.held | {unit[c] for c in channels.ledger.bound}
    sizes = torch.ones(len(channels.ledger), dtype=torch.float64)
    if factors is None:
        rigid = fixed | {unit[c] for p in channels.axes if not _scales(model, p) for c in present(p.labels)}
        drawn = torch.exp(torch.rand(len(sizes), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1)
        for u in forest.units.keys() - rigid:
            sizes[forest.units[u]] = drawn[u]
    for name, factor in (factors or {}).items():
        named = channels.of(name)
        if not named or any(unit[c] in fixed for c in named):
            raise InputError(f"the channels of {name!r} are fixed: input, output and what depends on constants stay.")
        size = torch.as_tensor(factor, dtype=torch.float64).expand(len(named))
        if not bool((size > 0).all()):
            raise InputError(f"factors of {name!r} must be positive, got {factor}.")
        for c, f in zip(named, size.tolist(), strict=True):
            sizes[forest.units[unit[c]]] = f
    return _rescaled(model, channels, sizes)


def _scales(model: nn.Module, axis: Axis) -> bool:
    return isinstance(axis.node, Affine) or _is_norm(model, axis.parameter)


def _rescaled(model: nn.Module, channels: Channels, sizes: Tensor) -> nn.Module:
    twin = copy.deepcopy(model)
    tensors = dict(twin.named_parameters()) | dict(twin.named_buffers())
    normed = {id(p.node) for p in channels.axes if _is_norm(twin, p.parameter)}
    with torch.no_grad():
        for axis in channels.axes:
            factor = torch.where(axis.labels > 0, sizes[(axis.labels - 1).clamp(min=0)], 1.0)
            if bool((factor == 1).all()):
                continue
            tensor = tensors[axis.parameter]
            power = _power(twin, axis, id(axis.node) in normed)
            view = [-1 if d == axis.number else 1 for d in range(tensor.ndim)]
            if factor.ndim == 2:  # the columns of a grouped convolution
                view = [*factor.shape, *[1] * (tensor.ndim - 2)]
            tensor.mul_(factor.pow(power).to(tensor).view(view))
    return twin


def _power(model: nn.Module, axis: Axis, normed: bool) -> int:
    """How a parameter follows the size of its channels: as it is, inversely, or not at all."""
    kind = axis.parameter.rsplit(".", 1)[-1]
    if _is_norm(model, axis.parameter):
        if isinstance(axis.node, Affine):  # folded: the norm's own scale and shift size the outputs
            return int(kind in ("weight", "bias"))
        return int(kind in ("running_mean", "bias"))
    if not _scales(model, axis):
        raise UnsupportedError(f"{axis.parameter!r} acts on the channels; only affine layers and batch norms rescale.")
    if not axis.makes:
        return -1
    return 0 if normed else 1


def _is_norm(model: nn.Module, parameter: str) -> bool:
    module = model.get_submodule(parameter.rpartition(".")[0])
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _analysed(model: Model, x: Inputs) -> Channels:
    return read_channels(*Captures(read_model(model)).prepare(x))
