"""What every test needs: the torchvision shim, and the same random numbers in every run."""

import warnings

import pytest
import torch

from backplay.interop.torchvision import ensure

ensure()


@pytest.fixture(autouse=True)
def seed():
    """Same random numbers in every run, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture
def quiet():
    """For games with alpha − beta ≠ 1, which warn once by design."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
