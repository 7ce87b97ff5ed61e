"""The registry of methods: every explanation by name (`bp.explain`, `bp.methods`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from backplay.entry import entry
from backplay.errors import CaptureError, KeywordError, UnsupportedError, suggestion
from backplay.games.inputs import Inputs, Target, read_inputs
from backplay.games.keywords import Keyword
from backplay.methods.example import guess
from backplay.methods.maps import last_map
from backplay.methods.rules import has_first_layer
from backplay.methods.subject import Subject, captured, has_attention, has_convolutions, known
from backplay.methods.tokens import find_tokens
from backplay.network import Model, Network, read_model

NEEDS: dict[str, tuple[Callable[[Network], bool], str]] = {
    "image": (lambda net: len(net.input.shape) == 4, "it explains images of shape (B, C, H, W)"),
    "attention": (has_attention, "it reads attention weights, and this network has none"),
    "global attention": (
        lambda net: find_tokens(net) is not None,
        "it lays attention weights out on the image, which takes patches that all attend to each other in every block",
    ),
    "first layer": (
        has_first_layer,
        "its rule is for a convolution or linear layer that sees the input itself, and here none does",
    ),
    "convolution": (has_convolutions, "it reads convolutional feature maps, and this network has none"),
    "map": (lambda net: last_map(net) is not None, "it needs a feature map of more than one place before the pooling"),
}

LIBRARIES = {"scikit-image": "skimage"}  # of the extra `methods`: as pip names them, and as Python does


@dataclass(frozen=True)
class MethodInfo:
    """What is known of a method: `fits(model)` says whether it applies, `params` what may be set."""

    name: str
    title: str  # as the paper's tables write it
    family: str  # one of FAMILIES
    architectures: tuple[str, ...]  # kinds of network that it is for; `fits` tells of one, and `needs` why not
    reference: str
    function: Callable[..., Tensor] = field(repr=False)
    needs: tuple[str, ...] = ()
    params: Mapping[str, Keyword] = field(default_factory=dict[str, Keyword])
    # the paper's validation grid (tab:main-search-grid); thousands of points, which a repr had better leave out
    grid: tuple[Mapping[str, Any], ...] = field(default=({},), repr=False)
    libraries: tuple[str, ...] = ()  # optional ones, out of LIBRARIES

    @entry
    def fits(self, model: Model) -> bool:
        """Whether the method applies to a model; one that was not explained yet is captured on a guessed input.

        No method applies to a model that cannot be captured. Where no input can be guessed there is no telling: an
        `InputError` asks for a captured network.
        """
        model = read_model(model, "a method")
        if self.missing() is not None:  # known without a capture
            return False
        try:
            network = model if isinstance(model, Network) else known(model) or captured(model, {0: guess(model)})
        except CaptureError:
            return False
        return self.refusal(network) is None

    def refusal(self, network: Network) -> str | None:
        """Why the method does not apply, None if it does."""
        unmet = (why for check, why in map(NEEDS.__getitem__, self.needs) if not check(network))
        return self.missing() or next(unmet, None)

    def grid_for(self, network: Network) -> tuple[Mapping[str, Any], ...]:
        """The points of the grid that are for a network like this: `λ_sm` is for attention (tab:main-search-grid)."""
        if has_attention(network):
            return self.grid
        return tuple(point for point in self.grid if not point.get("attention_risk"))

    def missing(self) -> str | None:
        """Which library the method lacks, whatever the network; None if it lacks none."""
        absent = [name for name in self.libraries if find_spec(LIBRARIES[name]) is None]
        if not absent:
            return None
        return f"it needs {absent[0]}, which is not installed: pip install 'backplay[methods]'"

    def check_libraries(self) -> None:
        """Refuse a method that cannot run on this machine."""
        why = self.missing()
        if why is not None:
            raise UnsupportedError(f"{self.name!r} cannot run here: {why}.")

    def check(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, given ones checked and the others at their defaults."""
        given: dict[str, Any] = {}
        for name, value in params.items():
            if name not in self.params:
                hint, known = suggestion(name, self.params), ", ".join(self.params) or "no parameters"
                raise KeywordError(f"unknown parameter {name!r}{hint}: the method {self.name!r} takes {known}.")
            given[name] = self.params[name].check(name, value)
        return {name: param.default for name, param in self.params.items()} | given


