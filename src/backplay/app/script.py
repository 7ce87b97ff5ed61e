"""The few lines of Python that make what the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backplay.app.grounds import Ground, Words
from backplay.app.scene import GAMES, Scene

_HEAD = "import backplay as bp\nfrom backplay import models"
_READING = (
    "from backplay.text.batches import batches\nfrom backplay.text.explaining import read_text\n"
    "from backplay.text.reader import Reader"
)


def explore(scene: Scene, ground: Ground) -> str:
    """The map and the play behind it: `heat` and `play`, of a sentence `found` with its scores."""
    if isinstance(ground, Words):
        return "\n".join([*_start(scene, ground), _sentence(scene, ground, "found"), "found.show()"])
    lines = [
        *_start(scene, ground),
        *_picture(scene, ground),
        f"play = {_game(scene)}.play(x, {ground.target(scene.target)})",
        "heat = play.attribution()",
        "print(play.value, play.health())",
        'bp.view.heatmap(heat, x, model=loaded).savefig("map.png")',
        'bp.view.players(play, model=loaded).savefig("players.png")',
        'bp.view.walks(play.sample(40, arriving=True), model=loaded).savefig("walks.png")',
        'bp.view.flow(play, model=loaded).savefig("flow.png")',
    ]
    return "\n".join(lines)


def at_pixel(at: tuple[int, ...]) -> str:
    """The walks that end at a pixel: `there`."""
    return (
        "import torch\n\nmask = torch.zeros_like(x, dtype=torch.bool)\n"
        f"mask[:, :, {at[0]}, {at[1]}] = True\n"
        'there = play.through("input", mask)\n'
        "print(there.share)"
    )


def reading(scene: Scene, ground: Words, name: str = "play", loaded: str = "loaded") -> list[str]:
    """The lines that play a game on a sentence."""
    return [
        f"reader = Reader({loaded}.model, {loaded}.tokenizer)",
        f"text = [read_text(reader, {scene.text!r})]",
        "batch, = batches(reader, text, [reader.answer(text[0])])",
        f"{name} = {_game(scene, loaded)}.play(batch.arguments, {ground.target(scene.target)})",
    ]


def inside_sentence(scene: Scene, ground: Words, at: tuple[int, ...] | None, layer: str, k: int) -> str:
    """The walks that end at a token, `there`; the channels of a layer, `in_layer`."""
    lines = [_READING, "", *reading(scene, ground)]
    if at is not None:
        lines += [
            "import torch",
            "",
            'mask = torch.zeros_like(batch.arguments["inputs_embeds"], dtype=torch.bool)',
            f"mask[:, {ground.start + at[0]}] = True",
            "there = play.through(play.network.input, mask)",
            "print(there.share)",
        ]
    if layer:
        lines += [f"in_layer = bp.concepts(play, {layer!r}, k={k})", "print(in_layer.index, in_layer.relevance)"]
    return "\n".join(lines)


def in_layer(layer: str, k: int) -> str:
    """The channels of a layer: `found`."""
    return f'found = bp.concepts(play, {layer!r}, k={k})\nfound.plot().savefig("channels.png")'


def compare(scenes: Sequence[Scene], grounds: Sequence[Ground], target: int) -> str:
    """Both plays and their distance `h`."""
    lines = _imports(scenes, grounds)
    for name, scene, ground in zip("ab", scenes, grounds, strict=True):
        loaded = f"loaded_{name}"
        lines.append(f"{loaded} = {_loader(ground)}({scene.model!r})")
        if isinstance(ground, Words):
            lines += reading(replace(scene, target=target), ground, name, loaded)
            continue
        lines += _picture(scene, ground, loaded)
        lines.append(f"{name} = {_game(scene, loaded)}.play(x, {target})")
    lines += ["h = bp.hellinger(a, b)", "print(h.distance, h.surviving)", 'h.plot().savefig("distance.png")']
    return "\n".join(lines)


def methods(scene: Scene, ground: Ground, chosen: Mapping[str, Mapping[str, Any]], target: int) -> str:
    """The maps of several methods: `maps`, by name."""
    listed = "".join(f"    {name!r}: {dict(params)!r},\n" for name, params in chosen.items())
    lines = [*_start(scene, ground), *_picture(scene, ground), f"chosen = {{\n{listed}}}"]
    if isinstance(ground, Words):
        call = f"bp.text.explain(loaded.model, loaded.tokenizer, {scene.text!r}, {target}, name, **params)[0].scores"
        return "\n".join([*lines, f"maps = {{name: {call} for name, params in chosen.items()}}"])
    call = f"bp.explain(loaded.model, x, {target}, name, **params)"
    return "\n".join(
        [
            *lines,
            f"maps = {{name: {call} for name, params in chosen.items()}}",
            'bp.view.panels(x, maps, model=loaded).savefig("methods.png")',
        ]
    )


def _start(scene: Scene, ground: Ground) -> list[str]:
    return [*_imports([scene], [ground]), f"loaded = {_loader(ground)}({scene.model!r})"]


def _imports(scenes: Sequence[Scene], grounds: Sequence[Ground]) -> list[str]:
    lines = [_HEAD]
    if any(isinstance(ground, Words) for ground in grounds) and len(grounds) > 1:
        lines.append(_READING)
    drawn = [s for s, g in zip(scenes, grounds, strict=True) if not isinstance(g, Words) and not g.file]
    if drawn:
        lines[0] += ", zoo"
    if any(not scene.model.startswith("zoo:") for scene in drawn):
        lines.append("from PIL import Image")
    return [*lines, ""]


def _loader(ground: Ground) -> str:
    return "models.load_text" if isinstance(ground, Words) else "models.load"


def _picture(scene: Scene, ground: Ground, loaded: str = "loaded") -> list[str]:
    """The lines that make `x`."""
    if isinstance(ground, Words):
        return []
    if ground.file:
        return [f"x = {loaded}.photograph({ground.file!r})[None]"]
    kind, _, number = scene.picture.partition(":")
    cue = ', spurious="wrong"' if kind == "cue" else ""
    drawn = f"zoo.images(1, start={number}{cue}).x"
    if scene.model.startswith("zoo:"):
        return [f"x = {drawn}"]
    return [
        f"colours = zoo.picture({drawn})[0].permute(1, 2, 0)",
        f"x = {loaded}.preprocess(Image.fromarray((255 * colours).round().byte().numpy()))[None]",
    ]


def _game(scene: Scene, loaded: str = "loaded") -> str:
    given = "".join(f", {name}={value!r}" for name, value in scene.keywords().items())
    return f"bp.{GAMES[scene.game].__name__}({loaded}.model{given})"


def _sentence(scene: Scene, ground: Words, name: str) -> str:
    given = "".join(f", {key}={value!r}" for key, value in scene.keywords().items())
    target = ground.goal(scene.target).index
    return (
        f"{name} = bp.text.explain(\n    loaded.model, loaded.tokenizer, {scene.text!r}, {target}, "
        f"{scene.game!r}{given}\n)[0]"
    )
