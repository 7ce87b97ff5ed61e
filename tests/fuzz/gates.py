"""Every gate in its spellings, with what S8 and S3a say of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fuzz.reference import Node, Tape

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Gate:
    """One activation: its value, its factor in the Stopping Game and its chance in the Routing Game.

    Without `chance` it is an "other activation" of S8: its slope, and 1 where the value is not 0. With `clipped` it is
    of hardtanh type.
    """

    value: Function
    spellings: dict[str, Function | Callable[[], nn.Module]]
    chance: Function | None = None
    nonnegative: bool = False
    kinks: tuple[float, ...] = ()
    zero: bool = False  # well defined at a kink itself
    tail: bool = False  # torch's own formula has few digits far left of 0

    def at(self, tape: Tape, a: Node) -> Node:
        z = a.value
        tape.careful(z, *self.kinks, exact=self.zero)
        # behind such a gate the model itself computes on lost digits: a high temperature lifts them, rerouting and a
        # maximum ask whether there is anything at all
        lifted = tape.rules.tau > 1 or tape.rules.empty_stream == "reroute"
        tape.delicate |= self.tail and lifted and bool((z < -4).any())
        if self.chance is not None:
            c = self.chance(z)
            return tape.gate(a, self.value(z), c, c, self.nonnegative)
        with torch.enable_grad():
            at = z.detach().clone().requires_grad_()
            out = self.value(at)
            (slope,) = torch.autograd.grad(out.sum(), at)
        value = out.detach()
        tape.careful(z, 0.0)
        return tape.gate(a, value, slope, (value != 0).double(), self.nonnegative)


def _step(z: Tensor) -> Tensor:
    return (z > 0).to(z.dtype)


def _phi(z: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-z / math.sqrt(2))


def _phi_tanh(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def _in_place(function: Callable[[Tensor], object]) -> Function:
    """On a copy, so that other readers keep theirs."""

    def spelled(x: Tensor) -> Tensor:
        y = x.clone()
        function(y)
        return y

    return spelled


def _halves(x: Tensor) -> Tensor:
    e, f = torch.exp(x), torch.exp(-x)
    return (e - f) / (e + f)


SLOPE = 0.125
GELU_C = math.sqrt(2 / math.pi)

GATES: dict[str, Gate] = {
    "relu": Gate(
        torch.relu,
        {
            "nn.ReLU": nn.ReLU,
            "nn.ReLU(inplace)": lambda: nn.Sequential(nn.Identity(), nn.ReLU(inplace=False)),
            "F.relu": F.relu,
            "relu_": _in_place(torch.Tensor.relu_),
            "clamp(min=0)": lambda x: x.clamp(min=0),
            "clamp_min": lambda x: x.clamp_min(0.0),
            "maximum(x, 0)": lambda x: torch.maximum(x, torch.zeros_like(x)),
            "maximum(x, const)": lambda x: torch.maximum(x, torch.tensor(0.0, dtype=x.dtype)),
            "where(x > 0, x, 0)": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
            "where(x > 0, x, 0.0)": lambda x: torch.where(x > 0, x, 0.0),
            "where(x < 0, 0, x)": lambda x: torch.where(x < 0, 0.0, x),
        },
        _step,
        nonnegative=True,
        kinks=(0.0,),
        zero=True,
    ),
    "relu6": Gate(
        F.relu6,
        {
            "nn.ReLU6": nn.ReLU6,
            "F.relu6": F.relu6,
            "clamp(0, 6)": lambda x: x.clamp(0, 6),
            "hardtanh(0, 6)": lambda x: F.hardtanh(x, 0.0, 6.0),
        },
        nonnegative=True,
        kinks=(0.0, 6.0),
    ),
    "hardtanh": Gate(
        F.hardtanh,
        {
            "nn.Hardtanh": nn.Hardtanh,
            "F.hardtanh": F.hardtanh,
            "clamp(-1, 1)": lambda x: x.clamp(-1, 1),
            "clip": lambda x: torch.clip(x, -1, 1),
            "minimum(maximum)": lambda x: torch.minimum(
                torch.maximum(x, torch.tensor(-1.0, dtype=x.dtype)), torch.tensor(1.0, dtype=x.dtype)
            ),
            "clamp_": _in_place(lambda y: y.clamp_(-1, 1)),
        },
        kinks=(-1.0, 1.0),
    ),
    "capped": Gate(
        lambda z: z.clamp(max=0.5),
        {
            "clamp(max=.5)": lambda x: x.clamp(max=0.5),
            "minimum(x, .5)": lambda x: torch.minimum(x, torch.full_like(x, 0.5)),
            "where(x < .5, x, .5)": lambda x: torch.where(x < 0.5, x, 0.5),
        },
        kinks=(0.5,),
    ),
    "leaky_relu": Gate(
        lambda z: torch.where(z > 0, z, SLOPE * z),
        {
            "nn.LeakyReLU": lambda: nn.LeakyReLU(SLOPE),
            "F.leaky_relu": lambda x: F.leaky_relu(x, SLOPE),
            "where(x > 0, x, s*x)": lambda x: torch.where(x > 0, x, SLOPE * x),
            "where(x >= 0, x, x*s)": lambda x: torch.where(x >= 0, x, x * SLOPE),
            "nn.PReLU": lambda: nn.PReLU(init=SLOPE),
        },
        lambda z: torch.where(z > 0, 1.0, SLOPE),
        kinks=(0.0,),
    ),
    "elu": Gate(F.elu, {"nn.ELU": nn.ELU, "F.elu": F.elu, "nn.CELU": nn.CELU}, kinks=(0.0,)),
    "selu": Gate(F.selu, {"nn.SELU": nn.SELU, "F.selu": F.selu}, kinks=(0.0,)),
    "gelu": Gate(
        lambda z: z * _phi(z),
        {
            "nn.GELU": nn.GELU,
            "F.gelu": F.gelu,
            "0.5*x*(1 + erf(x/√2))": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
            "x*0.5*(1 + erf(x/√2))": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
            "x*(0.5*(1 + erf))": lambda x: x * (0.5 * (1.0 + torch.erf(x * 0.7071067811865476))),
        },
        _phi,
        tail=True,
    ),
    "gelu_tanh": Gate(
        lambda z: z * _phi_tanh(z),
        {
            "nn.GELU(tanh)": lambda: nn.GELU(approximate="tanh"),
            "GPT-2": lambda x: 0.5 * x * (1.0 + torch.tanh(GELU_C * (x + 0.044715 * torch.pow(x, 3.0)))),
            "GPT-2, x*x*x": lambda x: 0.5 * x * (1.0 + torch.tanh(GELU_C * (x + 0.044715 * x * x * x))),
            "fast GELU": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608028654 * (1.0 + 0.044715 * x * x))),
        },
        _phi_tanh,
        tail=True,
    ),
    "silu": Gate(
        F.silu,
        {
            "nn.SiLU": nn.SiLU,
            "F.silu": F.silu,
            "x*sigmoid(x)": lambda x: x * torch.sigmoid(x),
            "sigmoid(x)*x": lambda x: x.sigmoid().mul(x),
            "x/(1 + exp(-x))": lambda x: x / (1 + torch.exp(-x)),
            "silu_": _in_place(lambda y: F.silu(y, inplace=True)),
            "mul_": lambda x: x.clone().mul_(torch.sigmoid(x)),
        },
        torch.sigmoid,
    ),
    "hardswish": Gate(
        F.hardswish,
        {
            "nn.Hardswish": nn.Hardswish,
            "F.hardswish": F.hardswish,
            "x*relu6(x + 3)/6": lambda x: x * F.relu6(x + 3) / 6,
            "x*(relu6(x + 3)/6)": lambda x: x * (F.relu6(x + 3) / 6),
            "relu6(x + 3)*x/6": lambda x: F.relu6(x + 3) * x / 6,
            "x/6*relu6(x + 3)": lambda x: x / 6 * F.relu6(x + 3),
            "x*hardsigmoid(x)": lambda x: x * F.hardsigmoid(x),
            "x*clamp(x/6 + .5, 0, 1)": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
        },
        lambda z: ((z + 3) / 6).clamp(0, 1),
        kinks=(-3.0, 3.0),
        zero=True,
    ),
    "mish": Gate(
        F.mish,
        {"nn.Mish": nn.Mish, "F.mish": F.mish, "x*tanh(softplus(x))": lambda x: x * torch.tanh(F.softplus(x))},
        lambda z: torch.tanh(F.softplus(z)),
    ),
    "quick_gelu": Gate(
        lambda z: z * torch.sigmoid(1.702 * z),
        {
            "x*sigmoid(1.702*x)": lambda x: x * torch.sigmoid(1.702 * x),
            "sigmoid(x*1.702)*x": lambda x: torch.sigmoid(x * 1.702) * x,
        },
        lambda z: torch.sigmoid(1.702 * z),
    ),
    "softplus": Gate(
        F.softplus,
        {"nn.Softplus": nn.Softplus, "F.softplus": F.softplus},
        torch.sigmoid,
        nonnegative=True,
    ),
    "softplus_sharp": Gate(
        lambda z: F.softplus(z, beta=3.0, threshold=0.5),
        {
            "nn.Softplus(3, .5)": lambda: nn.Softplus(3.0, 0.5),
            "F.softplus(3, .5)": lambda x: F.softplus(x, beta=3.0, threshold=0.5),
        },
        lambda z: torch.where(3 * z > 0.5, 1.0, torch.sigmoid(3 * z)),
        nonnegative=True,
        kinks=(0.5 / 3,),
    ),
    "sigmoid": Gate(torch.sigmoid, {"nn.Sigmoid": nn.Sigmoid, "torch.sigmoid": torch.sigmoid}, nonnegative=True),
    "hardsigmoid": Gate(
        lambda z: ((z + 3) / 6).clamp(0, 1),  # torch's own slope is rounded to float32
        {"nn.Hardsigmoid": nn.Hardsigmoid, "F.hardsigmoid": F.hardsigmoid},
        nonnegative=True,
        kinks=(-3.0, 3.0),
    ),
    "tanh": Gate(
        torch.tanh,
        {"nn.Tanh": nn.Tanh, "torch.tanh": torch.tanh, "(e - 1/e)/(e + 1/e)": _halves},
    ),
    "square": Gate(
        torch.square,
        {
            "x*x": lambda x: x * x,
            "x**2": lambda x: x**2,
            "square": torch.square,
            "pow(2)": lambda x: torch.pow(x, 2.0),
        },
        nonnegative=True,
    ),
    "cube": Gate(lambda z: z**3, {"x*x*x": lambda x: x * x * x, "x**3": lambda x: x**3}),
    "signed_square": Gate(
        lambda z: z * z.abs(), {"x*|x|": lambda x: x * x.abs(), "abs(x)*x": lambda x: torch.abs(x) * x}
    ),
    "x_tanh": Gate(lambda z: z * torch.tanh(z), {"x*tanh(x)": lambda x: x * torch.tanh(x)}, nonnegative=True),
    "softsign": Gate(
        F.softsign,
        {
            "nn.Softsign": nn.Softsign,
            "F.softsign": F.softsign,
            "x/(1 + |x|)": lambda x: x / (1 + x.abs()),
            "x/(|x| + 1)": lambda x: x / (torch.abs(x) + 1.0),
        },
    ),
    "abs": Gate(torch.abs, {"abs": torch.abs}, nonnegative=True, kinks=(0.0,)),
}

# factors of a product whose values stay within [0, 1]: S17 holds them fixed
FACTORS: dict[str, dict[str, Function]] = {
    "sigmoid": {
        "sigmoid": torch.sigmoid,
        "0.5*tanh(x/2) + 0.5": lambda k: 0.5 * torch.tanh(k / 2) + 0.5,
        "1/(1 + exp(-x))": lambda k: 1 / (1 + torch.exp(-k)),
    },
    "hardsigmoid": {
        "hardsigmoid": F.hardsigmoid,
        "relu6(x + 3)/6": lambda k: F.relu6(k + 3) / 6,
        "clamp(x/6 + .5, 0, 1)": lambda k: (k / 6 + 0.5).clamp(0, 1),
    },
    "silu": {"silu": F.silu, "x*sigmoid(x)": lambda k: k * torch.sigmoid(k)},
    "gelu": {"gelu": F.gelu},
}
FACTOR_VALUES: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
}


def spelled(rng: random.Random, name: str) -> tuple[str, Function]:
    """A gate in one of its spellings, as a module or a function."""
    words = rng.choice(list(GATES[name].spellings))
    made = GATES[name].spellings[words]
    return words, built(made, words)


def built(made, words: str) -> Function:
    """Classes and makers of modules are called once; functions are what they are."""
    if words.startswith("nn."):
        module = made()
        return module.double().eval()
    return made
