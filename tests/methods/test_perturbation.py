"""LIME and KernelSHAP: superpixels, regressions, exact values."""

import builtins
import functools
import io
import math
import sys

import numpy as np
import pytest
import torch

import backplay as bp
from backplay import progress
from backplay.methods.perturbation import coalitions, constrained_regression, superpixels, weighted_ridge
from closeness import array, assert_near
from nets import F64, TARGETS, build
from networks import photo
from oracles import rivals


def covered(case, k, labels, shown, baseline):
    """An image with superpixels hidden, pixel by pixel in numpy."""
    image = array(case.x[k])
    out = image.copy()
    for piece in range(labels.max() + 1):
        if piece in shown:
            continue
        for channel in range(len(image)):
            here = image[channel][labels == piece]
            fill = {"zero": 0.0, "mean": image[channel].mean(), "segment": here.mean()}[baseline]
            out[channel][labels == piece] = fill
    return torch.from_numpy(out)[None]


def asked(case, k, labels, baseline):
    """The logit of image k for a set of shown superpixels; asked once for each set."""

    @functools.cache
    def worth(shown):
        with torch.no_grad():
            return float(case.model(covered(case, k, labels, shown, baseline))[0, TARGETS[k]])

    return worth


class TestKernelShap:
    @pytest.mark.parametrize("baseline", ["mean", "zero", "segment"])
    @pytest.mark.parametrize("name", ["plain", "residual"])
    def test_shapley_values(self, name, baseline):
        """With all coalitions in the budget it is the definition, summed over every coalition."""
        case = build(name)
        found = case.explain("kernel_shap", segments=8, n=254, baseline=baseline)
        for k in range(3):
            labels = superpixels(case.x[k], 8).numpy()
            count = labels.max() + 1
            assert 6 <= count <= 8
            exact = rivals.shapley(asked(case, k, labels, baseline), count)
            assert_near(found[k, 0], exact[labels], 1e-9, what=f"image {k}")

    @pytest.mark.parametrize("n", [3, 40, 150])
    def test_efficiency(self, n):
        """However few coalitions: superpixels sum to f(x) − f(hidden)."""
        case = build("plain")
        found = case.explain("kernel_shap", segments=20, n=n, baseline="zero")
        for k in range(3):
            labels = superpixels(case.x[k], 20)
            total = sum(float(found[k, 0][labels == piece][0]) for piece in range(int(labels.max()) + 1))
            assert_near([total], case.rise()[k : k + 1], 1e-9)

    @pytest.mark.parametrize("count", range(2, 11))
    def test_all_coalitions(self, count):
        """A budget of 2^M − 2 lists every coalition once, with the weights of the Shapley kernel."""
        rows, weights = coalitions(count, 2**count - 2, torch.Generator().manual_seed(0))
        assert len({tuple(r) for r in rows.tolist()}) == len(rows) == 2**count - 2
        for row, weight in zip(rows, weights.tolist(), strict=True):
            size = int(row.sum())
            ways = math.comb(count, size)
            assert weight == pytest.approx((count - 1) / (ways * size * (count - size)), rel=1e-12)

    def test_drawn_coalitions(self):
        """Beyond the budget: sizes follow the kernel, pairs are complements, the weights keep each size's share."""
        rows, weights = coalitions(12, 2000, torch.Generator().manual_seed(1))
        assert len(rows) <= 2000
        mass = np.array([11 / (s * (12 - s)) for s in range(1, 12)])
        shares = np.array([float(weights[rows.sum(1) == s].sum()) for s in range(1, 12)])
        assert_near(shares, mass, 0.06)
        few, even = coalitions(60, 10, torch.Generator().manual_seed(1))
        assert len(few) == 10 and len(set(even.tolist())) == 1
        assert torch.equal(few[0::2] + few[1::2], torch.ones(5, 60, dtype=F64))

    def test_additive_worth_is_found_from_few(self):
        """Where superpixels do not interact, any full-rank set of coalitions gives the exact values."""
        torch.manual_seed(3)
        worth = torch.randn(30, dtype=F64)
        rows, weights = coalitions(30, 200, torch.Generator().manual_seed(1))
        assert_near(constrained_regression(rows, rows @ worth, weights, worth.sum()), worth)


