"""Where models come from: the first part of a name."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backplay.errors import MissingLibraryError, ModelError, near_names, suggestion
from backplay.models import bundled, factory, huggingface, timm, torchvision
from backplay.models.checkpoints import Weights
from backplay.models.loaded import Loaded


@dataclass(frozen=True)
class Source:
    """One way to name a model."""

    prefix: str
    form: str  # how a name is written
    about: str
    loader: Callable[[str, Weights], Loaded]
    names: Callable[[], list[str]] | None = None  # every name behind the prefix, where they can be listed
    library: str | None = None

    @property
    def version(self) -> str | None:
        """The installed version of the library; None if it is not installed."""
        try:
            return importlib.metadata.version(self.library) if self.library else None
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def installed(self) -> bool:
        return self.library is None or self.version is not None


SOURCES = {
    source.prefix: source
    for source in (
        Source("zoo", "zoo:NAME", "small networks that come with the package", bundled.load, bundled.names),
        Source(
            "torchvision",
            "torchvision:NAME",
            "torchvision's classifiers; weights from torch.hub's cache or a file",
            torchvision.load,
            torchvision.names,
            "torchvision",
        ),
        Source(
            "timm",
            "timm:NAME",
            "timm's models, NAME or NAME.TAG; weights from the local caches or a file",
            timm.load,
            timm.names,
            "timm",
        ),
        Source(
            "hf",
            "hf:PATH",
            "a folder with config.json, preprocessor_config.json and weights, as save_pretrained writes it",
            huggingface.load,
            library="transformers",
        ),
    )
}
FACTORY = Source(
    "", "path.py:factory", "a function of yours that returns the model; its file is executed", factory.load
)


def load(name: str, weights: str | Path | None = None) -> Loaded:
    """A network by name: `zoo:vgg`, `torchvision:NAME`, `timm:NAME`, `hf:PATH` or `path.py:factory`.

    `weights` is a file (safetensors, or what `torch.save` wrote of a state dict; code in it is refused, never run), or
    `"random"`: weights that are drawn, the same ones every time, with all-zero heads drawn too. Without it the trained
    weights are used, if they are on this machine: nothing is ever downloaded. `path.py:factory` runs that file.

    >>> loaded = load("torchvision:resnet18", weights="resnet18-f37072fd.pth")
    """
    prefix, _, rest = name.partition(":")
    if prefix in SOURCES and rest:
        return SOURCES[prefix].loader(rest, weights)
    if name.removesuffix(":").endswith(".py"):
        file = name.removesuffix(":")
        raise ModelError(f"{name!r} names no function: add :factory, {file}:build for one that is called build.")
    if ".py:" in name:
        return FACTORY.loader(name, weights)
    if prefix in SOURCES:
        known = SOURCES[prefix].names if SOURCES[prefix].installed else None
        example = f", {prefix}:{known()[0]} for one" if known else ""
        raise ModelError(f"{name!r} lacks the name behind the colon: give {SOURCES[prefix].form}{example}.")
    forms = ", ".join(source.form for source in (*SOURCES.values(), FACTORY))
    raise ModelError(f"no model named {name!r}{_elsewhere(name)}; models are named {forms}.")


def _elsewhere(name: str) -> str:
    """Did the user forget, or misspell, the first part?"""
    prefix, colon, rest = name.partition(":")
    if colon:
        hint = suggestion(prefix, SOURCES)
        return hint.replace("?)", f":{rest}?)") if hint else ""
    full: dict[str, str] = {}  # of equal names in two sources the one that is named first
    for source in reversed(SOURCES.values()):
        try:
            full |= {known: f"{source.prefix}:{known}" for known in reversed(source.names() if source.names else [])}
        except MissingLibraryError:
            continue
    if name in full:
        homes = [f"{s.prefix}:{name}" for s in SOURCES.values() if s.names and s.installed and name in s.names()]
        return f" (did you mean {' or '.join(homes)}?)"
    close = near_names(name, full, alike=0.7)
    return f" (did you mean {', '.join(full[known] for known in close)}?)" if close else ""
