"""`bp.moments`: assumed-density filtering of a network on an input."""

from __future__ import annotations

from typing import Any, Literal

import torch

from backplay.entry import entry
from backplay.games.keywords import Choice, Number
from backplay.network import Model, read_model
from backplay.network.arguments import Inputs
from backplay.network.captures import Captures
from backplay.values.forward import Values
from backplay.values.moments import Moments


@entry
def moments(
    model: Model,
    x: Inputs,
    input_variance: float,
    mean: Literal["real", "filtered"] = "real",
    additional_forward_args: Any = None,
) -> Moments:
    """Mean and variance at every node under independent Gaussian noise of `input_variance` on every input element.

    `mean="real"` is what the games use; `mean="filtered"` is the textbook filter, which Monte-Carlo can check.

    >>> bp.moments(model, x, 0.1)["fc"].variance
    """
    input_variance = Number(0.0, 0).check("input_variance", input_variance)
    Choice("real", ("real", "filtered")).check("mean", mean)
    network, inputs = Captures(read_model(model, "moments")).prepare(x, additional_forward_args)
    with torch.inference_mode(False), torch.no_grad():
        return Moments(Values(network, inputs, network.weights()), input_variance, mean).advance()
