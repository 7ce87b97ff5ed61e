"""What compares maps asks for an extra, and says which."""

import sys

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.sanity import cascade, rank_correlations


@pytest.mark.parametrize("missing", ["scipy.stats", "skimage.feature"])
def test_a_cascade_names_the_extra(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 36, 3))
    with pytest.raises(bp.BackplayError, match=r"need \S+: pip install 'backplay\[methods\]'\.$") as caught:
        list(cascade(model, torch.randn(1, 3, 8, 8), method=["gradient"]))
    assert isinstance(caught.value, ImportError)


def test_rank_correlations_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(bp.BackplayError, match=r"pip install 'backplay\[methods\]'"):
        rank_correlations({"a": [1.0, 2.0], "b": [2.0, 1.0]})


def test_figures_name_the_extra(monkeypatch):
    """matplotlib is asked for by `backplay.view`, which says how to install it, and by nobody before it."""
    for name in [n for n in sys.modules if n.startswith(("backplay.view", "backplay.sanity.figures"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr(sys.modules["backplay.sanity"], "figures", raising=False)
    with pytest.raises(bp.BackplayError, match=r"pip install 'backplay\[view\]'"):
        import backplay.sanity.figures  # noqa: F401
