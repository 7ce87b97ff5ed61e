"""Small networks written once and read twice: as a real `nn.Module`, and as explicit dense nodes over flat vectors.

A `Dag` is a list of steps, each with its PyTorch module. `module()` runs the modules; `nodes()` spells out the same
network as dense matrices, index groups and gates (S3), with batch norm folded where S4 says so. The module of step
`k + 1` has the path `steps.k`; step 0 is the input.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from . import gates, geometry

GATE_MODULES = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "leaky_relu": lambda: nn.LeakyReLU(0.125),
    "prelu": lambda: nn.PReLU(init=0.125),
    "elu": nn.ELU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "hardsigmoid": nn.Hardsigmoid,
}
GATES = tuple(GATE_MODULES)


class Apply(nn.Module):
    """A function of tensors as a module, so that its output has a path."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *operands):
        return self.function(*operands)


class CatConstant(nn.Module):
    """Puts constant elements in front of a vector, as a class token stands before the patches (S26)."""

    def __init__(self, constant):
        super().__init__()
        self.constant = nn.Parameter(constant)

    def forward(self, x):
        return torch.cat([self.constant.expand(x.shape[0], -1), x], dim=1)


class Steps(nn.Module):
    """Runs the modules of a `Dag` in order."""

    def __init__(self, dag):
        super().__init__()
        self.steps = nn.ModuleList(step.module for step in dag.steps[1:])
        self.wiring = [step.inputs for step in dag.steps[1:]]

    def forward(self, x):
        values = [x]
        for module, inputs in zip(self.steps, self.wiring, strict=True):
            values.append(module(*(values[i] for i in inputs)))
        return values[-1]


@dataclass
class Step:
    """One operation: its name, the steps it reads, its module and its output shape (one sample)."""

    op: str
    inputs: tuple
    module: nn.Module | None
    shape: tuple
    parameters: dict = field(default_factory=dict)


@dataclass
class Node:
    """One node in dense form. `kind` follows S3; `folded` marks a convolution that its batch norm swallowed."""

    kind: str
    inputs: tuple
    shape: tuple
    data: dict = field(default_factory=dict)
    non_negative: bool = False

    @property
    def size(self):
        return int(np.prod(self.shape))


