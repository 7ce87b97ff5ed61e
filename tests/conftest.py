"""What every test needs: the torchvision shim, the same random numbers in every run, and graphs that it shares."""

import ctypes
import fcntl
import gc
import mmap
import warnings
from pathlib import Path

import pytest
import torch
import torch._dynamo.config

from alike import CAPTURE, Shared
from backplay.interop.torchvision import ensure

ensure()
SHARED = Shared()


@pytest.fixture(autouse=True)
def seed():
    """Same random numbers in every run, whatever ran before."""
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Models that are built alike are followed by torch.export once for many tests, but for tests of capture.

    No fixture: those of a module are made before those of a test, and capture models too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CAPTURE, "export", quickly)
        if not item.get_closest_marker("capture"):
            patch.setattr(CAPTURE, "_compared", SHARED)
        return (yield)


def quickly(model, arguments, export=CAPTURE.export):
    """The program of a model. torch.export remembers the shapes that operators give, which takes time on small models.

    It pays where layers are repeated, from some forty modules on.
    """
    repeated = sum(1 for _ in model.modules()) > 40
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=repeated):
        return export(model, arguments)


@pytest.fixture
def without_gradients():
    """Autograd off, as for any other forward pass by hand."""
    with torch.no_grad():
        yield


@pytest.fixture
def quiet():
    """For games with alpha − beta ≠ 1, which warn once by design."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def resident():
    """Bytes that this process holds; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


class Held:
    """Bytes that this process held when its garbage was last collected."""

    bytes = 0


@pytest.fixture(autouse=True)
def tidy(request):
    """Slow tests may hold gigabytes: what they leave behind is gone before it is much.

    The collector takes a second to look through everything, so it is asked only where half a gigabyte came together.
    """
    yield
    if not request.node.get_closest_marker("slow") or resident() - Held.bytes < 2**29:
        return
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was freed
        ctypes.CDLL(None).malloc_trim(0)
    Held.bytes = resident()


@pytest.fixture(autouse=True)
def alone(request, tmp_path_factory):
    """Two tests marked `large` at once would outgrow the memory: each waits for its turn, whatever process runs it."""
    if not request.node.get_closest_marker("large"):
        yield
        return
    with (tmp_path_factory.getbasetemp().parent / "large.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Long tests first: begun last, one would keep a process busy while the other has nothing left."""
    items.sort(key=lambda item: [item.get_closest_marker(mark) is None for mark in ("longest", "large", "slow")])
