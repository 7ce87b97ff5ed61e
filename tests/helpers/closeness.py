"""How near two tensors have to be: one measure for all tests."""

import numpy as np
import torch


def array(values):
    """A float64 numpy array of a tensor or array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=float)


def assert_near(found, expected, relative=1e-10, scale=None, what=""):
    """Largest error at most `relative` times the largest expected number (or `scale`)."""
    found, expected = array(found), array(expected)
    assert found.size == expected.size, f"{what}: {found.shape} against {expected.shape}"
    found = found.reshape(expected.shape)
    assert np.isfinite(found).all(), f"{what}: not finite"
    size = np.abs(expected).max(initial=0.0) if scale is None else scale
    error = np.abs(found - expected).max(initial=0.0)
    assert error <= relative * size, f"{what}: error {error:.3e} on numbers of size {size:.3e}{_shown(found, expected)}"


def _shown(found, expected):
    return f"\n{found}\n{expected}" if found.size <= 40 else ""


def l1_relative(found, expected):
    """Σ|found − expected| / Σ|expected|."""
    found, expected = array(found), array(expected)
    return np.abs(found - expected).sum() / np.abs(expected).sum()


def unscaled(values, log_scale):
    """values · exp(log_scale), one scale for each sample."""
    values, log_scale = array(values), array(log_scale)
    assert log_scale.shape == values.shape[:1], "log scales have shape (B,)"
    return values * np.exp(log_scale).reshape(-1, *(1,) * (values.ndim - 1))


def same_law(dtype):
    """A distance at most this is 0: the root of what a few dozen roundings leave of `1 − BC`."""
    return (64 * torch.finfo(dtype).eps) ** 0.5
