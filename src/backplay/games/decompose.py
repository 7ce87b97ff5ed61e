"""`bp.decompose`: one of the three decompositions of a network on an input."""

from __future__ import annotations

from typing import Any

import torch

from backplay.entry import entry
from backplay.errors import KeywordError
from backplay.games.keywords import Choice, Number
from backplay.network import Model, read_model
from backplay.network.arguments import Inputs
from backplay.network.captures import Captures
from backplay.values.decomposition import Decomposition, mixing, softplus, stopping
from backplay.values.forward import Values


@entry
def decompose(
    model: Model,
    x: Inputs,
    kind: str = "stopping",
    *,
    eta: float | None = None,
    theta: float | None = None,
    additional_forward_args: Any = None,
) -> Decomposition:
    """Non-negative pairs at every node: `"stopping"`, `"mixing"` (with `eta` in [0, 1]) or `"softplus"` (`theta` > 0).

    >>> bp.decompose(model, x)["features.3"].plus
    """
    Choice("stopping", ("stopping", "mixing", "softplus")).check("kind", kind)
    _check_parameter("eta", eta, kind == "mixing")
    _check_parameter("theta", theta, kind == "softplus")
    network, inputs = Captures(read_model(model, "decompose")).prepare(x, additional_forward_args)
    deform: Any = None
    activation = stopping
    if eta is not None:
        Number(0.5, 0, high=1).check("eta", eta)
        activation = mixing(eta)
    elif theta is not None:
        Number(1.0, 0, strict=True).check("theta", theta)
        activation, deform = softplus(theta)
    with torch.inference_mode(False), torch.no_grad():
        return Decomposition(Values(network, inputs, network.weights(), deform), activation)


def _check_parameter(name: str, value: float | None, needed: bool) -> None:
    if needed and value is None:
        raise KeywordError(f"this kind of decomposition needs {name}=….")
    if not needed and value is not None:
        raise KeywordError(f"{name}={value!r} does not belong to this kind of decomposition; leave it out.")
