"""Class activation maps: a feature map weighed by the gradient that arrives at it.

A map is (B, 1, H, W): the sum over channels, enlarged bilinearly to the size of the input. The ReLU with which the
published formulas end is left to the caller: `rectify=True` applies it, before the enlargement. Nothing is rescaled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from backplay.keywords import Choice, Layer
from backplay.methods.maps import find_map
from backplay.methods.registry import method
from backplay.methods.subject import Subject, differentiated
from backplay.values.forward import Values

Formula = Callable[[Tensor, Tensor], Tensor]  # activations and gradients (B, C, h, w) -> weights that broadcast

_PARAMS = {
    "layer": Layer(note="where the feature map is read; None: the last one before pooling and flattening"),
    "rectify": Choice(False, (False, True), note="whether the sum over channels ends in a ReLU"),
}


def _cam(name: str, title: str, reference: str) -> Callable[[Formula], Formula]:
    """Register a formula for the weights of a feature map."""

    def register(weigh: Formula) -> Formula:
        def explain(subject: Subject, layer: str | None, rectify: bool) -> Tensor:
            activations, gradients = activations_and_gradients(subject, layer)
            summed = (weigh(activations, gradients) * activations).sum(1, keepdim=True)
            summed = summed.relu() if rectify else summed
            return functional.interpolate(summed, subject.x.shape[-2:], mode="bilinear", align_corners=False)

        explain.__doc__ = weigh.__doc__
        needs = ("image", "convolution", "map")
        method(
            name,
            title=title,
            family="cam and attention",
            reference=reference,
            architectures=("cnn", "transformer with feature maps"),  # those of a convolutional stem
            needs=needs,
            params=_PARAMS,
        )(explain)
        return weigh

    return register


@_cam("gradcam", "GCAM", "Selvaraju et al., 2017, arXiv:1610.02391")
def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM: each channel by its mean gradient."""
    return gradients.mean((2, 3), keepdim=True)


@_cam("gradcam_pp", "GCAM++", "Chattopadhyay et al., 2018, arXiv:1710.11063")
def gradcam_pp(activations: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM++: each channel by `Σ α ReLU(g)`, `α = g² / (2g² + g³ ΣA)` for the score `exp(logit)`.

    The factor `exp(logit)` that all weights of a sample share is left out.
    """
    squares = gradients.square()
    below = 2 * squares + squares * gradients * activations.sum((2, 3), keepdim=True)
    alpha = squares / torch.where(below == 0, 1, below)
    return (alpha * gradients.relu()).sum((2, 3), keepdim=True)


@_cam("layercam", "LCAM", "Jiang et al., 2021, doi:10.1109/TIP.2021.3089943")
def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """LayerCAM: each place of each channel by its positive gradient."""
    return gradients.relu()


@_cam("hirescam", "HiResCAM", "Draelos and Carin, 2020, arXiv:2011.08891")
def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """HiResCAM: each place of each channel by its gradient; its formula has no ReLU at the end."""
    return gradients


def activations_and_gradients(subject: Subject, layer: str | None) -> tuple[Tensor, Tensor]:
    """The feature map at a layer and the gradient of the target's logit there, (B, C, h, w) both."""
    network = subject.network
    start = find_map(network, layer)
    values = Values(network, subject.inputs, network.weights())
    return values[start], differentiated(values, start, subject.weights)