class Dag:
    """Builds a network step by step; every method returns the index of the new step."""

    def __init__(self, shape):
        self.steps = [Step("input", (), None, tuple(shape))]

    def _add(self, op, inputs, module, shape, **parameters):
        self.steps.append(Step(op, tuple(inputs), module.double(), tuple(shape), parameters))
        return len(self.steps) - 1

    def __repr__(self):
        lines = [
            f"{i}: {s.op} {s.parameters.get('name', '')} of {s.inputs} → {s.shape}" for i, s in enumerate(self.steps)
        ]
        return "Dag(\n  " + "\n  ".join(lines) + "\n)"

    def shape(self, i):
        return self.steps[i].shape

    def size(self, i):
        return int(np.prod(self.shape(i)))

    # affine ---------------------------------------------------------------------------------------------------------
    def linear(self, i, weight, bias=None):
        weight = np.asarray(weight, dtype=float)
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        return self._add("linear", (i,), _filled(layer, weight, bias), (weight.shape[0],))

    def conv(self, i, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        weight = np.asarray(weight, dtype=float)
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        layer = nn.Conv2d(weight.shape[1] * groups, weight.shape[0], weight.shape[2:], bias=bias is not None, **options)
        _, shape = geometry.conv_matrix(weight, self.shape(i), **options)
        return self._add("conv", (i,), _filled(layer, weight, bias), shape, **options)

    # diagonal -------------------------------------------------------------------------------------------------------
    def batch_norm(self, i, scale, shift, mean, var):
        channels = self.shape(i)[0]
        layer = (nn.BatchNorm2d if len(self.shape(i)) == 3 else nn.BatchNorm1d)(channels)
        with torch.no_grad():
            for tensor, values in zip(
                (layer.weight, layer.bias, layer.running_mean, layer.running_var),
                (scale, shift, mean, var),
                strict=True,
            ):
                tensor.copy_(torch.as_tensor(np.asarray(values, dtype=float)))
        return self._add("batch_norm", (i,), layer, self.shape(i))

    # the rest -------------------------------------------------------------------------------------------------------
    def gate(self, i, name):
        return self._add("gate", (i,), GATE_MODULES[name](), self.shape(i), name=name)

    def add(self, i, j):
        return self._add("add", (i, j), Apply(lambda a, b: a + b), self.shape(i))

    def sub(self, i, j):
        return self._add("sub", (i, j), Apply(lambda a, b: a - b), self.shape(i))

    def maximum(self, i, j):
        return self._add("maximum", (i, j), Apply(torch.maximum), self.shape(i))

    def multiply(self, i, j, carriers):
        """Product of two live operands; `carriers` are the operands that take the mass (S17)."""
        return self._add("multiply", (i, j), Apply(lambda a, b: a * b), self.shape(i), carriers=tuple(carriers))

    def max_pool(self, i, kernel, stride=1, padding=0):
        groups, shape = geometry.max_groups(self.shape(i), kernel, stride, padding)
        return self._add("max_pool", (i,), nn.MaxPool2d(kernel, stride, padding), shape, groups=groups)

    def avg_pool(self, i, kernel, stride=1, padding=0, count_include_pad=True):
        matrix, shape = geometry.avg_matrix(self.shape(i), kernel, stride, padding, count_include_pad)
        layer = nn.AvgPool2d(kernel, stride, padding, count_include_pad=count_include_pad)
        return self._add("mix", (i,), layer, shape, matrix=matrix)

    def global_pool(self, i):
        matrix, shape = geometry.adaptive_avg_matrix(self.shape(i), (1, 1))
        return self._add("mix", (i,), nn.AdaptiveAvgPool2d(1), shape, matrix=matrix)

    def cat(self, i, j):
        shape = (self.shape(i)[0] + self.shape(j)[0], *self.shape(i)[1:])
        sources = [(0, k) for k in range(self.size(i))] + [(1, k) for k in range(self.size(j))]
        return self._add("wire", (i, j), Apply(lambda a, b: torch.cat([a, b], dim=1)), shape, sources=sources)

    def cat_constant(self, i, constant):
        constant = np.asarray(constant, dtype=float)
        module = CatConstant(torch.as_tensor(constant)[None])
        shape = (len(constant) + self.shape(i)[0],)
        return self._add("cat_constant", (i,), module, shape, constant=constant)

    def slice(self, i, start, stop):
        """Channels (or units) from `start` to `stop`."""
        inner = self.size(i) // self.shape(i)[0]
        sources = [(0, k) for k in range(start * inner, stop * inner)]
        shape = (stop - start, *self.shape(i)[1:])
        return self._add("wire", (i,), Apply(lambda a: a[:, start:stop]), shape, sources=sources)

    def flatten(self, i):
        sources = [(0, k) for k in range(self.size(i))]
        return self._add("wire", (i,), nn.Flatten(), (self.size(i),), sources=sources)

    def pad(self, i, width=1):
        """Zero padding as an operation of its own, before a convolution."""
        channels, height, breadth = self.shape(i)
        shape = (channels, height + 2 * width, breadth + 2 * width)
        sources = [
            (0, geometry.flat((c, y - width, x - width), self.shape(i)))
            if width <= y < height + width and width <= x < breadth + width
            else None
            for c in range(shape[0])
            for y in range(shape[1])
            for x in range(shape[2])
        ]
        module = Apply(lambda a: nn.functional.pad(a, (width,) * 4))
        return self._add("wire", (i,), module, shape, sources=sources)

    # the two readings -----------------------------------------------------------------------------------------------
    def module(self):
        """The network as a float64 `nn.Module` in eval mode; its output is the last step."""
        return Steps(self).double().eval()

    def nodes(self):
        """The network as dense nodes, one for each step, same order."""
        consumers = [sum(step.inputs.count(i) for step in self.steps) for i in range(len(self.steps))]
        nodes = []
        for step in self.steps:
            nodes.append(_dense(step, nodes, self, consumers))
        return nodes

    def addresses(self):
        """(module path or "input", node index) of every node whose output can be named."""
        nodes = self.nodes()
        return [("input" if i == 0 else f"steps.{i - 1}", i) for i, node in enumerate(nodes) if node.kind != "folded"]


def _filled(layer, weight, bias):
    with torch.no_grad():
        layer.double()
        layer.weight.copy_(torch.as_tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.as_tensor(np.asarray(bias, dtype=float)))
    return layer


def _array(tensor):
    return tensor.detach().double().numpy().copy()


def _dense(step, nodes, dag, consumers):
    """The dense node of one step."""
    if step.op == "input":
        return Node("input", (), step.shape)
    source = nodes[step.inputs[0]]
    if step.op in ("linear", "conv"):
        return _affine(step, source, dag)
    if step.op == "batch_norm":
        return _batch_norm(step, source, consumers[step.inputs[0]])
    if step.op == "gate":
        name = step.parameters["name"]
        return Node("gate", step.inputs, step.shape, {"name": name}, name in gates.NON_NEGATIVE)
    operands = all(nodes[i].non_negative for i in step.inputs)
    if step.op == "add":
        return Node("sum", step.inputs, step.shape, {"signs": (1, 1)}, operands)
    if step.op == "sub":
        return Node("sum", step.inputs, step.shape, {"signs": (1, -1)}, False)
    if step.op == "maximum":
        groups = [[(0, k), (1, k)] for k in range(source.size)]
        one = any(nodes[i].non_negative for i in step.inputs)  # the larger of two is no less than either of them
        return Node("max", step.inputs, step.shape, {"groups": groups}, one)
    if step.op == "max_pool":
        groups = [[(0, k) for k in group] for group in step.parameters["groups"]]
        return Node("max", step.inputs, step.shape, {"groups": groups}, operands)
    if step.op == "mix":
        return Node("mix", step.inputs, step.shape, {"weight": step.parameters["matrix"]}, operands)
    if step.op == "multiply":
        return Node("product", step.inputs, step.shape, {"carriers": step.parameters["carriers"]}, operands)
    if step.op == "cat_constant":
        constant = step.parameters["constant"]
        sources = [("constant", k) for k in range(len(constant))] + [(0, k) for k in range(source.size)]
        data = {"sources": sources, "constant": constant}
        return Node("wire", step.inputs, step.shape, data, operands and bool((constant >= 0).all()))
    return Node("wire", step.inputs, step.shape, {"sources": step.parameters["sources"]}, operands)


def _affine(step, source, dag):
    weight = _array(step.module.weight)
    if step.op == "conv":
        weight, _ = geometry.conv_matrix(weight, dag.shape(step.inputs[0]), **step.parameters)
    if source.kind == "wire":  # S6: padded zeros are no predecessors
        weight = weight.copy()
        weight[:, [k for k, s in enumerate(source.data["sources"]) if s is None]] = 0.0
    bias = np.zeros(len(weight))
    if step.module.bias is not None:
        bias = np.repeat(_array(step.module.bias), len(weight) // len(step.module.bias))
    return Node("affine", step.inputs, step.shape, {"weight": weight, "bias": bias})


def _batch_norm(step, source, consumers):
    layer = step.module
    scale = _array(layer.weight) / np.sqrt(_array(layer.running_var) + layer.eps)
    shift = _array(layer.bias) - _array(layer.running_mean) * scale
    inner = int(np.prod(step.shape)) // step.shape[0]
    scale, shift = np.repeat(scale, inner), np.repeat(shift, inner)
    if source.kind == "affine" and consumers == 1:  # S4
        weight = scale[:, None] * source.data["weight"]
        bias = scale * source.data["bias"] + shift
        source.kind = "folded"
        return Node("affine", source.inputs, step.shape, {"weight": weight, "bias": bias, "rounded": True})
    positive = source.non_negative and bool((scale >= 0).all() and (shift >= 0).all())
    return Node("diagonal", step.inputs, step.shape, {"scale": scale, "shift": shift}, positive)


# values ---------------------------------------------------------------------------------------------------------------
def values(nodes, x):
    """Value of every node on one flat input (None for a folded convolution)."""
    found = []
    for node in nodes:
        found.append(None if node.kind == "folded" else _value(node, [found[i] for i in node.inputs], x))
    return found


def _value(node, operands, x):
    data = node.data
    if node.kind == "input":
        return np.asarray(x, dtype=float)
    if node.kind == "affine":
        return data["weight"] @ operands[0] + data["bias"]
    if node.kind == "diagonal":
        return data["scale"] * operands[0] + data["shift"]
    if node.kind == "gate":
        return gates.value(data["name"], operands[0])
    if node.kind == "sum":
        return sum(s * a for s, a in zip(data["signs"], operands, strict=True))
    if node.kind == "max":
        return np.array([max(operands[k][i] for k, i in group) for group in data["groups"]])
    if node.kind == "mix":
        return data["weight"] @ operands[0]
    if node.kind == "product":
        return operands[0] * operands[1]
    return np.array([_wired(source, operands, data) for source in data["sources"]])


def _wired(source, operands, data):
    if source is None:
        return 0.0
    where, index = source
    return data["constant"][index] if where == "constant" else operands[where][index]


# rounding -------------------------------------------------------------------------------------------------------------
def is_delicate(nodes, found, margin=1e-7):
    """Whether a rounding error could change the game: a near-tie, or a near-zero, that is not exact.

    Dyadic weights and inputs make affine nodes exact, so exact ties and zeros remain part of the tests there.
    """
    exact = []
    for node, value in zip(nodes, found, strict=True):
        if node.kind == "folded":
            exact.append(None)
            continue
        before = [exact[i] for i in node.inputs]
        operands = [found[i] for i in node.inputs]
        if _near_tie(node, operands, before, margin):
            return True
        exact.append(_exact(node, operands, before))
        if np.any(~exact[-1] & (np.abs(value) < margin)) and node.kind != "gate":
            return True
    return False


def _near_tie(node, operands, exact, margin):
    gelu = node.kind == "gate" and node.data["name"] in ("gelu", "gelu_tanh")
    if gelu and np.any(np.abs(gates.openness(node.data["name"], operands[0])) < 1e-13):
        return True  # far left its own formula rounds to 0
    if node.kind == "gate" and node.data["name"] in gates.KINKED:
        kinks = {"relu6": (0, 6), "hardtanh": (-1, 0, 1), "hardsigmoid": (-3, 3), "hardswish": (-3, 0, 3)}
        for kink in kinks.get(node.data["name"], (0,)):
            if np.any((np.abs(operands[0] - kink) < margin) & ~exact[0]):
                return True
    if node.kind == "max":
        for group in node.data["groups"]:
            top = max(operands[k][i] for k, i in group)
            near = [(k, i) for k, i in group if operands[k][i] > top - margin]
            if len(near) > 1 and not all(exact[k][i] for k, i in near):
                return True
    return False


def _exact(node, operands, exact):
    """Elements whose float64 value is free of rounding however it is computed."""
    if node.kind == "input":
        return np.ones(node.size, dtype=bool)
    if node.kind == "gate":
        if node.data["name"] in ("relu", "relu6", "hardtanh"):
            z = operands[0]
            low, high = {"relu": (0, np.inf), "relu6": (0, 6), "hardtanh": (-1, 1)}[node.data["name"]]
            return exact[0] | (z < low) | (z > high)
        return np.zeros(node.size, dtype=bool)
    if node.kind in ("affine", "mix"):
        weight = node.data["weight"]
        dyadic = not node.data.get("rounded") and np.all(weight * 64 == np.round(weight * 64))
        alive = weight != 0
        zero = (operands[0] == 0) & exact[0]
        sure = np.array([dyadic and bool(exact[0][row].all()) for row in alive])
        vanishes = np.array([bool(zero[row].all()) for row in alive]) & (node.data.get("bias", 0.0) == 0)
        return sure | vanishes
    if node.kind == "diagonal":
        return np.zeros(node.size, dtype=bool)
    if node.kind == "sum":
        return exact[0] & exact[1]
    if node.kind == "product":
        zero = [(a == 0) & sure for a, sure in zip(operands, exact, strict=True)]
        return (exact[0] & exact[1]) | zero[0] | zero[1]
    if node.kind == "max":
        return np.array([all(exact[k][i] for k, i in group) for group in node.data["groups"]])
    return np.array([s is None or s[0] == "constant" or exact[s[0]][s[1]] for s in node.data["sources"]])
