"""docs/results.md: what the runs on real networks say, its tables made from the rows that are kept here.

    python results/make_page.py keep     # take the rows of finished or stopped runs over from out/real
    python results/make_page.py restore  # put them back there, where out/real has none, to go on with them
    python results/make_page.py          # write the tables of the page anew

A table of the page stands between `<!-- NAME -->` and `<!-- end -->`; what is written around it is kept.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from backplay import bench
from backplay.bench import formats
from backplay.bench.config import Config
from backplay.bench.data import SPLITS
from backplay.bench.metrics import LOCALISATION, METRICS
from backplay.bench.plan import TOGETHER, Plan, means_of
from backplay.bench.rows import canonical
from backplay.bench.runs import adopted, fittings, rows_of
from backplay.bench.statistics import holm, interval, paired
from backplay.bench.tables import Finished, Row, words

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "real"
PAGE = ROOT / "docs" / "results.md"
ROWS = "rows-000001.parquet"  # the name of a run's first rows in its own folder
FILES = ("networks.json", "winners.json")  # of a run's folder, beside its rows
SAMPLE = ("split", "method", "params", "index")  # what tells the samples of a run apart
FORMATS = ("md", "csv", "html")
_PART = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def runs() -> list[str]:
    """The runs whose rows are kept, in the order of `run.sh`."""
    listed = re.search(r"\$\{\*:-(.*)\}", (KEPT / "run.sh").read_text())
    assert listed is not None
    return [name for name in listed[1].split() if (KEPT / name / "rows.parquet").exists()]


def config(name: str) -> Config:
    os.environ.setdefault("BACKPLAY_PETS", "out/pets")  # where the photographs were; no table reads them
    return bench.load(KEPT / f"{name}.yaml")


def keep(name: str, out: Path) -> None:
    """The rows of a run as one small file, with its tables; which process computed a row is of no use to others."""
    rows = bench.read(out)
    if not len(rows):
        return
    folder = KEPT / name
    folder.mkdir(exist_ok=True)
    place = rows.schema.get_field_index("worker")
    rows = rows.set_column(place, "worker", pyarrow.nulls(len(rows), pyarrow.string()))
    rows = rows.sort_by([(key, "ascending") for key in ("split", "method", "params", "index", "metric")])
    pyarrow.parquet.write_table(rows, folder / "rows.parquet", compression="zstd", write_page_checksum=True)
    for file in FILES:
        if (out / file).exists():
            shutil.copy(out / file, folder / file)
    for form in FORMATS:
        text = bench.write(tables(name), form, time=False)
        (folder / f"tables.{form}").write_text(text, encoding="utf-8")


def restore(name: str, folder: Path) -> None:
    """The folder of a run, made again from what is kept of it; `--resume` goes on with it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config(name).text)
    shutil.copy(KEPT / name / "rows.parquet", folder / ROWS)
    for file in FILES:
        if (KEPT / name / file).exists():
            shutil.copy(KEPT / name / file, folder / file)


@contextmanager
def opened(name: str) -> Iterator[Path]:
    """The folder of a run for a while, with the rows that can be compared."""
    with tempfile.TemporaryDirectory() as made:
        restore(name, Path(made))
        pyarrow.parquet.write_table(comparable(name), Path(made) / ROWS)
        yield Path(made)


def tables(name: str) -> list[Finished]:
    with opened(name) as folder:
        return bench.build(folder)


# The parts of the page


def shown(name: str) -> str:
    """The tables of a run; rows without a value are left out."""
    found: list[str] = []
    for table in tables(name):
        table.rows = [row for row in table.rows if any(entry.count for entry in row.entries)]
        if table.rows:
            found.append(bench.write([table], "md", time=False).replace(f"{formats.LEGEND}\n", ""))
    return "\n".join(found)


def comparable(name: str) -> pyarrow.Table:
    """The rows of a run on the photographs that every cell of a split has: of a stopped run, those of whole rounds.

    A cell that has not seen one round of photographs is left out.
    """
    rows = pyarrow.parquet.read_table(KEPT / name / "rows.parquet")
    samples = list(zip(*(rows.column(key).to_pylist() for key in SAMPLE), strict=True))
    seen: dict[tuple[str, ...], set[int]] = {}
    for *cell, index in samples:
        seen.setdefault(tuple(cell), set()).add(index)
    count = sizes(config(name))
    whole = {cell: found for cell, found in seen.items() if len(found) >= min(TOGETHER, count[cell[0]])}
    common = {split: set.intersection(*(whole[c] for c in whole if c[0] == split)) for split, *_ in whole}
    return rows.filter(pyarrow.array([tuple(cell) in whole and index in common[cell[0]] for *cell, index in samples]))


def _label(row: Row) -> str:
    return f"{row.title} {words(row.line.params)}".strip()


def sizes(read: Config) -> dict[str, int]:
    """Photographs of each split: one of four of a breed is for validation, and 24 breeds are ImageNet classes."""
    breeds = 24 if read.data.get("targets") == "imagenet" else 37
    return {"validation": read.data.get("validation", breeds), "test": read.data.get("test", 3 * breeds)}


