"""The torch that the package needs. Importing this module looks at the one that is installed."""

import re

import torch

from backplay.errors import MissingLibraryError

# Networks are read from the graphs of torch.export, which differ between releases; this is the oldest one that the
# tests have read. pyproject.toml and the Makefile name it too, and a test holds the three together.
OLDEST_TORCH = "2.13"


def check_torch(version: str) -> None:
    """Refuse a torch that is older than `OLDEST_TORCH`; `version` is what `torch.__version__` says, `2.13.0+cpu`.

    A version that cannot be read, of a torch that somebody built, is let through.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and tuple(map(int, found.groups())) < tuple(map(int, OLDEST_TORCH.split("."))):
        raise MissingLibraryError(
            f"backplay needs torch {OLDEST_TORCH} or newer, and this is torch {version}.\n"
            f"Install it by its version: pip install torch=={OLDEST_TORCH}.0"
        )


check_torch(str(torch.__version__))
