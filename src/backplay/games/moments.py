"""`bp.moments`: assumed-density filtering of a network on an input."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from backplay.entry import entry
from backplay.errors import InputTypeError
from backplay.games.inputs import Inputs, read_inputs
from backplay.games.keywords import Choice, Number
from backplay.network import Network, capture
from backplay.values.forward import Values
from backplay.values.moments import Moments


@entry
def moments(
    model: nn.Module | Network, x: Inputs, input_variance: float, mean: Literal["real", "filtered"] = "real"
) -> Moments:
    """Mean and variance at every node under independent Gaussian noise of `input_variance` on every input element.

    `mean="real"` is what the games use; `mean="filtered"` is the textbook filter, which Monte-Carlo can check.

    >>> bp.moments(model, x, 0.1)["fc"].variance
    """
    input_variance = Number(0.0, 0).check("input_variance", input_variance)
    Choice("real", ("real", "filtered")).check("mean", mean)
    if not isinstance(model, (nn.Module, Network)):
        raise InputTypeError(f"moments takes a torch.nn.Module or a Network, got {type(model).__name__}.")
    keywords = read_inputs(x)
    network = model if isinstance(model, Network) else capture(model, keywords)
    inputs = network.check(keywords)
    with torch.inference_mode(False), torch.no_grad():
        return Moments(Values(network, inputs, network.weights()), input_variance, mean).advance()
