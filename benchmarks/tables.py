"""The results as Markdown: a table for each section, ratios to the gradient of the same run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bars import Cases, bars

FILE = "README.md"
TITLES = {
    "games": "Games",
    "peers": "Peers",
    "growth": "Growth",
    "memory": "Memory",
    "capture": "Capture",
}


def write(folder: Path, machine: dict[str, Any], cases: Cases) -> None:
    """The page of a folder of results."""
    (folder / FILE).write_text("\n".join(_page(folder, machine, cases)) + "\n", encoding="utf-8")


def _page(folder: Path, machine: dict[str, Any], cases: Cases) -> Iterator[str]:
    yield "# Speed and memory\n"
    revisions = ", ".join(sorted({str(c["revision"]) for c in cases.values()}))
    yield "Written by `make bench`; `results.json` holds every figure. Networks have random weights, those of the zoo"
    yield "apart. Ratios are medians of interleaved rounds, beside one gradient (forward and backward) of the same"
    yield "network on the same input in the same run.\n"
    yield f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads, torch {machine['torch']};"
    yield f"revision {revisions}.\n"
    promised = bars(cases)
    if promised:
        yield "## Bars\n"
        yield from _table(
            ["promise", "network", "bar", "found", "holds"],
            [[b.promise, b.network, b.limit, f"{b.found:.2f}", "yes" if b.holds else "**no**"] for b in promised],
        )
    for section, title in TITLES.items():
        chosen = [c for c in cases.values() if c["section"] == section]
        if chosen:
            yield f"## {title}\n"
            yield from _SECTIONS[section](chosen)
            yield from _notes(chosen)
    pictures = sorted(folder.glob("*.png"))
    yield from (f"![{picture.stem.replace('-', ' ')}]({picture.name})" for picture in pictures)


def _beside_gradient(cases: list[dict[str, Any]]) -> Iterator[str]:
    """A table for each batch size, a column for each network; the gradient in seconds, all else beside it."""
    for batch in sorted({c["batch"] for c in cases}):
        chosen = [c for c in cases if c["batch"] == batch]
        names = list(dict.fromkeys(r["what"] for c in chosen for r in c["rows"]))
        lines = [[what, *(_cell(_row(c, what)) for c in chosen)] for what in names]
        yield from _table([f"batch {batch}", *(c["network"] for c in chosen)], lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["seconds"] is None:
        return "–"
    return _seconds(row["seconds"]) if row["what"] == "gradient" else f"{row['ratio']:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 0.1 else f"{1e3 * value:.3g} ms"


def _growth(cases: list[dict[str, Any]]) -> Iterator[str]:
    for axis in dict.fromkeys(c["axis"] for c in cases):
        chosen = sorted((c for c in cases if c["axis"] == axis), key=lambda c: c[axis])
        names = list(dict.fromkeys(r["what"] for c in chosen for r in c["rows"]))
        lines = [[str(c[axis]), *(_cell(_row(c, what)) for what in names)] for c in chosen]
        yield from _table([f"{chosen[0]['network']}, {axis}", *names], lines)


def _memory(cases: list[dict[str, Any]]) -> Iterator[str]:
    yield "Peak above the loaded model in a fresh process, in MB. The first map prepares weights; `working` is the next"
    yield "one's peak above what was held before it.\n"
    figures = ("first MB", "working MB", "prepared MB", "parameters MB")
    lines = [
        [f"{c['network']}, batch {c['batch']}", r["what"], *(f"{r[figure]:.0f}" for figure in figures), _ratio(r)]
        for c in cases
        for r in c["rows"]
        if "first MB" in r
    ]
    yield from _table(["network", "", *(f.removesuffix(" MB") for f in figures), "working / gradient's"], lines)


def _captures(cases: list[dict[str, Any]]) -> Iterator[str]:
    lines: list[list[str]] = []
    for c in cases:
        export, own = _row(c, "torch.export"), _row(c, "capture")
        if export is None or own is None or own["seconds"] is None:
            lines.append([c["network"], "", "–", "", "", ""])
            continue
        each = f"{own['milliseconds a node']:.1f} ms"
        times = [_seconds(row["seconds"]) for row in (export, own)]
        lines.append([c["network"], *times, _ratio(own), f"{own['nodes']:.0f}", each])
    yield from _table(["network", "torch.export", "capture", "ratio", "nodes", "a node"], lines)


def _ratio(row: dict[str, Any]) -> str:
    return "" if row["ratio"] is None else f"{row['ratio']:.2f}"


def _row(case: dict[str, Any], what: str) -> dict[str, Any] | None:
    return next((r for r in case["rows"] if r["what"] == what), None)


def _notes(cases: list[dict[str, Any]]) -> Iterator[str]:
    """What rows say in words, each sentence once with the networks that it holds for."""
    said: dict[tuple[str, str], list[str]] = {}
    for c in cases:
        for r in c["rows"]:
            if r["why"]:
                networks = said.setdefault((r["what"], r["why"]), [])
                if c["network"] not in networks:
                    networks.append(c["network"])
    for (what, why), networks in said.items():
        yield f"- {what} on {', '.join(networks)}: {why}"
    if said:
        yield ""


def _table(head: list[str], lines: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(line)} |" for line in lines)
    yield ""


_SECTIONS = {
    "games": _beside_gradient,
    "peers": _beside_gradient,
    "growth": _growth,
    "memory": _memory,
    "capture": _captures,
}
