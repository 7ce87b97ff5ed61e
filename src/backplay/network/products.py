"""Products of matrices by the fastest library that torch brings along.

torch hands a product of float32 matrices on a processor to the BLAS that it was built with. On some processors that
takes twice as long as oneDNN, which torch has for its convolutions, so a game's products with the matrix of a linear
layer go there. The forward pass does not: it calls the operators that the model calls, because a gate that stands near
0 opens or stays shut by their last digits, and a gate that the model has shut must be shut for the players.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


def _find() -> Any:
    """oneDNN's product of a matrix with a weight; None where this build of torch has none."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():
        return None  # without MKL the BLAS is another one, and nothing is known of its speed
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_LINEAR = _find()


def serves(*tensors: Tensor) -> bool:
    """Whether oneDNN can compute with these; who has switched it off is not given it by another door."""
    return _LINEAR is not None and bool(torch.backends.mkldnn.enabled) and all(map(_is_served, tensors))


def _is_served(tensor: Tensor) -> bool:
    differentiated = tensor.requires_grad and torch.is_grad_enabled()
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and not differentiated


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """`x Wᵀ` over the last dimension, for a weight (out, in)."""
    # one row alone is bound by reading the weight, and both libraries read as fast
    if x.numel() <= weight.shape[1] or not serves(x, weight):
        return linear(x, weight)
    assert _LINEAR is not None
    return _LINEAR(x, weight, None, "none", [], "")


def pixels_serve(images: Tensor, weight: Tensor) -> bool:
    """Whether `at_each_pixel` is the quicker way: torch gives such convolutions to oneDNN itself, but for these."""
    return len(images) == 1 and torch.get_num_threads() == 1 and serves(images, weight)


def at_each_pixel(weight: Tensor, image: Tensor) -> Tensor:
    """`W x` at every pixel of a single image (1, in, …), for a weight (out, in): a convolution that sees one pixel.

    The pixels stand for the weight, so that image and result may lie as they do for torch's convolutions.
    """
    pixels = image[0].flatten(1).T
    return multiply(weight, pixels).view(1, len(weight), *image.shape[2:])
