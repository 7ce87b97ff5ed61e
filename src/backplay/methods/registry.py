"""The registry of methods: every explanation by name (`bp.explain`, `bp.methods`; app:baseline-methods)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from backplay.entry import entry
from backplay.errors import CaptureError, KeywordError, UnsupportedError, instead, tensor_words
from backplay.games.batches import check_finite, check_size, in_parts, targets_of
from backplay.games.neurons import names_neurons
from backplay.inputs import Target, check_hidden
from backplay.keywords import Keyword, Layer
from backplay.methods.guessed_input import guess
from backplay.methods.maps import last_map
from backplay.methods.subject import Subject, has_attention, has_convolutions, has_first_layer
from backplay.methods.tokens import find_tokens
from backplay.network import Model, Network, read_model
from backplay.network.arguments import Arguments, Inputs
from backplay.network.captures import Captures
from backplay.network.layout import PLAIN

NEEDS: dict[str, tuple[Callable[[Network], bool], str]] = {
    "image": (
        lambda net: len(net.inputs) == 1 and len(net.input.shape) == 4,
        "it explains one image of shape (B, C, H, W)",
    ),
    "attention": (has_attention, "it reads attention weights, and this network has none"),
    "global attention": (
        lambda net: find_tokens(net) is not None,
        "it lays attention weights out on the input: patches or tokens that all attend to each other in every block",
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
    function: Callable[..., Any] = field(repr=False)
    needs: tuple[str, ...] = ()
    params: Mapping[str, Keyword] = field(default_factory=dict[str, Keyword])
    # the paper's validation grid (tab:main-search-grid); thousands of points, which a repr had better leave out
    grid: tuple[Mapping[str, Any], ...] = field(default=({},), repr=False)
    libraries: tuple[str, ...] = ()  # optional ones, out of LIBRARIES
    alone: bool = False  # takes its samples one by one anyway, so that no batch is too large for it
    neurons: bool = False  # explains hidden neurons too, not classes alone (S26b)
    layers: bool = False  # gives relevance at hidden layers too, not at the inputs alone
    slopes: bool = False  # gives slopes, whose sum over features means nothing; all others give contributions

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
            network = model if isinstance(model, Network) else at_hand(model)
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
                there, where = f"the method {self.name!r} takes", f"bp.methods()[{self.name!r}].params lists all"
                raise KeywordError(f"unknown parameter {name!r}{instead(name, self.params, there, where)}.")
            given[name] = self.params[name].check(name, value)
        return {name: param.default for name, param in self.params.items()} | given


def at_hand(model: nn.Module) -> Network:
    """The capture of a model that was used last; of one that was not explained yet, on a guessed input."""
    captures = Captures.held(model)
    return captures.latest() or captures.get(captures.read(guess(model)))


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
    alone: bool = False,
    neurons: bool = False,
    layers: bool = False,
    slopes: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `function(subject, **params)` under a name: it returns the map, or one for each explained input."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _METHODS[name] = MethodInfo(
            name,
            title,
            family,
            architectures,
            reference,
            function,
            needs,
            params or {},
            grid,
            libraries,
            alone,
            neurons,
            layers,
            slopes,
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
        where = f"bp.methods() lists all {len(_METHODS)}"
        raise KeywordError(f"no method named {name!r}{instead(name, methods(), where=where)}.")
    return _METHODS[name]


class Explainer:
    """A method with its parameters on a model: `attribute`, as the games have it, so that `Reynolds` can average it.

    >>> Reynolds(Explainer(model, "gradcam"), n=50).attribute(x)

    `layer` names a module or node at whose output relevance is asked for instead of at the input; the map has its
    shape. Class activation maps read their feature map there, and keep the size of the image.
    """

    def __init__(self, model: Model, method: str = "rg", layer: str | None = None, **params: Any) -> None:
        self.info = find(method)
        self.model = read_model(model, "a method")
        own = "layer" in self.info.params  # a parameter like others, of class activation maps
        self.params = self.info.check(params | ({"layer": layer} if own else {}))
        self.layer: str | None = None if own else Layer().check("layer", layer)
        if self.layer is not None and not self.info.layers:
            able = ", ".join(name for name, other in methods().items() if other.layers or "layer" in other.params)
            raise KeywordError(f"layer={layer!r}: {method!r} explains inputs, not layers; these take one: {able}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """What is sent to another process: the model, the name and the parameters."""
        return _remade, (self.model, self.info.name, {"layer": self.layer} | self.params)

    def on(self, model: Model) -> Explainer:
        """The same method with the same parameters on another model."""
        return _remade(model, self.info.name, {"layer": self.layer} | self.params)

    def __deepcopy__(self, memo: dict[int, Any]) -> Explainer:
        """As a game is, an explainer is its own copy."""
        return self

    def __repr__(self) -> str:
        model = self.model.model if isinstance(self.model, Network) else self.model
        shown = {k: tensor_words(v) if isinstance(v, Tensor) else repr(v) for k, v in self.params.items()}
        changed = [f"{k}={shown[k]}" for k in shown if shown[k] != repr(self.info.params[k].default)]
        changed += [f"layer={self.layer!r}"] if self.layer is not None else []
        return f"Explainer({', '.join([type(model).__name__, repr(self.info.name), *changed])})"

    def _prepare(self, x: Inputs, extra: Any = None) -> tuple[Captures, Network, Arguments]:
        captures = Captures.held(read_model(self.model, "a method"))
        return captures, *captures.prepare(x, extra)

    def together(self, x: Inputs) -> int:
        """How many inputs like these are best explained at once."""
        _, network, inputs = self._prepare(x)
        return network.together(inputs.x)

    @entry
    def targets(self, x: Inputs, target: Target = None, additional_forward_args: Any = None) -> Tensor:
        """(B, n) the index of the output that is explained in each sample, or its weights over the logits."""
        _, network, inputs = self._prepare(x, additional_forward_args)
        return targets_of(network, inputs, target)

    @entry
    def attribute(
        self,
        x: Inputs,
        target: Target = None,
        additional_forward_args: Any = None,
        internal_batch_size: int | None = None,
    ) -> Any:
        """The map: a tensor of the input's shape, or (B, 1, H, W); of several inputs a tuple or dict, as given.

        `additional_forward_args` follow `x` in `forward` and are held fixed. `internal_batch_size` samples are
        explained at once, by default as many as memory likes.
        """
        check_size(internal_batch_size)
        self.info.check_libraries()  # before a capture that takes seconds
        captures, network, inputs = self._prepare(x, additional_forward_args)
        self.check_fits(network)
        if names_neurons(target) and not self.info.neurons:
            able = ", ".join(name for name, other in methods().items() if other.neurons)
            raise UnsupportedError(
                f"{self.info.name!r} explains classes, not a hidden neuron such as {target!r}; these do: {able}."
            )
        at_once = inputs.batch if self.info.alone and internal_batch_size is None else internal_batch_size

        def explain(part: Arguments, wanted: Any) -> Sequence[Tensor]:
            subject = Subject(captures, part, wanted)
            if subject.network is not network:  # the model has changed since it was captured
                self.check_fits(subject.network)
            return self.maps_of(subject)

        layout = PLAIN if self.layer is None else network.find(self.layer).layout  # refused before any work
        maps = in_parts(network, inputs, target, explain, f"{self.info.title}: samples", at_once, layout)
        return inputs.pack(maps) if self.layer is None else maps[0]

    def maps_of(self, subject: Subject) -> Sequence[Tensor]:
        """The maps of a subject that is at hand, as several methods may share one; the method must fit its network."""
        subject = subject if self.layer is None else subject.at_layer(self.layer)
        returned: Any = self.info.function(subject, **self.params)
        maps: Sequence[Tensor] = (returned,) if isinstance(returned, Tensor) else returned
        if self.layer is None:
            check_hidden(subject.inputs, maps, subject.aim)
        return check_finite(maps)

    def check_fits(self, network: Network) -> None:
        """Refuse a network that the method does not apply to."""
        why = self.info.refusal(network)
        if why is not None:
            fitting = [name for name, other in methods().items() if other.refusal(network) is None]
            raise UnsupportedError(
                f"{self.info.name!r} does not fit this network: {why}; these do: {', '.join(fitting)}."
            )


def _remade(model: Model, name: str, params: dict[str, Any]) -> Explainer:
    return Explainer(model, name, **params)


@entry
def explain(
    model: Model,
    x: Inputs,
    target: Target = None,
    method: str = "rg",
    additional_forward_args: Any = None,
    internal_batch_size: int | None = None,
    layer: str | None = None,
    **params: Any,
) -> Any:
    """The map of any registered method: a tensor of the input's shape, or (B, 1, H, W).

    Never rescaled or rectified; a batch is its samples one by one. A method that does not fit the network, or a
    parameter out of its range, is refused before any work. Inputs and targets are those of the games: of several
    explained inputs a tuple or dict is made, as they were given.

    >>> explain(model, x, method="integrated_gradients", steps=50)

    `layer` names a module or node: games, relevance propagation and gradients then give relevance at its output, a
    tensor of that shape; class activation maps read their feature map there and keep the image's size.
    """
    explainer = Explainer(model, method, layer, **params)
    return explainer.attribute(x, target, additional_forward_args, internal_batch_size)
