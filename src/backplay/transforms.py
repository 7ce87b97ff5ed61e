"""Copies of a model that compute the same function with other weights: permuted or rescaled neurons (S33, S34)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from backplay.errors import InputError, UnsupportedError
from backplay.games.inputs import Inputs, read_inputs
from backplay.network import Network, capture
from backplay.network.channels import _BASE, Channels, Place
from backplay.network.nodes import Affine
from backplay.values.forward import Values

Factors = Mapping[str, float | Tensor]
Permutations = Mapping[str, Tensor]


def channels_of(network: Network, inputs: dict[Any, Any]) -> Channels:
    """Which neurons of a network may change places, seen on an input."""
    with torch.inference_mode(False), torch.no_grad():
        return Channels(network, Values(network, inputs, network.weights()))


def permute_neurons(model: nn.Module, x: Inputs, permutations: Permutations | None = None, seed: int = 0) -> nn.Module:
    """A copy of the model with hidden channels in another order; it computes the same.

    `permutations` maps the name of a layer to the order of its outputs (new channel `k` is the old `order[k]`), for
    all layers that share its channels through sums; None draws one for every group of channels that may move.

    >>> twin = bp.transforms.permute_neurons(model, x, seed=3)
    """
    channels = _analysed(model, x)
    orders: dict[int, Tensor] = {}
    if permutations is None:
        generator = torch.Generator().manual_seed(seed)
        for g in channels.free():
            orders[g] = _random_order(channels.groups[g].block, generator)
    for name, order in (permutations or {}).items():
        g = channels.of(name)
        _check_order(name, order, channels, g)
        orders[g] = order.long().cpu()
    return permuted(model, channels, orders)


def permuted(model: nn.Module, channels: Channels, orders: Mapping[int, Tensor]) -> nn.Module:
    """A copy of the model with the channels of each group in the given order."""
    twin = copy.deepcopy(model)
    tensors = dict(twin.named_parameters()) | dict(twin.named_buffers())
    with torch.no_grad():
        for place in channels.places:
            source = order_along(place, orders)
            if source is not None:
                tensor = tensors[place.parameter]
                tensor.copy_(tensor.index_select(place.axis, source.to(tensor.device)))
    return twin


def order_along(place: Place, orders: Mapping[int, Tensor]) -> Tensor | None:
    """Where each position of a parameter's axis takes its entry from; None where nothing moves."""
    labels = place.labels
    source = torch.arange(len(labels))
    for g in torch.unique(labels[labels > 0] // _BASE).tolist():
        if g not in orders:
            continue
        here = ((labels > 0) & (labels // _BASE == g)).nonzero()[:, 0]
        channel = labels[here] % _BASE - 1
        # a channel may hold several positions (behind a flatten): they keep their order
        sort = torch.argsort(channel, stable=True)
        present = torch.unique(channel)
        table = here[sort].view(len(present), -1)
        row = torch.empty(len(orders[g]), dtype=torch.long)
        row[present] = torch.arange(len(present))
        source[table.flatten()] = table[row[orders[g][present]]].flatten()
    return None if torch.equal(source, torch.arange(len(labels))) else source


def rescale_neurons(model: nn.Module, x: Inputs, factors: Factors | None = None, seed: int = 0) -> nn.Module:
    """A copy of the model whose hidden channels are `factor > 0` times as large; what reads them divides by it.

    With positively homogeneous gates (ReLU, LeakyReLU, max) it computes the same. `factors` maps the name of a layer to
    one number or to one for each channel; None draws one for every hidden channel.

    >>> twin = bp.transforms.rescale_neurons(model, x, {"features.0": 3.0})
    """
    channels = _analysed(model, x)
    sizes: dict[int, Tensor] = {}
    if factors is None:
        generator = torch.Generator().manual_seed(seed)
        for g in channels.free():
            drawn = torch.exp(torch.rand(channels.groups[g].size, generator=generator, dtype=torch.float64) * 2 - 1)
            sizes[g] = torch.where(channels.groups[g].block < 0, 1.0, drawn)
    for name, factor in (factors or {}).items():
        g = channels.of(name)
        if g < 0 or bool((channels.groups[g].block < 0).any()):
            raise InputError(f"the channels of {name!r} are fixed: input, output and what depends on constants stay.")
        size = torch.as_tensor(factor, dtype=torch.float64).expand(channels.groups[g].size)
        if not bool((size > 0).all()):
            raise InputError(f"factors of {name!r} must be positive, got {factor}.")
        sizes[g] = size
    return _rescaled(model, channels, sizes)


def _rescaled(model: nn.Module, channels: Channels, sizes: Mapping[int, Tensor]) -> nn.Module:
    twin = copy.deepcopy(model)
    tensors = dict(twin.named_parameters()) | dict(twin.named_buffers())
    normed = {id(p.node) for p in channels.places if _is_norm(twin, p.parameter)}
    with torch.no_grad():
        for place in channels.places:
            factor = _along(place, sizes)
            if bool((factor == 1).all()):
                continue
            tensor = tensors[place.parameter]
            power = _power(twin, place, id(place.node) in normed)
            view = [-1 if d == place.axis else 1 for d in range(tensor.ndim)]
            tensor.mul_(factor.pow(power).to(tensor.dtype).view(view))
    return twin


def _power(model: nn.Module, place: Place, normed: bool) -> int:
    """How a parameter follows the size of its channels: as it is, inversely, or not at all."""
    kind = place.parameter.rsplit(".", 1)[-1]
    if _is_norm(model, place.parameter):
        if isinstance(place.node, Affine):  # folded: the norm's own scale and shift size the outputs
            return int(kind in ("weight", "bias"))
        return int(kind in ("running_mean", "bias"))
    if not isinstance(place.node, Affine):
        raise UnsupportedError(f"{place.parameter!r} acts on the channels; only affine layers and batch norms rescale.")
    if not place.makes:
        return -1
    return 0 if normed else 1


def _is_norm(model: nn.Module, parameter: str) -> bool:
    module = model.get_submodule(parameter.rpartition(".")[0])
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _along(place: Place, sizes: Mapping[int, Tensor]) -> Tensor:
    factor = torch.ones(len(place.labels), dtype=torch.float64)
    for g, size in sizes.items():
        here = (place.labels > 0) & (place.labels // _BASE == g)
        factor[here] = size[place.labels[here] % _BASE - 1]
    return factor


def _analysed(model: nn.Module, x: Inputs) -> Channels:
    inputs = read_inputs(x)
    network = capture(model, inputs)
    return channels_of(network, network.check(inputs))


def _random_order(block: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.arange(len(block))
    for b in torch.unique(block).tolist():
        here = (block == b).nonzero()[:, 0]
        order[here] = here[torch.randperm(len(here), generator=generator)]
    return order


def _check_order(name: str, order: Tensor, channels: Channels, g: int) -> None:
    if g < 0:
        raise InputError(f"{name!r} has no channels that could change places: input and output stay.")
    block = channels.groups[g].block
    if sorted(order.tolist()) != list(range(len(block))):
        raise InputError(
            f"the order of {name!r} must hold each of 0 … {len(block) - 1} once, got {tuple(order.shape)}."
        )
    if not torch.equal(block[order.long().cpu()], block):
        raise InputError(f"the order of {name!r} moves channels that must stay, or between attention heads.")
