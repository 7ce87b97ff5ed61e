"""What every test needs: the torchvision shim, and the same random numbers in every run."""

import ctypes
import gc
import warnings

import pytest
import torch

from backplay.interop.torchvision import ensure

ensure()


@pytest.fixture(autouse=True)
def seed():
    """Same random numbers in every run, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def tidy(request):
    """Slow tests hold gigabytes: what they leave behind is gone before the next one begins."""
    yield
    if request.node.get_closest_marker("slow"):
        gc.collect()
        if hasattr(ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was freed
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def quiet():
    """For games with alpha − beta ≠ 1, which warn once by design."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# tests that hold ten gigabytes and more: `make test` runs them one after the other, when all others are done
LARGE = ("test_full_size[vgg16]", "test_whole_networks", "test_vit_b_16_precision")
LONGEST = "test_figures"  # minutes: begun last, it would keep one process busy while the other has nothing left


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST not in item.nodeid)
    for item in items:
        if item.get_closest_marker("slow") and any(word in item.nodeid for word in LARGE):
            item.add_marker(pytest.mark.large)
