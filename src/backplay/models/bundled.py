"""The networks that come with the package: `zoo:vgg`, and `zoo:vgg-spurious` for the one that learned the cue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backplay.errors import ModelError, instead
from backplay.models.checkpoints import RANDOM, Weights, drawn, fit, read_weights
from backplay.models.loaded import Loaded
from backplay.photographs import Preprocess

if TYPE_CHECKING:
    from backplay.zoo import TextClassifier

NETWORKS = ("vgg", "resnet", "vit")
_SPURIOUS = "-spurious"
TEXTS = ("text", f"text{_SPURIOUS}")


def names() -> list[str]:
    """Every bundled network."""
    return [network + kind for network in NETWORKS for kind in ("", _SPURIOUS)]


def load(name: str, weights: Weights = None) -> Loaded:
    """A bundled network; its own weights unless a file or random ones are asked for."""
    if name in TEXTS:
        raise ModelError(f"zoo:{name} reads text, no photographs; `backplay explain --model zoo:{name} --text …` does.")
    if name not in names():
        raise ModelError(f"zoo:{name} is not bundled{instead(name, [*names(), *TEXTS])}.")
    from backplay import zoo
    from backplay.zoo.scenes import MEAN, SIZE, SPREAD

    network = name.removesuffix(_SPURIOUS)
    if weights is None:
        model, source = zoo.load(network, spurious=name.endswith(_SPURIOUS)), "bundled weights"
    elif weights == RANDOM:
        model, source = drawn(lambda: zoo.build(network)), "random weights"
    else:
        model, source = zoo.build(network), Path(weights).name
        fit(model, read_weights(weights), weights, f"zoo:{name}")
    preprocess = Preprocess((SIZE, SIZE), (MEAN,) * 3, (SPREAD,) * 3)
    return Loaded(model.eval(), preprocess, tuple(zoo.CLASSES), (SIZE, SIZE), f"zoo:{name} ({source})")


def text_model(name: str, weights: Weights = None) -> tuple[TextClassifier, str]:
    """A bundled text network, and where its weights come from."""
    from backplay import zoo

    if weights is None:
        return zoo.load("text", spurious=name.endswith(_SPURIOUS)), "bundled weights"
    if weights == RANDOM:
        model = drawn(zoo.TextClassifier)
        assert isinstance(model, zoo.TextClassifier)
        return model.eval(), "random weights"
    model = zoo.TextClassifier()
    fit(model, read_weights(weights), weights, f"zoo:{name}")
    return model.eval(), Path(weights).name
