"""Hypothesis strategies for random small networks and inputs.

Weights and inputs are multiples of 1/4, so that zeros and ties are frequent and exact. Two operands that are
elementwise functions of one tensor never meet in a sum or product: the specification would read both as one gate.
"""

import numpy as np
from hypothesis import strategies as st

from .dag import GATES, Dag


@st.composite
def arrays(draw, shape, zeros=True):
    """Multiples of 1/4 in [-2, 2], zero now and then."""
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    values = generator.integers(-8, 9, size=shape) / 4.0
    if zeros:
        values[generator.random(shape) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    return values


def biases(n):
    return st.one_of(st.none(), arrays((n,)))


@st.composite
def batch_norms(draw, channels):
    """scale (of both signs), shift, mean, var."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = generator.uniform(0.5, 1.5, channels) * generator.choice([-1, 1, 1], channels)
    return scale, generator.normal(size=channels), generator.normal(size=channels), generator.uniform(0.5, 2, channels)


class Growing:
    """A network that grows step by step, and what hypothesis may still add to it."""

    def __init__(self, draw, shape, gates):
        self.draw = draw
        self.gates = gates
        self.dag = Dag(shape)
        self.root = {0: 0}  # the tensor of which a step is an elementwise function

    def note(self, i, root=None):
        self.root[i] = i if root is None else self.root[root]
        return i

    def partners(self, i):
        """Steps of the same shape that are not elementwise functions of the same tensor."""
        return [j for j in self.root if self.dag.shape(j) == self.dag.shape(i) and self.root[j] != self.root[i]]

    def maybe_gate(self, i):
        name = self.draw(st.sampled_from((None, "relu", *self.gates)))
        if name is None or self.dag.steps[i].op in ("gate", "input"):
            return i
        return self.note(self.dag.gate(i, name), i)

    def maybe_norm(self, i):
        """Batch norm behind an affine step (folded if nothing else reads it) or elsewhere (diagonal)."""
        if not self.draw(st.booleans()):
            return i
        return self.note(self.dag.batch_norm(i, *self.draw(batch_norms(self.dag.shape(i)[0]))), i)

    def maybe_join(self, i):
        """A sum, difference, maximum or concatenation with an earlier step."""
        how = self.draw(st.sampled_from(("none", "add", "sub", "maximum", "cat")))
        partners = self.partners(i)
        if how == "none" or not partners:
            return i
        j = self.draw(st.sampled_from(partners))
        if how == "cat":
            return self.note(self.dag.cat(i, j)) if self.dag.size(i) <= 9 else i
        return self.note(getattr(self.dag, how)(i, j))


@st.composite
def dense_dags(draw, gates=GATES, norms=True, max_layers=3):
    """Fully connected networks with residual sums, concatenation, maxima, batch norm, slices and constants."""
    net = Growing(draw, (draw(st.integers(1, 6)),), gates)
    i = 0
    for _ in range(draw(st.integers(1, max_layers))):
        if draw(st.integers(0, 5)) == 0:
            i = net.note(net.dag.cat_constant(i, draw(arrays((1,), zeros=False)) + 2.25))
        width = draw(st.one_of(st.integers(1, 6), st.just(net.dag.size(0))))
        i = net.note(net.dag.linear(i, draw(arrays((width, net.dag.size(i)))), draw(biases(width))))
        i = net.maybe_norm(i) if norms else i
        i = net.maybe_gate(i)
        i = net.maybe_join(i)
        if net.dag.size(i) > 6:
            i = net.note(net.dag.slice(i, 1, 7))
    outputs = draw(st.integers(1, 3))
    net.dag.linear(i, draw(arrays((outputs, net.dag.size(i)))), draw(biases(outputs)))
    return net.dag


@st.composite
def conv_dags(draw, gates=GATES, norms=True):
    """One or two convolutions on a 3×3 image, with everything a convolutional block is made of, and a linear head."""
    channels = draw(st.integers(1, 2))
    net = Growing(draw, (channels, 3, 3), gates)
    i = 0
    for _ in range(draw(st.integers(1, 2))):
        i = _conv(net, i)
        i = net.maybe_norm(i) if norms else i
        i = net.maybe_gate(i)
        i = net.maybe_join(i)
    i = _pool(net, i)
    if norms and draw(st.booleans()) and net.dag.steps[i].op != "input":
        i = net.note(net.dag.batch_norm(i, *draw(batch_norms(net.dag.shape(i)[0]))), i)
        i = net.note(net.dag.gate(i, draw(st.sampled_from(gates))), i)
    i = net.note(net.dag.flatten(i))
    outputs = draw(st.integers(1, 3))
    net.dag.linear(i, draw(arrays((outputs, net.dag.size(i)))), draw(biases(outputs)))
    return net.dag


def _conv(net, i):
    """A convolution with padding, stride, dilation or groups; padding may be an operation of its own."""
    draw, dag = net.draw, net.dag
    if min(dag.shape(i)[1:]) >= 2 and draw(st.integers(0, 3)) == 0:
        i = dag.pad(i, 1)  # not noted: nothing but the convolution reads it
        padding = 0
    else:
        padding = draw(st.integers(0, 1))
    channels, height, _ = dag.shape(i)
    sizes = [k for k in (1, 2, 3) if k <= height + 2 * padding]
    kernel = draw(st.sampled_from(sizes))
    stride = draw(st.integers(1, 2))
    groups = channels if draw(st.booleans()) else 1
    wide = channels if groups > 1 else draw(st.integers(1, 2))
    weight = draw(arrays((wide, channels // groups, kernel, kernel)))
    return net.note(dag.conv(i, weight, draw(biases(wide)), stride=stride, padding=padding, groups=groups))


def _pool(net, i):
    draw, dag = net.draw, net.dag
    kind = draw(st.sampled_from(("none", "max", "avg", "global")))
    if kind == "global":
        return net.note(dag.global_pool(i))
    if kind == "none" or min(dag.shape(i)[1:]) < 2:
        return i
    stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, 1))
    if kind == "max":
        return net.note(dag.max_pool(i, 2, stride, padding))
    return net.note(dag.avg_pool(i, 2, stride, padding, count_include_pad=draw(st.booleans())))


@st.composite
def inputs(draw, dag, batch=1):
    """A batch of flat inputs, multiples of 1/4 with zeros."""
    return np.stack([draw(arrays((dag.size(0),))) for _ in range(batch)])


def routing_options():
    """Keywords of the Routing Game (S13-S17)."""
    alphas = st.sampled_from(((2.0, 1.0), (1.0, 0.0), (1.5, 0.5), (1.0, 1.0)))
    return st.builds(
        lambda ab, **rest: {"alpha": ab[0], "beta": ab[1], **rest},
        alphas,
        epsilon=st.sampled_from((0.0, 1e-6, 0.5)),
        tau=st.sampled_from((1.0, 1.0, 0.5, 2.0)),
        residual=st.sampled_from(("uniform", "proportional")),
        bias=st.sampled_from(("ignore", "absorb")),
        empty_stream=st.sampled_from(("cemetery", "reroute")),
    )
