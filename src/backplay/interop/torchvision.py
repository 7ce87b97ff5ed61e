"""Import torchvision where its compiled operators do not load.

A torchvision built for CUDA next to a torch built for CPU cannot load its extension, and `import torchvision` then dies
on ``operator torchvision::nms does not exist``, although networks and transforms need no such operator. zennit, timm
and others import torchvision and die with it.
"""

import importlib
import sys
import threading
from types import ModuleType

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_MISSING = tuple(f"operator torchvision::{name} does not exist" for name in ("nms", "qnms"))

_lock = threading.Lock()
_declared: list[torch.library.Library] = []  # an operator lives as long as the library that declares it


def ensure() -> ModuleType:
    """Import torchvision and return it; declare the operators that it misses only if the import fails for want of them.

    Call it before anything that imports torchvision. Calling it again, or where the real operators exist, only imports.
    The declared operators have no implementation: using one (box suppression, that is) raises, as it would without.
    Any other failure of the import, a torchvision that is not installed first of all, is raised as it is.
    """
    with _lock:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if _declared or not any(missing in str(error) for missing in _MISSING):
                raise
        _forget_half_import()
        _declared.append(_declare())
        return importlib.import_module("torchvision")


def _forget_half_import() -> None:
    """Drop the submodules that the failed import left behind, so that the next one starts afresh."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + _SCHEMA)
    return library
