"""The metrics of the paper, computed by Quantus on one sample at a time (tab:metric-configs).

Where the paper contradicts itself: attributions are `|a| / max |a|` per image; the baseline is Quantus' own `mean`;
pixels are flipped along Quantus' curve; Selectivity takes patches of 8 × 8; a tie in the Pointing Game is a hit if any
maximiser lies inside. Areas are divided by the width of the curve: they are mean heights, logits, whatever the number
of steps.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backplay.bench.rows import SECONDS
from backplay.errors import KeywordError, MissingLibraryError, instead
from backplay.interop.torchvision import ensure

Map = NDArray[np.float64]  # (H, W)
Explain = Callable[[Tensor], Map]  # of an input (1, C, H, W): its map, channels summed


@dataclass(frozen=True)
class Metric:
    """A column of a table."""

    name: str
    title: str  # as the paper's tables write it
    better: str  # "higher" or "lower"
    group: str


METRICS = {
    metric.name: metric
    for metric in (
        Metric("al", "AL", "higher", "localisation"),
        Metric("pg", "PG", "higher", "localisation"),
        Metric("tk", "TK", "higher", "localisation"),
        Metric("pf5", "PF_5", "lower", "faithfulness"),
        Metric("pf20", "PF_20", "lower", "faithfulness"),
        Metric("pf100", "PF_100", "lower", "faithfulness"),
        Metric("sel", "Sel.", "lower", "faithfulness"),
        Metric("maxs", "MaxS", "lower", "robustness"),
        Metric("avgs", "AvgS", "lower", "robustness"),
        Metric(SECONDS, "t/img", "lower", "time"),
    )
}
GROUPS = tuple(dict.fromkeys(metric.group for metric in METRICS.values()))
LOCALISATION = ("al", "pg", "tk")  # what configurations are selected by

TOP = 1000  # pixels of Top-k Intersection on an image of 224 × 224
AREA = 224 * 224
STEPS = 32  # one step of pixel flipping is this part of the image's pixels
PATCH = 8
DRAWS = 50
RADIUS = 0.2  # of the uniform noise that sensitivity adds, as Quantus has it
SHARES = {"pf5": 0.05, "pf20": 0.20, "pf100": 1.0}


def names(wanted: Iterable[str]) -> tuple[str, ...]:
    """Metrics by name; a group stands for all of its own. In the order of the tables, the time left out."""
    found: set[str] = set()
    for name in wanted:
        if name not in METRICS and name not in GROUPS:
            known = [*GROUPS, *METRICS]
            raise KeywordError(f"no metric named {name!r}{instead(name, known)}.")
        found |= {m.name for m in METRICS.values() if name in (m.name, m.group)}
    return tuple(name for name in METRICS if name in found and name != SECONDS)


def quantus() -> Any:
    """Quantus, or how to install it."""
    try:
        ensure()  # it imports torchvision
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("quantus")
    except ImportError as error:
        raise MissingLibraryError("the metrics need Quantus 0.6.0: pip install 'backplay[bench]'") from error


def normalised(heat: Map) -> Map:
    """`ψ(a) = |a| / max |a|`; a map of zeros stays one."""
    size = np.abs(np.asarray(heat, dtype=np.float64))
    largest = size.max(initial=0.0)
    return size / largest if largest > 0 else size


class RawLogits(nn.Module):
    """A model whose output is the tensor of logits, whatever the model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), x.dtype)
        found: Any = self.model(x.to(dtype))
        if isinstance(found, Tensor):
            return found
        return found.logits if hasattr(found, "logits") else next(t for t in found if isinstance(t, Tensor))


@dataclass
class Sample:
    """One image, what is explained in it, and where the object is."""

    name: str
    x: Tensor  # (C, H, W) as the network takes it
    target: int
    mask: NDArray[np.bool_]  # (H, W) true on the object
    ignored: NDArray[np.bool_] | None = None  # (H, W) true where nobody knows: no metric looks there

    @property
    def empty(self) -> bool:
        return not bool(self.mask.any())


