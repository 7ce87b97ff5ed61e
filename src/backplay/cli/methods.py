"""`backplay methods`: every method and preset by name, or one in full."""

from __future__ import annotations

from typing import Any

import click
import torch

import backplay as bp
from backplay import models
from backplay.cli import columns
from backplay.cli.bar import Bar
from backplay.cli.options import command as declared
from backplay.cli.options import complete_list, json_asked, model_option
from backplay.cli.output import print_json
from backplay.errors import KeywordError, suggestion


@declared("methods", "list the methods and presets; with NAME, one in full")
@click.argument("name", required=False, shell_complete=complete_list(columns.names))
@model_option(required=False)
def command(name: str | None, model: str | None) -> int:
    if name is not None and name not in columns.names():
        hint = suggestion(name, columns.names())
        raise KeywordError(f"no method named {name!r}{hint}; `backplay methods` lists them.")
    network = None if model is None else _captured(model)
    found = [describe(info, network) for info in bp.methods().values() if name in (None, info.name)]
    presets = [_preset(key, network) for key in bp.presets if name in (None, key) and key not in bp.methods()]
    if json_asked():
        print_json(found[0] if name and found else presets[0] if name else [*found, *presets])
    elif name is not None:
        print("\n".join(_in_full(found[0]) if found else _preset_lines(presets[0])))
    else:
        print("\n".join(_short(found, presets)))
    return 0


def describe(info: bp.MethodInfo, network: bp.Network | None) -> dict[str, Any]:
    """A method as JSON; with a network, whether it fits, and the reason if not."""
    entry = {
        "name": info.name,
        "title": info.title,
        "family": info.family,
        "architectures": list(info.architectures),
        "params": {name: {"default": p.default, "range": p.range, "note": p.note} for name, p in info.params.items()},
        "layers": info.layers or "layer" in info.params,
        "grid": [dict(point) for point in info.grid],
        "reference": info.reference,
        "about": (info.function.__doc__ or "").strip().split("\n")[0],
    }
    if network is not None:
        why = info.refusal(network)
        entry |= {"fits": why is None, "refusal": why}
    return entry


def _preset(name: str, network: bp.Network | None) -> dict[str, Any]:
    preset = bp.presets[name]
    entry = {
        "name": name,
        "preset": {**preset.keywords, **(preset.reynolds or {})},
        "method": columns.method_of(name),
        "architecture": preset.architecture,
        "purpose": preset.purpose,
        "reference": preset.table,
    }
    if network is not None:
        why = preset.misfit(network)
        entry |= {"fits": why is None, "refusal": why}
    return entry


def _captured(name: str) -> bp.Network:
    """What fits does not depend on the weights, so that random ones do."""
    with Bar(f"loading {name}") as bar:
        loaded = models.load(name, models.RANDOM)
        bar.say(f"following {name}")
        return bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))


def _short(found: list[dict[str, Any]], presets: list[dict[str, Any]]) -> list[str]:
    """A line each, family by family: its name, as it stands over maps, what it is; then the presets."""
    width = max(len(entry["name"]) for entry in [*found, *presets])
    titles = max(len(entry["title"]) for entry in found)
    lines: list[str] = []
    for family in dict.fromkeys(entry["family"] for entry in found):
        lines += [*([""] if lines else []), f"{family}:"]
        lines += [
            f"  {e['name']:{width}}  {e['title']:{titles}}  {e['about'].rstrip('.')}".rstrip() + _fits(e)
            for e in found
            if e["family"] == family
        ]
    lines += ["", "presets (modes that the paper selected):"]
    for entry in presets:
        kind = "any network" if entry["architecture"] == "any" else f"for {entry['architecture']}"
        lines.append(f"  {entry['name']:{width}}  {kind}: {entry['purpose']}{_fits(entry)}")
    return [*lines, "", "backplay methods NAME tells of one: its parameters, their ranges, where it comes from"]


def _fits(entry: dict[str, Any]) -> str:
    return "" if entry.get("fits", True) else f" (does not fit: {entry['refusal']})"


def _in_full(entry: dict[str, Any]) -> list[str]:
    lines = [f"{entry['name']}: {entry['title']}, {entry['family']}, for {' and '.join(entry['architectures'])}"]
    lines += [entry["about"]] if entry["about"] else []
    if "fits" in entry:
        lines.append("fits" if entry["fits"] else f"does not fit: {entry['refusal']}")
    for name, param in entry["params"].items():
        note = param["note"] and f"; {param['note']}"
        lines.append(f"  --{name.replace('_', '-')} {param['default']}: {param['range']}{note}")
    if entry["layers"] and "layer" not in entry["params"]:
        lines.append(f"  --layer None: {columns.LAYER.range}; {columns.LAYER.note}")
    return [*lines, _grid(entry["grid"], entry["params"]), entry["reference"]]


def _preset_lines(entry: dict[str, Any]) -> list[str]:
    kind = "any network" if entry["architecture"] == "any" else f"networks like {entry['architecture']}"
    given = ", ".join(f"{k} {v}" for k, v in entry["preset"].items()) or "the defaults"
    lines = [f"{entry['name']}: a preset of {entry['method']} for {kind}: {entry['purpose']}", f"  {given}"]
    if "fits" in entry:
        lines.append("fits" if entry["fits"] else f"does not fit: {entry['refusal']}")
    return [*lines, f"selected in {entry['reference']}"]


def _grid(points: list[dict[str, Any]], params: dict[str, Any]) -> str:
    """The values of each parameter over the paper's validation grid; a point that leaves one out has its default."""
    varied = dict.fromkeys(name for point in points for name in point)
    if not varied:
        return "validation grid: the defaults alone"
    values = {name: dict.fromkeys(point.get(name, params[name]["default"]) for point in points) for name in varied}
    listed = "; ".join(f"{name} {', '.join(map(str, found))}" for name, found in values.items())
    return f"validation grid, {len(points)} {'point' if len(points) == 1 else 'points'}: {listed}"
