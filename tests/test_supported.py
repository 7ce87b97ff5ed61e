"""Which torch is asked for: one number in the package, in its metadata and in the environment that tests run in."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import backplay as bp
from backplay.supported import OLDEST_TORCH, check_torch

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("version", ["2.12.1", "2.9.0+cu128", "1.13.1", "2.12.0a0+git1234"])
def test_an_older_torch_is_refused(version):
    """In two lines that say what was found, what is needed and how to get it; as an ImportError too."""
    with pytest.raises(bp.BackplayError) as caught:
        check_torch(version)
    first, second = str(caught.value).splitlines()
    assert isinstance(caught.value, ImportError)
    assert version in first and f"torch {OLDEST_TORCH}" in first and f"pip install torch=={OLDEST_TORCH}.0" in second


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.14.1", "3.0.0", "2.13.0a0+git1234", "built here"])
def test_others_are_let_through(version):
    check_torch(version)


def test_the_import_itself_refuses():
    """Before any part of the package asks an older torch for what it does not have."""
    code = "import torch; torch.__version__ = '2.4.1'; del torch.export; import backplay"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingLibraryError: backplay needs torch 2.13 or newer, and this is torch 2.4.1." in done.stderr


def test_the_lower_bound_is_what_tests_run_on():
    """pyproject.toml asks for it, the Makefile installs its first release, the README says it, and it runs here.

    A newer torch in the environment of the tests is let through: then the bound is what was tested before.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [d for d in project["dependencies"] if d.startswith("torch")] == [f"torch>={OLDEST_TORCH}"]
    assert re.findall(r"^TORCH := torch==(.+)$", makefile, re.MULTILINE) == [f"{OLDEST_TORCH}.0"]
    assert f"torch {OLDEST_TORCH} or newer" in readme and f"pip install torch=={OLDEST_TORCH}.0" in readme
    check_torch(str(torch.__version__))


def test_the_version_stands_in_one_place():
    """CITATION.cff alone repeats it: whoever cites does not install. The newest one in the changelog is it too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/backplay/__init__.py"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [bp.__version__]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)[:1] == [bp.__version__]
