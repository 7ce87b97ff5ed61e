"""`bp.moments`: assumed-density filtering of a network on an input."""

from __future__ import annotations

from typing import Literal

import torch

from backplay.entry import entry
from backplay.games.inputs import Inputs, read_inputs
from backplay.games.keywords import Choice, Number
from backplay.network import Model, Network, capture, read_model
from backplay.values.forward import Values
from backplay.values.moments import Moments


@entry
def moments(model: Model, x: Inputs, input_variance: float, mean: Literal["real", "filtered"] = "real") -> Moments:
    """Mean and variance at every node under independent Gaussian noise of `input_variance` on every input element.

    `mean="real"` is what the games use; `mean="filtered"` is the textbook filter, which Monte-Carlo can check.

    >>> bp.moments(model, x, 0.1)["fc"].variance
    """
    input_variance = Number(0.0, 0).check("input_variance", input_variance)
    Choice("real", ("real", "filtered")).check("mean", mean)
    model = read_model(model, "moments")
    keywords = read_inputs(x)
    network = model if isinstance(model, Network) else capture(model, keywords)
    inputs = network.check(keywords)
    with torch.inference_mode(False), torch.no_grad():
        return Moments(Values(network, inputs, network.weights()), input_variance, mean).advance()