class TestLime:
    @pytest.mark.parametrize("baseline", ["segment", "mean", "zero"])
    def test_slow_regression(self, baseline):
        """Rows, kernel and ridge regression again in numpy, images covered pixel by pixel."""
        case = build("residual")
        settings = {"n": 60, "segments": 12, "seed": 7, "width": 0.4, "ridge": 2.0, "baseline": baseline}
        found = case.explain("lime", **settings)
        for k in range(3):
            labels = superpixels(case.x[k], 12).numpy()
            count = labels.max() + 1
            rows = torch.randint(0, 2, (60, count), generator=torch.Generator().manual_seed(7)).numpy().astype(float)
            rows[0] = 1
            worth = asked(case, k, labels, baseline)
            values = np.array([worth(frozenset(np.flatnonzero(row).tolist())) for row in rows])
            slow = rivals.ridge(rows, values, rivals.cosine_kernel(rows, 0.4), 2.0)
            assert_near(found[k, 0], slow[labels], 1e-9, what=f"image {k}")

    def test_strength(self):
        """No ridge finds a linear function, a strong one flattens it, and the intercept is free."""
        torch.manual_seed(3)
        rows, slopes = torch.randint(0, 2, (40, 5)).double(), torch.randn(5, dtype=F64)
        weights = torch.rand(40, dtype=F64) + 0.1
        assert_near(weighted_ridge(rows, rows @ slopes + 100, weights, 1e-12), slopes, 1e-9)
        assert weighted_ridge(rows, rows @ slopes + 100, weights, 1e6).abs().max() < 1e-3


class TestSuperpixels:
    def test_labels(self):
        """From 0 without gaps, near the number asked for, the same whatever the scale of the colours."""
        image = photo(1, 64)[0]
        labels = superpixels(image, 80)
        assert labels.shape == (64, 64)
        assert torch.equal(labels.unique(), torch.arange(int(labels.max()) + 1))
        assert 40 <= labels.max() + 1 <= 120
        assert (
            labels == superpixels(255 * image + 7, 80)
        ).float().mean() > 0.98  # a pixel between two may change sides

    @pytest.mark.parametrize("channels", [1, 2, 3])
    def test_channels_and_flat_images(self, channels):
        labels = superpixels(torch.zeros(channels, 16, 16), 9)
        assert labels.shape == (16, 16) and labels.max() > 0

    @pytest.mark.parametrize("method", ["lime", "kernel_shap"])
    def test_one_superpixel(self, method):
        """One piece: its coefficient everywhere."""
        found = build("plain").explain(method, segments=1, n=10, baseline="zero")
        assert all(len(picture.unique()) == 1 for picture in found)
        if method == "kernel_shap":
            assert_near(found[:, 0, 0, 0], build("plain").rise())

    def test_without_scikit_image(self, monkeypatch):
        """The message names the extra."""
        real = builtins.__import__

        def missing(name, *args, **kwargs):
            if name.startswith("skimage"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(bp.BackplayError, match=r"backplay\[methods\]"):
            build("plain").explain("lime")

    def test_a_missing_library_is_known_beforehand(self, monkeypatch):
        """`fits` and `refusal` say it, and nothing is captured for what cannot run."""
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 2)).eval()
        network, info = bp.capture(model, torch.zeros(1, 3, 8, 8)), bp.methods()["lime"]
        assert info.fits(network) and info.refusal(network) is None
        monkeypatch.setitem(sys.modules, "skimage", None)
        monkeypatch.setattr(sys.modules["backplay.methods.registry"], "Subject", None)
        assert not info.fits(network) and "pip install 'backplay[methods]'" in info.refusal(network)
        with pytest.raises(bp.BackplayError, match="scikit-image"):
            bp.explain(model, torch.zeros(1, 3, 8, 8), method="lime")


class TestProgress:
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    @pytest.mark.parametrize("terminal, told", [(True, True), (False, False)])
    def test_shown_for_long_work(self, monkeypatch, terminal, told):
        """One line that is rewritten and cleared; where nobody looks there is none."""
        stream = self.Terminal() if terminal else io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr(progress, "PATIENCE", 0.0)
        counted = []
        monkeypatch.setattr(progress.Progress, "advance", lambda bar, steps: counted.append((bar.total, steps)))
        build("plain").explain("lime", n=40, segments=5)
        assert {total for total, _ in counted} == {120} and sum(steps for _, steps in counted) == 120
        assert ("LIME: perturbed images" in stream.getvalue()) == told
        assert stream.getvalue().endswith("\r\x1b[K" if told else "")


def test_only_images():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
    with pytest.raises(RuntimeError, match="one image"):
        bp.explain(model, torch.randn(2, 4), method="lime")
