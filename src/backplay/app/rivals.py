"""The third tab: methods side by side on one input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import backplay as bp
from backplay.app import html
from backplay.app.grounds import Ground, Words
from backplay.app.paint import shades
from backplay.app.scene import Scene
from backplay.app.solved import Numbers
from backplay.app.work import Job, StoppedError
from backplay.errors import BackplayError, InputError
from backplay.text.maps import TokenMap
from backplay.text.perturbation import NAMES as HIDE_WORDS
from backplay.view.colours import scale_of
from backplay.view.images import planes

_PREFERRED = "rg sg gradient_x_input integrated_gradients lrp_epsilon attn_lrp gradcam rollout".split()
_FIRST = 6  # methods that are chosen before anybody chooses


def every() -> list[str]:
    """All methods that some model may have."""
    return list(bp.methods())


def fitting(ground: Ground) -> list[str]:
    """The methods that apply, family by family."""
    fits = [name for name, info in bp.methods().items() if info.refusal(ground.network) is None]
    if isinstance(ground, Words):
        fits += [name for name in HIDE_WORDS if name not in fits and bp.methods()[name].missing() is None]
    return fits


def preferred(names: Sequence[str]) -> list[str]:
    """Those to begin with."""
    return [name for name in _PREFERRED if name in names][:_FIRST]


@dataclass(eq=False)
class Rivals:
    """What several methods say of one input, as far as they have come."""

    scene: Scene
    ground: Ground
    target: int
    chosen: Mapping[str, Mapping[str, Any]]  # parameters by name
    maps: dict[str, Any] = field(default_factory=dict[str, Any])  # a tensor like the input, or a TokenMap
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def plane(self, name: str) -> Numbers:
        """(H, W) or (T,) what a method found."""
        found = self.maps[name]
        return found.scores.double().numpy() if isinstance(found, TokenMap) else planes(found, 1)[0]


def gather(scene: Scene, ground: Ground, names: Sequence[str]) -> Rivals:
    """The chosen methods; the scene's own game has the scene's modes, the others have their defaults."""
    known = fitting(ground)
    if not names:
        raise InputError("no method is chosen; choose one or more.")
    unfit = [name for name in names if name not in known]
    if unfit:
        raise InputError(f"{unfit[0][:40]} does not fit {scene.model}; these do: {', '.join(known)}.")
    target = ground.goal(scene.target).index if isinstance(ground, Words) else ground.target(scene.target)
    return Rivals(scene, ground, target, {name: scene.keywords() if name == scene.game else {} for name in names})


def explain(job: Job[Any], rivals: Rivals) -> Rivals:
    """Every method in turn, on a copy of the model, so that nobody waits for it who moves a slider."""
    job.say("making a copy of the model for this")
    model = rivals.ground.model.spare()
    with model.lock:
        for k, (name, params) in enumerate(rivals.chosen.items()):
            job.say(f"{name}, {k + 1} of {len(rivals.chosen)}")
            try:
                rivals.maps[name] = _explained(rivals, model, name, params)
            except StoppedError:
                raise
            except BackplayError as error:
                rivals.failed[name] = " ".join(str(error).split())
    return rivals


def _explained(rivals: Rivals, model: Any, name: str, params: Mapping[str, Any]) -> Any:
    ground = rivals.ground
    if isinstance(ground, Words):
        text, target = rivals.scene.text, rivals.target
        return bp.text.explain(model.loaded.model, model.loaded.tokenizer, text, target, name, **params)[0]
    return bp.explain(model.network(ground.x), ground.x, rivals.target, name, **params)


def look(rivals: Rivals) -> str:
    """The maps that are there, each on its own scale."""
    ground, tiles = rivals.ground, list[str]()
    if not isinstance(ground, Words):
        tiles.append(html.picture(shades(ground.shown), "the picture as the network sees it", "the picture"))
    for name in rivals.chosen:
        title = bp.methods()[name].title
        if name in rivals.failed:
            tiles.append(f"<div><p>{title}</p>{html.error(rivals.failed[name])}</div>")
        elif name not in rivals.maps:
            tiles.append(f'<div class="bp-coming"><p>{title}</p></div>')
        elif isinstance(ground, Words):
            plane = rivals.plane(name)
            reach = float(np.abs(plane).max()) or 1.0
            tiles.append(f"<div><p>{title}</p>{html.tokens(ground.tokens, plane.tolist(), reach, pick=False)}</div>")
        else:
            plane = rivals.plane(name)
            signed = bool((plane < 0).any())
            tiles.append(html.heat(plane, scale_of([plane], signed=signed), f"map of {title}", f"{title} ({name}) "))
    about = f"Each on its own scale, for {ground.class_name(rivals.target)}."
    kind = "bp-lines" if isinstance(ground, Words) else "bp-strip"
    return html.card("Methods side by side", about, f'<div class="{kind}">{"".join(tiles)}</div>', "methods")
