"""`backplay explain`: a heat-map of each photograph."""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import backplay as bp
from backplay import models, photographs
from backplay.cli.output import check_folder, folder, png, print_json, whole
from backplay.cli.parser import Commands, Once, Parser, add_command, add_model
from backplay.errors import InputError, UnsupportedError, suggestion
from backplay.games.health import Health
from backplay.keywords import Choice, Keyword, Number
from backplay.progress import Progress

GAMES = {"sg": bp.StoppingGame, "rg": bp.RoutingGame}
_PARAMETER = "parameter "  # before a method's own options, whose names are its business


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "explain", "explain photographs: a heat-map and its numbers for each", run)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a photograph")
    add_model(parser, "weights: a file, or 'random'; if left out, the trained ones, if they are on this machine")
    parser.add_argument(
        "--method", default="rg", action=Once, metavar="NAME", help="see `backplay methods` (default: %(default)s)"
    )
    parser.add_argument(
        "--target", metavar="CLASS", help="the class to explain, by number or name (default: the largest logit)"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    if "explain" in given[:2]:  # `backplay explain`, or `backplay --json explain`
        _add_parameters(parser, given)


def _add_parameters(parser: Parser, given: list[str]) -> None:
    """The method's own parameters become options, so that they are read before and after the images alike."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--method", default="rg", nargs="?")
    method = first.parse_known_args(given)[0].method
    if method is None:  # no name behind it, which the parser itself will say
        return
    known = bp.methods()
    if method not in known:
        parser.error(f"no method named {method}{suggestion(method, known)}: there are {', '.join(known)}")
    parser.elsewhere = _elsewhere(method)
    group = parser.add_argument_group(f"parameters of {method}")
    for name, param in known[method].params.items():
        group.add_argument(
            *_spellings(name),
            dest=_PARAMETER + name,
            type=partial(_value, param),
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{param.note and param.note + '; '}{param.range} (default: {param.default})".replace("%", "%%"),
        )


def _spellings(name: str) -> list[str]:
    return list(dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"]))


def _elsewhere(method: str) -> dict[str, str]:
    """For each option that only other methods have: which ones."""
    owners: dict[str, list[str]] = {}
    for info in bp.methods().values():
        for name in info.params:
            owners.setdefault(name, []).append(info.name)
    return {
        spelling: f": {method} has no such parameter; {', '.join(names)} {'has' if len(names) == 1 else 'have'} it"
        for name, names in owners.items()
        if method not in names
        for spelling in _spellings(name)
    }


def _value(accepts: Keyword, text: str) -> Any:
    """Text as what the keyword accepts; a word or number out of its range stays, and its range check will say so."""
    if accepts.default is None and text.lower() == "none":
        return None
    if isinstance(accepts, Choice):
        return {"true": True, "false": False}.get(text.lower(), text) if True in accepts.choices else text
    if not isinstance(accepts, Number):
        return text
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; it takes {accepts.range}") from None
    if not accepts.whole:
        return number
    try:
        return int(text)
    except ValueError:  # 2.5
        return text


def run(options: argparse.Namespace) -> int:
    params = {k.removeprefix(_PARAMETER): v for k, v in vars(options).items() if k.startswith(_PARAMETER)}
    complete = all_parameters(options.method, params)  # before anything that takes long
    for path in options.images:
        photographs.read(path)
    out = check_folder(options.out)  # made only once there is a map to write
    names = _names(options.images, options.method, out)
    with Progress(f"loading {options.model}") as progress:
        loaded = models.load(options.model, options.weights)
        target = None if options.target is None else _target(options.target, loaded)
        network, found = None, list[dict[str, Any]]()
        for k, (path, name) in enumerate(zip(options.images, names, strict=True)):
            progress.say(f"explaining {path.name}, {k + 1} of {len(names)}")
            x = loaded.photograph(path)[None]
            if network is None or tuple(network.input.shape[1:]) != tuple(x.shape[1:]):
                network = bp.capture(loaded.model, x)
            heat, report = explain_image(network, x, target, options.method, params)
            found.append({"image": str(path), **report, "class": loaded.class_name(report["target"])})
            found[-1] |= _write(heat[0], folder(out) / name)
    if options.json:
        print_json({"model": loaded.source, "method": options.method, "params": complete, "maps": found})
    else:
        print(f"{loaded.source}, explained by {options.method}")
        for report in found:
            print(_line(report))
    unsound = [report["image"] for report in found if not report["ok"]]
    if unsound:
        print(f"backplay explain: {len(unsound)} of {len(found)} maps are not sound: {unsound[0]}", file=sys.stderr)
    return 1 if unsound else 0


def all_parameters(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """All parameters, defaults too, so that a record of them outlives a change of the defaults.

    Refuses a method that lacks its library, parameters out of their range, and those that exclude each other.
    """
    info = bp.methods()[method]
    info.check_libraries()
    complete = info.check(params)
    if method in GAMES:
        GAMES[method].modes_type(**params)
    return complete


def _target(text: str, loaded: models.Loaded) -> int:
    """The number of a class; names are looked up where the model brings them, whatever their case."""
    try:
        return int(text)
    except ValueError:
        pass
    if loaded.classes is None:
        raise InputError(f"--target {text}: nobody named the classes of {loaded.source}; give a number.")
    found = [k for k, name in enumerate(loaded.classes) if name.casefold() == text.casefold()]
    if not found:
        hint = suggestion(text, loaded.classes)
        raise InputError(f"--target {text}: the model has no such class{hint}; give its name or number.")
    if len(found) > 1:  # ImageNet has two cranes
        raise InputError(f"--target {text}: classes {', '.join(map(str, found))} have this name; give a number.")
    return found[0]


def explain_image(
    network: bp.Network, x: Tensor, target: int | None, method: str, params: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """The map of one image (1, 3, H, W), and what is known of it; the games report their health."""
    with torch.no_grad():
        logits = network.model_logits({network.keys[0]: x})[0]
    if logits.ndim != 1:
        raise InputError(f"the model returns {tuple(logits.shape)} for an image; explain classifies: (classes,).")
    if target is not None and not 0 <= target < len(logits):
        raise InputError(f"--target {target}: the model has the classes 0 to {len(logits) - 1}.")
    chosen = int(logits.argmax()) if target is None else target
    health = None
    if method in GAMES:
        heat, health = _played(GAMES[method](network, **params), x, chosen)
    else:
        heat = bp.explain(network, x, chosen, method=method, **params)
    return heat, {
        "target": chosen,
        "predicted": int(logits.argmax()),
        "logit": float(logits[chosen]),
        "sum": float(heat.sum()),
        "ok": bool(torch.isfinite(heat).all()) and (health is None or health.ok),
        "health": None if health is None else {"ok": health.ok, "summary": health.summary, **asdict(health)},
    }


def _played(game: bp.StoppingGame | bp.RoutingGame, x: Tensor, target: int) -> tuple[Tensor, Health | None]:
    """The map of a game and its health; where gradients take the walk's place there is no health, but a map (S25)."""
    try:
        play = game.play(x, target)
        return play.attribution(), play.health()
    except UnsupportedError:
        return game.attribute(x, target), None


def _names(images: list[Path], method: str, out: Path) -> list[str]:
    """`cat-rg` for cat.jpg, numbered where two images have one name; no result takes the place of an image."""
    names: list[str] = []
    for path in images:
        stem = f"{path.stem}-{method}"
        numbered = (f"{stem}-{k}" for k in itertools.count(2))
        names.append(next(name for name in itertools.chain([stem], numbered) if name not in names))
    given = {path.resolve() for path in images}
    for name in names:
        if (out / f"{name}.png").resolve() in given:
            raise InputError(f"{out / name}.png is one of the images and would be overwritten; give another --out.")
    return names


def _write(heat: Tensor, stem: Path) -> dict[str, str]:
    picture, numbers = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.npy")
    with whole(numbers) as path, path.open("wb") as file:
        np.save(file, heat.numpy())
    with whole(picture) as path:
        png(heat, path)
    return {"picture": str(picture), "array": str(numbers)}


def _line(report: dict[str, Any]) -> str:
    state = report["health"]["summary"] if report["health"] else "finite" if report["ok"] else "NaN or Inf in the map"
    return (
        f"{report['image']}: {report['class']} ({report['target']}), logit {report['logit']:.4g}, "
        f"map sums to {report['sum']:.4g}; {state}; {report['picture']}, {report['array']}"
    )