class Meter:
    """Measures maps on one model; `draws` maps are drawn for sensitivity, whose noise `seed` and the sample fix."""

    def __init__(self, model: nn.Module, draws: int = DRAWS, seed: int = 0) -> None:
        self.library = quantus()
        self.draws, self.seed = draws, seed
        with _quiet():
            kind = self.library.helpers.model.pytorch_model.PyTorchModel
            kind._get_last_softmax_layer_index.cache_clear()  # it would keep every model that was ever measured
            self.model = kind(RawLogits(model).eval(), channel_first=True, softmax=False, device="cpu")

    def measure(
        self, sample: Sample, heat: Map, explain: Explain, wanted: Iterable[str]
    ) -> tuple[dict[str, float | None], dict[str, str]]:
        """Values by metric, and why some are None."""
        wanted = names(wanted)
        seen = heat if sample.ignored is None else np.where(sample.ignored, 0.0, heat)
        values: dict[str, float | None] = {}
        notes: dict[str, str] = {}
        with _quiet():
            for group, measure in (
                ("localisation", lambda: self._localisation(sample, normalised(seen))),
                ("flipping", lambda: self._flipping(sample, normalised(heat))),
                ("sel", lambda: {"sel": self._selectivity(sample, normalised(heat))}),
                ("robustness", lambda: self._sensitivity(sample, normalised(heat), explain)),
            ):
                asked = [name for name in wanted if name in _GROUPED[group]]
                if not asked:
                    continue
                why = self._refusal(group, sample, heat)
                found = dict.fromkeys(asked) if why else measure()
                for name in asked:
                    value = found[name]
                    sound = value is not None and math.isfinite(value)
                    values[name] = float(value) if value is not None and sound else None
                    if not sound:
                        notes[name] = why or f"not a finite number: {value}"
        return values, notes

    @staticmethod
    def _refusal(group: str, sample: Sample, heat: Map) -> str | None:
        """Why a group has no value on this sample: Quantus would answer True, NaN or 0/0."""
        if group == "localisation" and sample.empty:
            return "empty mask"
        if group == "robustness" and not np.abs(heat).max(initial=0.0) > 0:
            return "map of zeros"
        return None

    def _localisation(self, sample: Sample, a: Map) -> dict[str, float]:
        """Attribution Localisation, Pointing Game and Top-k Intersection (app:metrics)."""
        maps, masks = a[None, None], sample.mask[None, None]
        area = a.size
        common: dict[str, Any] = {"abs": True, "normalise": False, "disable_warnings": True}
        q = self.library
        inside = q.AttributionLocalisation(**common).evaluate_batch(x_batch=maps, a_batch=maps, s_batch=masks)
        hit = q.PointingGame(**common).evaluate_batch(a_batch=maps, s_batch=masks)
        top = q.TopKIntersection(k=top_pixels(area), **common).evaluate_batch(a_batch=maps, s_batch=masks)
        return {"al": float(inside[0]), "pg": float(hit[0]), "tk": float(top[0])}

    def _flipping(self, sample: Sample, a: Map) -> dict[str, float]:
        """The area under Quantus' pixel-flipping curve up to 5 %, 20 % and 100 % of it."""
        step = flipped_at_once(a.size)
        metric = self.library.PixelFlipping(
            features_in_step=step, perturb_baseline="mean", abs=True, normalise=False, disable_warnings=True
        )
        curve = np.asarray(metric.evaluate_batch(**self._batch(sample, a)))[0]
        return {name: area_under(curve, share) for name, share in SHARES.items()}

    def _selectivity(self, sample: Sample, a: Map) -> float:
        """The area under Quantus' curve of patches that are removed, the most relevant first."""
        metric = self.library.Selectivity(
            patch_size=PATCH, perturb_baseline="mean", abs=True, normalise=False, disable_warnings=True
        )
        return area_under(np.asarray(metric.evaluate_batch(**self._batch(sample, a)))[0], 1.0)

    def _batch(self, sample: Sample, a: Map) -> dict[str, Any]:
        x = sample.x[None].double().numpy()
        return {"model": self.model, "x_batch": x, "y_batch": np.array([sample.target]), "a_batch": a[None, None]}

    def _sensitivity(self, sample: Sample, a: Map, explain: Explain) -> dict[str, float | None]:
        """Max and Average Sensitivity over the same draws: each perturbed input is explained once."""
        drawn: dict[bytes, Map] = {}

        def explained(model: Any, inputs: Any, targets: Any, **_: Any) -> Map:
            key = np.asarray(inputs).tobytes()
            if key not in drawn:
                drawn[key] = normalised(explain(torch.as_tensor(np.asarray(inputs), dtype=sample.x.dtype)))[None, None]
            return drawn[key]

        found: dict[str, float | None] = {}
        for name, kind in (("maxs", self.library.MaxSensitivity), ("avgs", self.library.AvgSensitivity)):
            metric = kind(nr_samples=self.draws, lower_bound=RADIUS, abs=True, normalise=False, disable_warnings=True)
            metric.explain_func, metric.explain_func_kwargs = explained, {}
            with _seeded(self.seed, sample.name):
                try:
                    found[name] = float(metric.evaluate_batch(**self._batch(sample, a))[0])
                except AssertionError:  # Quantus refuses maps that are the same everywhere
                    found[name] = None
        return found


_GROUPED = {
    "localisation": LOCALISATION,
    "flipping": tuple(SHARES),
    "sel": ("sel",),
    "robustness": ("maxs", "avgs"),
}


def top_pixels(area: int) -> int:
    """`k` of Top-k Intersection on an image of this area: 1000 at 224 × 224, the same share of smaller ones."""
    return max(1, round(TOP * min(1.0, area / AREA)))


def flipped_at_once(area: int) -> int:
    """Features that one step flips: a 32nd of the pixels, or the next smaller number that divides them all."""
    return next(step for step in range(max(1, area // STEPS), 0, -1) if area % step == 0)


def area_under(curve: NDArray[np.float64], share: float) -> float:
    """The mean height of the first part of a curve: its area by trapezoids over its width, two points at least."""
    points = max(2, math.ceil(share * len(curve) - 1e-9))
    part = curve[:points]
    if len(part) == 1:
        return float(part[0])
    return float(((part[1:] + part[:-1]) / 2).mean())


@contextmanager
def _quiet() -> Generator[None]:
    """Quantus warns a lot, and divides by the size of an empty slice to do so."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _seeded(seed: int, name: str) -> Generator[None]:
    """Quantus draws from numpy's global generator: the same draws for the same sample, and nobody else's disturbed."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed([seed, *name.encode()])  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
