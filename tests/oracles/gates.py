"""Every gate by name: its value, and what each game does there (S8), for numpy scalars and arrays.

`passing(name, z, game)` gives the signed factor with which mass goes on: the Stopping Game splits it into probability
`min(|g|, 1)`, discount `max(|g|, 1)` and a change of player; the Routing Game needs a probability only.
"""

import math

import numpy as np

SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717
GELU_C = math.sqrt(2.0 / math.pi)

# gates of the form z·h(z), h in [0, 1]: both games continue with probability h
SELF_GATED = ("gelu", "gelu_tanh", "silu", "hardswish", "mish")
# gates whose value is their slope times z, and Softplus, for which S8 gives c(z) in both games
HOMOGENEOUS = ("relu", "leaky_relu", "prelu", "softplus")
# gates with a kink, where a rounding error in z changes the game
KINKED = ("relu", "relu6", "hardtanh", "leaky_relu", "prelu", "hardsigmoid", "hardswish", "elu", "selu", "celu", "tanh")
NON_NEGATIVE = ("relu", "relu6", "sigmoid", "hardsigmoid", "softplus")  # S5

_erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(z):
    """Logistic function without overflow."""
    z = np.asarray(z, dtype=float)
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def softplus(z, theta=1.0):
    """θ log(1 + exp(z/θ)) without overflow."""
    z = np.asarray(z, dtype=float)
    return np.maximum(z, 0.0) + theta * np.log1p(np.exp(-np.abs(z) / theta))


def openness(name, z):
    """h(z) of a self-gated activation z·h(z)."""
    if name == "gelu":
        return 0.5 * (1.0 + _erf(z / math.sqrt(2.0)))
    if name == "gelu_tanh":
        return 0.5 * (1.0 + np.tanh(GELU_C * (z + 0.044715 * z**3)))
    if name == "silu":
        return sigmoid(z)
    if name == "hardswish":
        return np.clip((z + 3.0) / 6.0, 0.0, 1.0)
    if name == "mish":
        return np.tanh(softplus(z))
    raise KeyError(name)


def value(name, z, slope=0.125, theta=1.0):
    """The activation itself."""
    z = np.asarray(z, dtype=float)
    if name in SELF_GATED:
        return z * openness(name, z)
    table = {
        "relu": lambda: np.maximum(z, 0.0),
        "relu6": lambda: np.clip(z, 0.0, 6.0),
        "hardtanh": lambda: np.clip(z, -1.0, 1.0),
        "leaky_relu": lambda: np.where(z > 0, z, slope * z),
        "prelu": lambda: np.where(z > 0, z, slope * z),
        "elu": lambda: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))),
        "celu": lambda: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))),
        "selu": lambda: SELU_SCALE * np.where(z > 0, z, SELU_ALPHA * np.expm1(np.minimum(z, 0.0))),
        "softplus": lambda: softplus(z, theta),
        "sigmoid": lambda: sigmoid(z),
        "tanh": lambda: np.tanh(z),
        "hardsigmoid": lambda: np.clip((z + 3.0) / 6.0, 0.0, 1.0),
    }
    return table[name]()


def slope_at(name, z, slope=0.125, theta=1.0):
    """Derivative of the activations whose Stopping Game follows the slope; one-sided values as in PyTorch."""
    z = np.asarray(z, dtype=float)
    table = {
        "relu": lambda: (z > 0).astype(float),
        "relu6": lambda: ((z > 0) & (z < 6)).astype(float),
        "hardtanh": lambda: ((z > -1) & (z < 1)).astype(float),
        "leaky_relu": lambda: np.where(z > 0, 1.0, slope),
        "prelu": lambda: np.where(z > 0, 1.0, slope),
        "elu": lambda: np.where(z > 0, 1.0, np.exp(np.minimum(z, 0.0))),
        "celu": lambda: np.where(z > 0, 1.0, np.exp(np.minimum(z, 0.0))),
        "selu": lambda: SELU_SCALE * np.where(z > 0, 1.0, SELU_ALPHA * np.exp(np.minimum(z, 0.0))),
        "softplus": lambda: np.where(z / theta > 20.0, 1.0, sigmoid(z / theta)),  # torch's threshold (S3a)
        "sigmoid": lambda: sigmoid(z) * sigmoid(-z),
        "tanh": lambda: 1.0 - np.tanh(z) ** 2,
        "hardsigmoid": lambda: np.where((z > -3) & (z < 3), 1.0 / 6.0, 0.0),
    }
    return table[name]()


def passing(name, z, game, **parameters):
    """Signed factor with which mass passes the gate in `game` ("stopping" or "routing")."""
    z = np.asarray(z, dtype=float)
    if name in SELF_GATED:
        return openness(name, z)
    if game == "stopping" or name in HOMOGENEOUS:
        return slope_at(name, z, **parameters)
    return (value(name, z, **parameters) != 0).astype(float)