Values = dict[tuple[str, str, str], dict[int, float]]  # by method, parameters and metric: of each sample


def values(name: str, split: str = "test") -> Values:
    found: Values = {}
    for row in comparable(name).to_pylist():
        if row["split"] == split and row["value"] is not None:
            found.setdefault((row["method"], row["params"], row["metric"]), {})[row["index"]] = row["value"]
    return found


def rivals(name: str) -> str:
    """The Routing Game's selected point beside each other method, sample by sample, in every metric of the run.

    Of each metric: the mean difference, positive where the Routing Game is better, its 95 % bootstrap interval, and a
    star where the sign-flip test finds it significant after Holm's correction over the rows of the column.
    """
    table = tables(name)[0]
    games = [row for row in table.rows if row.line.method == "rg"]
    ours = next((row for row in games if not row.line.anchor), games[0])
    found = values(name)
    others = [row for row in table.rows if row.line.method != "rg" and any(entry.count for entry in row.entries)]
    columns = [column for column in table.columns if column.name in METRICS and column.name != "seconds"]
    cells = [[_better(found, _key(ours), _key(row), column.name) for row in others] for column in columns]
    adjusted = [holm([cell[3] for cell in column]) for column in cells]
    lines = [
        formats.barred([f"RG ({words(ours.line.params) or 'anchor'}) beside", *(column.title for column in columns)]),
        formats.barred(["---"] * (1 + len(columns))),
    ]
    for k, row in enumerate(others):
        lines.append(formats.barred([_label(row), *(_text(c[k], p[k]) for c, p in zip(cells, adjusted, strict=True))]))
    return "\n".join(lines) + "\n"


Key = tuple[str, str]  # method and parameters
Difference = tuple[float, float, float, float]  # mean, interval, p-value
NOTHING: Difference = (np.nan, np.nan, np.nan, np.nan)


def _key(row: Row) -> Key:
    return row.line.method, row.line.cell.params


def _better(found: Values, ours: Key, other: Key, metric: str) -> Difference:
    """How much better `ours` is, over the samples that both have."""
    mine, rival = (found.get((*key, metric), {}) for key in (ours, other))
    both = sorted(set(mine) & set(rival))
    if not both:
        return NOTHING
    sign = 1 if METRICS[metric].better == "higher" else -1
    differences = sign * np.array([mine[k] - rival[k] for k in both])
    return (float(differences.mean()), *interval(differences), paired(differences))


def _text(cell: Difference, p: float) -> str:
    mean, low, high, _ = cell
    if np.isnan(mean):
        return "–"
    star = "\\*" if p < 0.05 else ""
    return f"{mean:+.3f}{star} [{low:+.3f}, {high:+.3f}]"


@dataclass(frozen=True)
class Claim:
    """Something that the paper finds, as a difference of two cells of a run: `ours` is better than `other`."""

    says: str
    run: str
    ours: Key
    other: Key
    metrics: tuple[str, ...] = LOCALISATION


def _rg(**params: Any) -> Key:
    return "rg", canonical(params)


SHIFTED = {"tau": 0.5, "input_variance": 2}
EQUIVARIANT = "rg_eq", canonical({"tau": 0.5, "n": 10})
CLAIMS = (
    Claim("ViT: τ = 0.5 localises better than τ = 1", "vit", _rg(tau=0.5), _rg()),
    *(
        Claim(
            f"ViT: λ_sm = −{shift}, score `{score}`, localises better than 0 at τ = 0.5",
            "vit-attention",
            _rg(**SHIFTED, attention_risk=-shift, **({} if score == "key" else {"attention_score": score})),
            _rg(**SHIFTED),
        )
        for score in ("key", "relative", "logit")
        for shift in (1, 10)
    ),
    Claim("ViT: λ = −1 changes nothing at τ = 0.5", "vit-attention", _rg(**SHIFTED, risk=-1), _rg(**SHIFTED)),
    Claim("ViT: λ = −5 changes nothing at τ = 0.5", "vit-attention", _rg(**SHIFTED, risk=-5), _rg(**SHIFTED)),
    *(
        Claim(f"ViT: τ = 0.5 localises better than {title}", "vit", _rg(tau=0.5), (method, canonical(params)))
        for title, method, params in (
            ("AttnLRP", "attn_lrp", {}),
            ("GAE", "gae", {}),
            ("TIBAV", "tibav", {}),
            ("the rollout", "rollout", {}),
            ("LRP-ε, ε = 1", "lrp_epsilon", {"epsilon": 1.0, "bias": "absorb"}),
            ("LRP-γ, γ = 0.5", "lrp_gamma", {"gamma": 0.5, "bias": "absorb"}),
            ("DeepLift, z⁺ rule", "deeplift", {"rule": "zplus"}),
            ("the gradient", "gradient", {}),
        )
    ),
    Claim("ViT: RG+Eq localises better than RG, τ = 0.5", "vit-costly", EQUIVARIANT, _rg(tau=0.5)),
    Claim("ResNet: τ = 1 localises better than τ = 2", "resnet50", _rg(), _rg(tau=2.0)),
    Claim("ResNet: τ = 0.8 changes nothing", "resnet50", _rg(tau=0.8), _rg()),
    Claim("ResNet: τ = 1 localises better than τ = 0.5", "resnet50", _rg(), _rg(tau=0.5)),
    Claim("VGG: λ = −1, σ² = 10 localises better than the anchor", "vgg16", _rg(risk=-1, input_variance=10), _rg()),
    Claim("VGG: GradCAM++ points better than the anchor", "vgg16", ("gradcam_pp", "{}"), _rg(), ("pg", "tk")),
)


