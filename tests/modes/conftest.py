"""Hand-written formulas need no gradients; tests that do ask for them."""

import pytest
import torch


@pytest.fixture(autouse=True)
def without_gradients():
    """Autograd off, as for any other forward pass by hand."""
    with torch.no_grad():
        yield
