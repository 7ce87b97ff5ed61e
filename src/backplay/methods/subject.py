"""The subject of an explanation: a model, an input and a class for each sample."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from backplay.games.inputs import Inputs, Target, read_inputs, read_target
from backplay.methods.replay import run
from backplay.network import Model, Network, capture, read_model
from backplay.network.attention import Attention
from backplay.network.capture import input_key
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine

_KEPT = 2  # captures of the models that were explained last
_captures: OrderedDict[tuple[Any, ...], Network] = OrderedDict()
_estranged: WeakSet[Network] = WeakSet()  # captures that differ from their models from the start
_lock = threading.RLock()


def captured(model: nn.Module | Network, example: dict[Any, Any], not_this: Network | None = None) -> Network:
    """The game graph of a model, kept for the models explained last: explaining in a loop captures once.

    `not_this` is a capture that the model has moved on from.
    """
    if isinstance(model, Network):
        return model
    shape = tuple((k, tuple(v.shape[1:]), v.dtype) if isinstance(v, Tensor) else (k, v) for k, v in example.items())
    key = (id(model), repr(model), shape)  # the entry holds the model, so that its id stays its own
    with _lock:
        if key not in _captures or _captures[key] is not_this:
            _captures[key] = capture(model, example)
            while len(_captures) > _KEPT:
                _captures.popitem(last=False)
        _captures.move_to_end(key)
        return _captures[key]


def _agrees(network: Network, inputs: dict[Any, Any], logits: Tensor) -> bool:
    """Whether the captured program still computes what the model does.

    Tensors are read anew for every map; a number, a hook or another `forward` changes the model behind its capture.
    """
    replayed = run(network, inputs)
    if replayed.shape != logits.shape:
        return False
    size, error = (t.flatten(1).abs().amax(1) for t in (logits, replayed - logits))
    return bool((error <= torch.finfo(logits.dtype).eps ** 0.5 * size).all())


def known(model: nn.Module) -> Network | None:
    """A capture of the model that is at hand."""
    with _lock:
        wanted = (id(model), repr(model))
        return next((network for key, network in reversed(_captures.items()) if key[:2] == wanted), None)


class Subject:
    """What is to be explained; methods read from here and leave the model as it is."""

    def __init__(self, model: Model, x: Inputs, target: Target) -> None:
        model = read_model(model, "a method")
        given = read_inputs(x)
        input_key(given)
        self.network = captured(model, given)
        self.model = self.network.model
        self.inputs = self.network.check(given)
        self.x: Tensor = self.inputs[self.network.key]
        with torch.inference_mode(False), torch.no_grad():
            logits = self.network.model_logits(self.inputs)
            if self.network is not model:
                self._keep_up(given, logits)
            # (B,) index into each sample's flattened output; a copy, for it may have been made in inference mode
            self.flat = read_target(target, logits).clone()
            self.target = torch.stack(torch.unravel_index(self.flat, logits.shape[1:]), 1)  # (B, n), as games take it

    def _keep_up(self, given: dict[Any, Any], logits: Tensor) -> None:
        """Capture anew if the model has changed since; one that no capture agrees with is left at the second."""
        if self.network in _estranged or _agrees(self.network, self.inputs, logits):
            return
        self.network = captured(self.model, given, not_this=self.network)
        if not _agrees(self.network, self.inputs, logits):
            _estranged.add(self.network)

    @property
    def given(self) -> Inputs:
        """The input as games take it."""
        return self.beside(self.x)

    def beside(self, x: Tensor) -> Inputs:
        """N other inputs as games take them, among what stands beside each sample; N is any multiple of the batch."""
        inputs = self._replaced(x)
        return x if set(inputs) == {0} else inputs

    def _replaced(self, x: Tensor) -> dict[Any, Any]:
        repeats = len(x) // len(self.x)
        others = {k: v for k, v in self.inputs.items() if k != self.network.key}
        repeated = {
            k: v.repeat_interleave(repeats, 0) if isinstance(v, Tensor) and v.ndim else v for k, v in others.items()
        }
        return {k: x if k == self.network.key else repeated[k] for k in self.inputs}

    def samples(self) -> Iterator[Subject]:
        """Each sample as a subject of its own."""
        for k in range(len(self.x)):
            one = copy.copy(self)
            one.inputs = {
                name: v[k : k + 1] if isinstance(v, Tensor) and v.ndim else v for name, v in self.inputs.items()
            }
            one.x, one.flat, one.target = one.inputs[self.network.key], self.flat[k : k + 1], self.target[k : k + 1]
            yield one

    def scores(self, x: Tensor, target: Tensor) -> Tensor:
        """(N,) the target's logit of each of N inputs; differentiable in `x`. N may be any multiple of the batch."""
        logits = self.network.model_logits(self._replaced(x))
        return logits.flatten(1).gather(1, target[:, None])[:, 0]

    def gradient(self, x: Tensor | None = None) -> Tensor:
        """Gradient of the target's logit in the input, for the subject's batch or another of the same samples."""
        at = self.x if x is None else x
        if len(at) == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()):
            # torch 2.13 differentiates an eval-mode batch norm wrongly for one sample in some memory layouts
            return self.gradient(torch.cat([at, at]))[:1]
        with torch.inference_mode(False), torch.enable_grad():
            leaf = at.detach().clone().requires_grad_(True)
            repeats = len(leaf) // len(self.x)
            # a copy of the leaf, which the model's first operator may change in place
            score = self.scores(leaf.clone(), self.flat.repeat_interleave(repeats))
            return torch.autograd.grad(score.sum(), leaf)[0]


def has_attention(network: Network) -> bool:
    """Whether the network mixes tokens by softmax weights."""
    return any(isinstance(n, Attention) for n in network.nodes)


def has_convolutions(network: Network) -> bool:
    """Whether a convolution looks beyond its own patch: a patch embedding alone makes no feature map."""
    found = [(n, n.map) for n in network.nodes if isinstance(n, Affine) and isinstance(n.map, Convolution)]
    constants = network.weights().constants
    return any(max(node.weight(constants).shape[2:]) > min(geometry.stride, default=1) for node, geometry in found)