_METHODS: dict[str, MethodInfo] = {}


def method(
    name: str,
    *,
    title: str,
    family: str,
    reference: str,
    architectures: tuple[str, ...] = ("cnn", "transformer"),
    needs: tuple[str, ...] = (),
    params: Mapping[str, Keyword] | None = None,
    grid: tuple[Mapping[str, Any], ...] = ({},),
    libraries: tuple[str, ...] = (),
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register `function(subject, **params) -> map` under a name."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _METHODS[name] = MethodInfo(
            name, title, family, architectures, reference, function, needs, params or {}, grid, libraries
        )
        return function

    return register


FAMILIES = ("gradient", "relevance", "cam and attention", "perturbation")


def methods() -> dict[str, MethodInfo]:
    """Every registered method by name, family by family."""
    return dict(sorted(_METHODS.items(), key=lambda item: FAMILIES.index(item[1].family)))


def find(name: str) -> MethodInfo:
    """The method of that name."""
    if not isinstance(name, str) or name not in _METHODS:
        hint = suggestion(name, _METHODS)
        raise KeywordError(f"no method named {name!r}{hint}: there are {', '.join(methods())}.")
    return _METHODS[name]


class Explainer:
    """A method with its parameters on a model: `attribute`, as the games have it, so that `Reynolds` can average it.

    >>> Reynolds(Explainer(model, "gradcam"), n=50).attribute(x)
    """

    def __init__(self, model: Model, method: str = "rg", **params: Any) -> None:
        self.info = find(method)
        self.model = read_model(model, "a method")
        self.params = self.info.check(params)

    def __reduce__(self) -> tuple[Any, ...]:
        """What is sent to another process: the model, the name and the parameters."""
        return _remade, (self.model, self.info.name, self.params)

    def __deepcopy__(self, memo: dict[int, Any]) -> Explainer:
        """As a game is, an explainer is its own copy."""
        return self

    def __repr__(self) -> str:
        model = self.model.model if isinstance(self.model, Network) else self.model
        changed = [f"{k}={v!r}" for k, v in self.params.items() if v != self.info.params[k].default]
        return f"Explainer({', '.join([type(model).__name__, repr(self.info.name), *changed])})"

    def together(self, x: Tensor) -> int:
        """How many samples like these are best explained at once."""
        return captured(self.model, read_inputs(x)).together(x)

    def settled(self, x: Tensor) -> AbstractContextManager[None]:
        """While many inputs like these are explained: the model's tensors are looked at once."""
        return captured(self.model, read_inputs(x)).settled()

    @entry
    def targets(self, x: Inputs, target: Target = None) -> Tensor:
        """(B, n) the class that is explained in each sample."""
        return Subject(self.model, x, target).target

    @entry
    def attribute(self, x: Inputs, target: Target = None) -> Tensor:
        """The map: a tensor of the input's shape, or (B, 1, H, W)."""
        self.info.check_libraries()  # before a capture that takes seconds
        subject = Subject(self.model, x, target)
        why = self.info.refusal(subject.network)
        if why is not None:
            fitting = [name for name, other in methods().items() if other.refusal(subject.network) is None]
            raise UnsupportedError(
                f"{self.info.name!r} does not fit this network: {why}; these do: {', '.join(fitting)}."
            )
        with torch.inference_mode(False), torch.no_grad():
            return self.info.function(subject, **self.params)


def _remade(model: nn.Module | Network, name: str, params: dict[str, Any]) -> Explainer:
    return Explainer(model, name, **params)


@entry
def explain(model: Model, x: Inputs, target: Target = None, method: str = "rg", **params: Any) -> Tensor:
    """The map of any registered method: a tensor of the input's shape, or (B, 1, H, W).

    Never rescaled or rectified; a batch is its samples one by one. A method that does not fit the network, or a
    parameter out of its range, is refused before any work.

    >>> explain(model, x, method="integrated_gradients", steps=50)
    """
    return Explainer(model, method, **params).attribute(x, target)
