"""The subject of an explanation: a model, an input and a class for each sample."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from backplay.games.neurons import names_neurons, read_neurons
from backplay.inputs import Aim, Target, read_target
from backplay.network import Model, Network, Node, read_model
from backplay.network.arguments import Arguments, Inputs
from backplay.network.attention import Attention
from backplay.network.captures import Captures
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine, Diagonal, Held, Input, Mix, Overlay
from backplay.network.wires import Wire
from backplay.values.forward import Values

_estranged: WeakSet[Network] = WeakSet()  # captures that differ from their models from the start


def _agrees(network: Network, inputs: Arguments, logits: Tensor) -> bool:
    """Whether the captured program still computes what the model does.

    Tensors are read anew for every map; a number, a hook or another `forward` changes the model behind its capture.
    """
    replayed = network.run(inputs)
    if replayed.shape != logits.shape:
        return False
    size, error = (t.flatten(1).abs().amax(1) for t in (logits, replayed - logits))
    return bool((error <= torch.finfo(logits.dtype).eps ** 0.5 * size).all())


class Subject:
    """What is to be explained; methods read from here and leave the model as it is."""

    layer: Node | None = None  # where relevance is asked for; None: at the inputs

    def __init__(self, captures: Captures, inputs: Arguments, target: Target) -> None:
        self.inputs, self.model = inputs, captures.model
        self.network = captures.get(inputs)
        self.logits = logits = self.network.model_logits(inputs)
        if self.network is not captures.source:
            self._keep_up(captures, logits)
        self.aim: Aim = (
            read_neurons(target, self.network, inputs.batch)
            if names_neurons(target)
            else read_target(target, logits, inputs)
        )
        # `w` like the logits, or 1 at a hidden neuron, which games alone explain; a copy, for it may have been made
        # in inference mode
        self.weights = self.aim.signed(logits).clone()

    def aimed(self, target: Target) -> Subject:
        """The same inputs under another target over the logits; the model is not asked again."""
        other = copy.copy(self)
        other.aim = read_target(target, self.logits, self.inputs)
        other.weights = other.aim.signed(self.logits).clone()
        return other

    @staticmethod
    def of(model: Model, x: Inputs, target: Target = None, extra: Any = None) -> Subject:
        """The subject of a call, checked."""
        captures = Captures.held(read_model(model, "a method"))
        return Subject(captures, captures.prepare(x, extra)[1], target)

    def _keep_up(self, captures: Captures, logits: Tensor) -> None:
        """Capture anew if the model has changed since; one that no capture agrees with is left at the second."""
        if self.network in _estranged or _agrees(self.network, self.inputs, logits):
            return
        self.network = captures.get(self.inputs, not_this=self.network)
        if not _agrees(self.network, self.inputs, logits):
            _estranged.add(self.network)

    @property
    def xs(self) -> tuple[Tensor, ...]:
        """The explained inputs."""
        return self.inputs.xs

    @property
    def x(self) -> Tensor:
        """The explained input; methods that take one alone are refused where there are several."""
        return self.inputs.x

    def at_layer(self, name: str) -> Subject:
        """The same, with relevance asked for at the output of a module or node."""
        other = copy.copy(self)
        other.layer = self.network.find(name)
        return other

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes at which relevance is asked for: the inputs, or a layer."""
        return self.network.inputs if self.layer is None else (self.layer,)

    def values(self, xs: Sequence[Tensor] | None = None) -> Values:
        """The network's forward pass on the subject's inputs, or on others of the same samples."""
        return Values(self.network, self.inputs if xs is None else self.with_inputs(xs), self.network.weights())

    def seen(self) -> tuple[Tensor, ...]:
        """The values at the sources."""
        return self.xs if self.layer is None else (self.values()[self.layer],)

    @property
    def target(self) -> Any:
        """As games take it: (B, n) indices, weights, or hidden neurons."""
        return self.aim.given

    def with_inputs(self, xs: Sequence[Tensor]) -> Arguments:
        """N other inputs among what stands beside each sample; N is any multiple of the batch."""
        repeats = len(xs[0]) // self.inputs.batch
        own = self.network.signature.per_sample
        return self.inputs.with_values({k: self.inputs[k].repeat_interleave(repeats, 0) for k in own}).at(xs)

    def samples(self) -> Iterator[Subject]:
        """Each sample as a subject of its own."""
        by_sample = {*self.inputs.explained, *self.network.signature.per_sample}
        for k in range(self.inputs.batch):
            one = copy.copy(self)
            one.inputs = self.inputs.with_values({key: self.inputs[key][k : k + 1] for key in by_sample})
            one.aim = self.aim.part(slice(k, k + 1))
            one.weights = one.aim.signed(self.weights)
            yield one

    def scores(self, xs: Sequence[Tensor]) -> Tensor:
        """(N,) `Σ w · logit` at N inputs; differentiable in them. N may be any multiple of the batch."""
        logits = self.network.model_logits(self.with_inputs(xs))
        return (logits * self.weights.repeat_interleave(len(logits) // len(self.weights), 0)).flatten(1).sum(1)

    def gradients(self, xs: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        """Gradient of what is explained in each source, for the subject's batch or another of the same samples."""
        if self.layer is not None:
            return (differentiated(self.values(xs), self.layer, self.weights),)
        at = self.xs if xs is None else xs
        if len(at[0]) == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()):
            # torch 2.13 differentiates an eval-mode batch norm wrongly for one sample in some memory layouts
            return tuple(g[:1] for g in self.gradients([torch.cat([x, x]) for x in at]))
        with torch.enable_grad():
            leaves = [x.detach().clone().requires_grad_(True) for x in at]
            # copies of the leaves, which the model's first operator may change in place
            score = self.scores([leaf.clone() for leaf in leaves])
            return torch.autograd.grad(score.sum(), leaves, allow_unused=True, materialize_grads=True)


def has_attention(network: Network) -> bool:
    """Whether the network mixes tokens by softmax weights."""
    return any(isinstance(n, Attention) for n in network.nodes)


def has_convolutions(network: Network) -> bool:
    """Whether a convolution looks beyond its own patch: a patch embedding alone makes no feature map."""
    layers = [(n, n.map) for n in network.nodes if isinstance(n, Affine) and isinstance(n.map, Convolution)]
    constants = network.weights().constants
    return any(max(node.weight(constants).shape[2:]) > min(geometry.stride, default=1) for node, geometry in layers)


def replayed(values: Values, start: Node, leaf: Tensor) -> Tensor:
    """Logits with another value at a node; nothing in front of it is run, or differentiated, again.

    What games hold fixed, a norm's statistic or an oracle, follows the change as all else does.
    """
    network = values.network
    again: dict[Any, Tensor] = {start: leaf}
    scope = Overlay(again, values)
    if start.ref is not None:
        again[start.ref] = leaf
    for node in network.nodes[network.nodes.index(start) + 1 :]:
        if any(operand in again for operand in (*node.inputs, *node.detached_inputs)):
            again[node] = node.run(scope)
            if node.ref is not None:
                again[node.ref] = again[node]
    return again.get(network.output, values.logits)


def differentiated(values: Values, start: Node, weights: Tensor, at: Tensor | None = None) -> Tensor:
    """Gradient at a node of the logits, weighed by `weights` of their shape; no hooks.

    `at` is another value of the node than that of the forward pass.
    """
    with torch.enable_grad():
        leaf = (values[start] if at is None else at).detach().clone().requires_grad_()
        logits = replayed(values, start, leaf)
        if not logits.requires_grad:  # the output does not depend on the node
            return torch.zeros_like(leaf)
        (gradient,) = torch.autograd.grad(logits, leaf, weights.clone())
    return gradient


def source_of(node: Node) -> Node:
    """What a value comes from, through wires and constant scales."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def sees_input(node: Node) -> bool:
    """Whether only wires and constant scales lie between the input and a node's output."""
    return isinstance(source_of(node), Input)


def weighted_layers(network: Network) -> list[Affine]:
    """Convolutions, linear layers and other products with a constant matrix."""
    affine = [node for node in network.nodes if isinstance(node, Affine) and node in network.reached]
    return [node for node in affine if not isinstance(node, (Mix, Held))]


def has_first_layer(network: Network) -> bool:
    """Whether a convolution or linear layer sees the input itself."""
    return any(sees_input(layer.operand) for layer in weighted_layers(network))
