"""A real browser for the tests of the explorer: the one on the PATH, or Debian's, installed by whoever may."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIBRARIES = ("gradio", "playwright")
INSTALL = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")


def browser():
    """The path of a chromium; the test is skipped, with what to do, where there is none and none can be installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: pip install 'backplay[dev]'")
    found = on_the_path() or installed()
    if found is None:
        pytest.skip("no chromium on the PATH, and none could be installed; on Debian, as root: apt install chromium")
    return found


def on_the_path():
    return next(filter(None, map(shutil.which, NAMES)), None)


def installed():
    """Debian's chromium, where apt is there and may be used; one process installs while others wait for it."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return None
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False, "timeout": 600}
    with (Path(tempfile.gettempdir()) / "backplay-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if on_the_path() is None:
            try:
                subprocess.run(["apt-get", "update", "-qq"], **quiet)
                subprocess.run(INSTALL, **quiet)
            except subprocess.TimeoutExpired:
                return None
    return on_the_path()