def claims() -> str:
    """What the paper finds, and what the difference is here; stars as in the other tables, column by column."""
    found = {run: values(run) for run in runs()}
    there = [claim for claim in CLAIMS if claim.run in found and _both(found[claim.run], claim)]
    columns: list[list[str]] = []
    for metric in LOCALISATION:
        cells = [_better(found[c.run], c.ours, c.other, metric) if metric in c.metrics else NOTHING for c in there]
        columns.append([_text(cell, p) for cell, p in zip(cells, holm([cell[3] for cell in cells]), strict=True)])
    head = ["the paper finds", "photographs", *(METRICS[metric].title for metric in LOCALISATION)]
    lines = [formats.barred(head), formats.barred(["---"] * len(head))]
    for claim, *texts in zip(there, *columns, strict=True):
        lines.append(formats.barred([claim.says, str(len(_both(found[claim.run], claim))), *texts]))
    return "\n".join(lines) + "\n"


def _both(found: Values, claim: Claim) -> set[int]:
    """The photographs that both sides of a claim have."""
    ours, other = (set(found.get((*key, claim.metrics[0]), {})) for key in (claim.ours, claim.other))
    return ours & other


def selected(name: str) -> str:
    """What validation chose for each method that had a choice, and from how many points."""
    read = config(name)
    with opened(name) as folder:
        plan = Plan(read, fittings(read, folder)[0])
    measured = values(name, "validation")
    lines = [formats.barred(["method", "selected", "of", "photographs"]), formats.barred(["---"] * 4)]
    for entry in read.tables[0].entries:
        cells = [
            plan.cell("validation", entry.method, point) for point in plan.fitting.points(entry.method, entry.grid)
        ]
        own = {c: {m: float(np.mean(list(measured[c.method, c.params, m].values()))) for m in ("al", "pg", "tk")}
               for c in cells if (c.method, c.params, "al") in measured}  # fmt: skip
        if len(own) < 2 or entry.method not in plan.fitting.fits:
            continue
        winner = plan.winner(read.tables[0], entry, own)
        count = min(len(measured[c.method, c.params, "al"]) for c in own)
        lines.append(formats.barred([entry.method, words(winner or {}) or "defaults", str(len(own)), str(count)]))
    return "\n".join(lines) + "\n"


def done() -> str:
    """How much of each run is there."""
    head = ["run", "network", "validation", "test", "samples", "of"]
    lines = [formats.barred(head), formats.barred(["---"] * len(head))]
    for name in runs():
        rows = pyarrow.parquet.read_table(KEPT / name / "rows.parquet", columns=["model", *SAMPLE]).to_pylist()
        samples = {tuple(row[key] for key in SAMPLE) for row in rows}
        there = [len({sample[-1] for sample in samples if sample[0] == split}) for split in SPLITS]
        cells = [name, rows[0]["model"], *(f"{n} photographs" if n else "–" for n in there)]
        lines.append(formats.barred([*cells, str(len(samples)), str(wanted(name))]))
    return "\n".join(lines) + "\n"


def wanted(name: str) -> int:
    """The samples of a run that has come to its end."""
    read = config(name)
    with opened(name) as folder:
        plan = Plan(read, fittings(read, folder)[0])
        second = plan.second(means_of(rows_of(folder)) | adopted(read, folder))
    count = sizes(read)
    return sum(count[cell.split] for cell in (*plan.first(), *second))


def parts() -> Mapping[str, str]:
    """Every generated part by its name."""
    found = {"done": done(), "claims": claims()}
    for name in runs():
        found[name] = shown(name)
        if any(table.kind == "main" for table in config(name).tables):
            found[f"{name}-rivals"] = rivals(name)
            if config(name).winners is None:
                found[f"{name}-selected"] = selected(name)
    return found


def filled(text: str, made: Mapping[str, str]) -> str:
    """The page with its parts made anew; a part of a run that is not there yet says so."""
    return _PART.sub(lambda m: f"{m[1]}{made.get(m['name'], 'Not measured yet.' + chr(10))}{m[3]}", text)


def main(words: list[str]) -> None:
    made = ROOT / "out" / "real"
    match words:
        case ["keep", *names]:
            for path in sorted(made.iterdir()):
                if (path / "config.yaml").exists() and path.name in (names or [path.name]):
                    keep(path.name, path)
        case ["restore", *names]:
            for name in names or runs():
                if not (made / name).exists():
                    restore(name, made / name)
        case []:
            PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), parts()), encoding="utf-8")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
