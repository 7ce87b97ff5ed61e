"""The controls of one scene: a control for every mode of both games, made from what the modes accept."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gradio as gr

from backplay.app import html
from backplay.app.grounds import PICTURES, bundled_input, sentences
from backplay.app.library import Library, Model
from backplay.app.paint import shades
from backplay.app.panel import panel
from backplay.app.scene import Scene, accepts, by_layer, changed, is_number, with_mode
from backplay.app.uploads import PREFIX, Uploads
from backplay.errors import InputError, KeywordError
from backplay.keywords import Choice, Number
from backplay.photographs import Preprocess, read
from backplay.view.images import Looks, shown_image
from backplay.zoo.scenes import MEAN, SPREAD

GAME_NAMES = [("Routing Game", "rg"), ("Stopping Game", "sg")]


class Slide(NamedTuple):
    """What a slider is called and where it goes."""

    label: str
    low: float
    high: float
    step: float


_SLIDES = {
    "tau": Slide("Temperature τ", 0.1, 3.0, 0.05),
    "epsilon": Slide("Outside option ε", 0.0, 3.0, 0.05),
    "alpha": Slide("Discount α of the positive stream", 0.0, 4.0, 0.1),
    "beta": Slide("Discount β of the negative stream", 0.0, 4.0, 0.1),
    "risk": Slide("Risk λ (negative is averse)", -3.0, 3.0, 0.1),
    "input_variance": Slide("Variance σ² of noise on the input", 0.0, 20.0, 0.1),
    "attention_risk": Slide("Risk of attention λ_sm", -3.0, 3.0, 0.1),
    "entropy_bias": Slide("Entropy bias λ_ent", 0.0, 3.0, 0.05),
    "gate_noise": Slide("Noise of the gates", 0.1, 5.0, 0.1),
    "softplus": Slide("Softplus θ (0: ReLUs stay)", 0.0, 3.0, 0.05),
}
_LABELS = {
    "gate": "Gates",
    "attention_score": "Uncertainty of a key",
    "residual": "Sums split the walk",
    "bias": "Biases",
    "empty_stream": "Empty streams lead to",
    "attention": "Attention passes mass by",
    "tau_forward": "τ in the forward pass too",
    "risk_forward": "Risk in the forward pass too",
    "output": "Unit of the map",
    "multiply_by_input": "Times the input",
}
_SECTIONS = {
    "Noise, risk and entropy": (
        "risk",
        "input_variance",
        "attention_risk",
        "attention_score",
        "entropy_bias",
        "gate",
        "gate_noise",
        "softplus",
    ),
    "More rules": (
        "residual",
        "empty_stream",
        "bias",
        "attention",
        "output",
        "tau_forward",
        "risk_forward",
        "multiply_by_input",
    ),
}
_FIRST = ("tau", "epsilon", "alpha", "beta")
MODE_NAMES = (*_FIRST, *(name for names in _SECTIONS.values() for name in names))


def _as_given(slider: Any, payload: Any) -> Any:
    """What a number field holds, be it nothing: a scene says in a line what is wrong, Gradio only in the terminal."""
    return payload


# drawn as Gradio's own; not by a class statement, for which Gradio would write a file of types beside this one
Slider: Any = ABCMeta.__new__(
    type(gr.Slider), "Slider", (gr.Slider,), {"__module__": __name__, "is_template": True, "preprocess": _as_given}
)


class Controls:
    """Gradio's components for one scene, in the order in which events hand over their values."""

    def __init__(self, library: Library, uploads: Uploads, scene: Scene, name: str, full: bool = True) -> None:
        self.library, self.uploads, self.name, self.full = library, uploads, name, full
        self.told = gr.State("")  # what went wrong with the last change of these controls
        self.model = gr.Dropdown(list(library.names), value=scene.model, label="Model", elem_id=f"{name}-model")
        self.choices = panel(elem_id=f"{name}-choices")
        self.picture = gr.State(scene.picture)
        self.upload = gr.UploadButton("Upload a picture", size="sm", elem_id=f"{name}-upload")
        self.text = gr.Textbox(
            scene.text, label="Sentence", lines=3, max_length=2000, visible=False, elem_id=f"{name}-text"
        )
        self.read = gr.Button("Read this sentence", size="sm", visible=False, elem_id=f"{name}-read")
        self.target = gr.Dropdown(
            [("what the model answers", "")],
            value="",
            label="Class",
            allow_custom_value=True,
            visible=full,
            elem_id=f"{name}-target",
        )
        self.game = gr.Radio(GAME_NAMES, value=scene.game, label="Game", visible=full, elem_id=f"{name}-game")
        self.modes: dict[str, Any] = {mode: self._mode(mode) for mode in _FIRST}
        for title, names in _SECTIONS.items():
            with gr.Accordion(title, open=False):
                self.modes |= {mode: self._mode(mode) for mode in names}
        with gr.Accordion("Modes by layer", open=False):
            self._by_layer(scene)
        self.reset = gr.Button("Reset modes", size="sm", elem_id=f"{name}-reset")

    def _by_layer(self, scene: Scene) -> None:
        """A slider for any mode of any layers; what it sets stands below, where it can also be written."""
        name = self.name
        self.where = gr.Dropdown(
            [], label="Layers", info="Or a pattern: features.*", allow_custom_value=True, elem_id=f"{name}-where"
        )
        self.what = gr.Dropdown(_sliding(scene.game), value="tau", label="Mode", elem_id=f"{name}-what")
        self.much = self._slider("tau", 1.0, f"{name}-much")
        self.layers = gr.Textbox(
            scene.layers,
            label="Layers: modes",
            info="Later ones win; press Enter to apply.",
            placeholder="features.*: tau=0.5; head.*: epsilon=0",
            elem_id=f"{name}-layers",
        )

    def _slider(self, mode: str, value: Any, name: str, **options: Any) -> Any:
        label, low, high, step = _SLIDES[mode]
        return Slider(low, high, value=value or 0.0, step=step, label=label, elem_id=name, **options)

    def _mode(self, mode: str) -> Any:
        accept = _accepted(mode)
        if not isinstance(accept, Choice):
            return self._slider(mode, accept.default, f"{self.name}-{mode}", visible=mode in accepts("rg"))
        given: dict[str, Any] = {"elem_id": f"{self.name}-{mode}", "visible": mode in accepts("rg")}
        if accept.default is False:
            return gr.Checkbox(False, label=_LABELS[mode], **given)
        return gr.Radio(list(accept.choices), value=accept.default, label=_LABELS[mode], **given)  # type: ignore[arg-type]

    # ---------------------------------------------------------------- values to scenes and back

    @property
    def inputs(self) -> list[Any]:
        """The components whose values make a scene."""
        return [self.model, self.picture, self.text, self.target, self.game, *self.modes.values(), self.layers]

    def scene(self, values: Sequence[Any]) -> Scene:
        """What the controls say."""
        model, picture, text, target, game, *modes, layers = values
        known = accepts(str(game))
        given = {mode: _slid(mode, value) for mode, value in zip(self.modes, modes, strict=True) if mode in known}
        return Scene(
            model=str(model),
            picture=str(picture),
            text=str(text or ""),
            target=read_class(target, self.library.find(str(model)).classes()),
            game=str(game),
            modes=changed(str(game), given),
            layers=str(layers or "").strip(),
        )

    def plain(self, values: Sequence[Any]) -> Scene:
        """What the controls say but for their modes, which are at their defaults, be they sound or not."""
        defaults = {mode: _accepted(mode).default for mode in self.modes}
        modes = [(default or 0.0) if mode in _SLIDES else default for mode, default in defaults.items()]
        return self.scene([*values[:5], *modes, ""])

    def show(self, scene: Scene) -> list[Any]:
        """What the controls have to show for a scene, in the order of `outputs`; refused where a slider ends before."""
        model = self.library.find(scene.model)
        modes = dict(scene.modes)
        shown: list[Any] = [scene.model, scene.picture, self.offer(model, scene.picture), *self._kind(model, scene)]
        for name, component in self.modes.items():
            value = modes.get(name, _accepted(name).default)
            if name in _SLIDES:
                value = value or 0.0
                _slid(name, value)
            shown.append(type(component)(value=value, visible=name in accepts(scene.game)))
        layers = _layers(model)
        where = gr.Dropdown(choices=list(layers), value=layers[0] if layers else "")
        sliding = _sliding(scene.game)
        what = sliding[0][1]
        return [*shown, where, gr.Dropdown(choices=sliding, value=what), self.slide(scene.game, what), scene.layers]

    def slide(self, game: str, mode: str) -> Any:
        """The slider of modes by layer as it is for a mode."""
        label, low, high, step = _SLIDES[mode]
        default = by_layer(game)[mode].default or 0.0
        return Slider(minimum=low, maximum=high, step=step, label=label, value=float(default))

    def with_mode(self, text: str, game: str, pattern: Any, mode: str, value: Any) -> str:
        """Modes by layer with what their slider says."""
        return with_mode(str(text or ""), game, str(pattern or ""), mode, _slid(mode, value))

    @property
    def outputs(self) -> list[Any]:
        """The components that `show` fills."""
        first = [self.model, self.picture, self.choices, self.upload, self.text, self.read, self.target, self.game]
        return [*first, *self.modes.values(), self.where, self.what, self.much, self.layers]

    def _kind(self, model: Model, scene: Scene) -> list[Any]:
        """Upload or sentence, class and game."""
        classes = [
            ("what the model answers", ""),
            *((f"{name} ({k})", str(k)) for k, name in enumerate(model.classes())),
        ]
        text = scene.text or (sentences()[0] if model.reads_text else "")
        return [
            gr.UploadButton(visible=not model.reads_text),
            gr.Textbox(value=text, visible=model.reads_text),
            gr.Button(visible=model.reads_text),
            gr.Dropdown(choices=classes, value="" if scene.target is None else str(scene.target), visible=self.full),
            scene.game,
        ]

    # ---------------------------------------------------------------- pictures and sentences to choose from

    def offer(self, model: Model, chosen: str) -> str:
        """Small pictures, or sentences, to choose from."""
        if model.reads_text:
            buttons = "".join(
                f'<button class="bp-chip" data-choose="sentence:{k}" data-key="sentence:{k}">{text}</button>'
                for k, text in enumerate(sentences())
            )
            return f'<div class="bp-chips" role="group" aria-label="Sentence">{buttons}</div>'
        looks = Looks((MEAN,), (SPREAD,))
        pictures = {key: (_name(key), shades(shown_image(bundled_input(key), looks, 0))[::2, ::2]) for key in PICTURES}
        if chosen.startswith(PREFIX):
            pictures = {chosen: ("your picture", self._uploaded(chosen))} | pictures
        return html.thumbnails(pictures, chosen)

    def _uploaded(self, key: str) -> Any:
        x = Preprocess((48, 48), (0.0,) * 3, (1.0,) * 3)(read(self.uploads.find(key)))
        return shades(x.permute(1, 2, 0).double().numpy())

    def listen(self, change: Callable[..., Any]) -> None:
        """Call `change(trigger)` for every control that a scene follows at once."""
        for component in (*self.modes.values(), self.target):
            change(component.input)
        change(self.layers.submit)
        change(self.read.click)


