"""`backplay explain --text`: a page with the maps of each text, and their numbers."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import backplay as bp
from backplay import models
from backplay.cli.bar import Bar, aside
from backplay.cli.columns import Column
from backplay.cli.explaining import told_of
from backplay.cli.options import json_asked
from backplay.cli.output import finite, whole
from backplay.cli.runs import Item, open_run
from backplay.errors import BackplayError
from backplay.text.html import page
from backplay.text.maps import TokenMap

_SLUG = 40  # letters of a text in a file's name


def explain(
    texts: Sequence[str],
    model: str,
    weights: str | None,
    columns: Sequence[Column],
    target: str | None,
    against: str | None,
    position: str | None,
    out: Path,
) -> tuple[dict[str, Any], int]:
    """The report of a run, and its exit code: 3 where some texts failed, 1 where all of them did."""
    asked = {"target": target, "against": against, "position": position}
    run, parameters = open_run(out, (".html", ".json"), model, weights, columns, asked)
    items = [Item(text, _slug(text)) for text in dict.fromkeys(texts)]
    todo = [item for item in items if not run.is_done(item, _digest(item))]
    failed: dict[str, str] = {}
    with Bar(f"loading {model}", len(items)) as bar:
        loaded = models.load_text(model, weights) if todo else None
        for item in items:
            if item in todo and loaded is not None:
                bar.say("explaining texts")
                try:
                    maps = _maps(loaded, item.key, columns, *(_number(v) for v in asked.values()))
                except BackplayError as error:
                    failed[item.key] = " ".join(str(error).split())
                    with aside():
                        print(f"backplay explain: {item.key[:40]!r}: {failed[item.key]}", file=sys.stderr, flush=True)
                    continue
                run.claim({item: _digest(item)}, parameters)
                run.done(item, _digest(item), _write(item, maps, run.files(item)))
            _say(run.report(item))
            bar.advance(1)
    if run.record is not None and todo:
        run.write()
    report = {
        "model": model if loaded is None else loaded.source,
        "columns": run.settings["columns"],
        "out": str(out),
        "record": None if run.record is None else str(run.record),
        "texts": [run.report(item) for item in items if item.key not in failed],
        "failed": [{"text": text, "error": why} for text, why in failed.items()],
        "skipped": len(items) - len(todo),
    }
    return report, 0 if not failed else 1 if len(failed) == len(items) else 3


def _maps(
    loaded: models.LoadedText, text: str, columns: Sequence[Column], target: Any, against: Any, position: Any
) -> dict[Column, TokenMap]:
    def explained(column: Column) -> TokenMap:
        given = {k: v for k, v in column.params.items() if v != bp.methods()[column.method].params[k].default}
        asked: dict[str, Any] = {"against": against, "position": position, **given}
        return bp.text.explain(loaded.model, loaded.tokenizer, text, target, column.method, **asked)[0]

    return {column: explained(column) for column in columns}


def _write(item: Item, maps: dict[Column, TokenMap], files: Sequence[Path]) -> dict[str, Any]:
    picture, numbers = files
    first = next(iter(maps.values()))
    parts = [f"<h2>{escape(column.title)}</h2>{found.html()}" for column, found in maps.items()]
    with whole(picture) as path:
        path.write_text(page(f"{first.target}: {item.key[:60]}", parts), encoding="utf-8")
    content = {column.name: found.to_dict() for column, found in maps.items()}
    with whole(numbers) as path:
        path.write_text(json.dumps(finite(content), ensure_ascii=False, indent=1), encoding="utf-8")
    return {
        "text": item.key,
        "class": first.target,
        "target": first.goal.index,
        "against": first.goal.against,
        "against_class": first.against,
        "value": first.value,
        "maps": {
            column.name: {"arrives": found.arrives, "strongest": strongest(found)} for column, found in maps.items()
        },
        "figure": str(picture),
        "numbers": str(numbers),
    }


def strongest(found: TokenMap) -> str:
    """The token with the largest score for the target, special ones aside."""
    scored = [
        (s, piece)
        for s, piece, special in zip(found.scores.tolist(), found.pieces, found.special, strict=True)
        if not special
    ]
    return max(scored)[1] if scored else ""


def _say(report: dict[str, Any]) -> None:
    if json_asked():
        return
    words = ", ".join(dict.fromkeys(one["strongest"] for one in report["maps"].values()))
    against = f" rather than {report['against_class']}" if report["against"] is not None else ""
    with aside():
        print(
            f"{report['text'][:40]!r}: {report['class']} ({report['target']}){against}, value {report['value']:.4g}, "
            f"most by {words!r}; {told_of(report)}; {report['figure']}",
            flush=True,
        )


def _slug(text: str) -> str:
    found = "-".join(re.findall(r"\w+", text.lower()))
    return found.encode()[:_SLUG].decode(errors="ignore").strip("-") or "text"


def _digest(item: Item) -> str:
    return hashlib.sha256(item.key.encode()).hexdigest()


def _number(text: str | None) -> int | str | None:
    """A number where it is one, else a name."""
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else text