def _accepted(mode: str) -> Number | Choice:
    """What a mode may be, in the game that has it."""
    return accepts("rg").get(mode) or accepts("sg")[mode]


def _slid(mode: str, value: Any) -> Any:
    """The value of a mode's control; of a slider refused where it is empty or beyond its ends."""
    if mode not in _SLIDES:
        return value
    label, low, high, _ = _SLIDES[mode]
    if not isinstance(value, (int, float)) or not low <= value <= high:
        told = "is empty" if value in (None, "") else f"= {str(value)[:20]} is beyond its slider"
        raise KeywordError(f"{label} {told}; give a number from {low} to {high}.")
    return (value or None) if mode == "softplus" else value


def _sliding(game: str) -> list[tuple[str, str]]:
    """The modes by layer that have a slider: what they are called, and their names."""
    return [(slide.label, name) for name, slide in _SLIDES.items() if name in by_layer(game)]


def _layers(model: Model) -> list[str]:
    """Paths of modules to choose from: those with weights, down to the second level."""
    modules = model.loaded.model.named_modules()
    return [name for name, module in modules if name and name.count(".") < 2 and any(True for _ in module.parameters())]


def read_class(given: Any, names: Sequence[str]) -> int | None:
    """A class by number or name; None is the model's answer."""
    text = str(given or "").strip()
    if not text:
        return None
    if is_number(text):
        return int(text)
    if text in names:
        return list(names).index(text)
    known = f": there are {', '.join(names[:12])}" if names else ""
    raise InputError(f"no class is called {text[:40]!r}; give its number or its name{known}.")


def _name(key: str) -> str:
    kind, _, number = key.partition(":")
    return f"picture {int(number) + 1}" + (" with a misleading cue" if kind == "cue" else "")
