"""The runs on real networks that are kept in `results/`: their pages say what their rows say."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from backplay import bench
from backplay.bench.data import open_data
from backplay.bench.runs import session_of
from backplay.bench.store import Store

ROOT = Path(__file__).parents[2]


def script(path):
    """A script as a module; it is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results():
    return script(ROOT / "results" / "make_page.py")


def test_the_page_is_up_to_date(results):
    """After new rows: python results/make_page.py."""
    text = results.PAGE.read_text(encoding="utf-8")
    assert results.filled(text, results.parts()) == text, "run python results/make_page.py"
    assert "Not measured yet" not in text


def test_tables_beside_the_rows_are_theirs(results):
    for name in results.runs():
        tables = results.tables(name)
        for form in results.FORMATS:
            kept = (results.KEPT / name / f"tables.{form}").read_text(encoding="utf-8")
            assert kept == bench.write(tables, form, time=False), f"run python results/make_page.py keep {name}"


def test_a_claim_is_the_mean_of_its_differences(results):
    """τ = 0.5 beside the anchor on the ViT, once more by hand, on the photographs that every method has."""
    rows = pyarrow.parquet.read_table(results.KEPT / "vit" / "rows.parquet").to_pylist()
    measured = {}
    for row in rows:
        if (row["split"], row["metric"]) == ("test", "al"):
            measured.setdefault((row["method"], row["params"]), {})[row["sample"]] = row["value"]
    common = set.intersection(*(set(found) for found in measured.values()))
    sharp, anchor = measured["rg", '{"tau": 0.5}'], measured["rg", "{}"]
    differences = np.array([sharp[name] - anchor[name] for name in common])
    assert len(measured) == 22 and len(differences) == 111
    line = next(line for line in results.claims().splitlines() if "τ = 0.5 localises better than τ = 1" in line)
    assert f"| {len(differences)} | {differences.mean():+.3f}" in line


def test_a_kept_run_can_be_gone_on_with(results, tmp_path):
    """Every sample that is kept counts as done."""
    for name in results.runs():
        results.restore(name, tmp_path / name)
        rows = bench.read(tmp_path / name).to_pylist()
        with Store(tmp_path / name, session_of("again", "", 0), results.config(name).text, resume=True) as store:
            done = {(c.model, c.data, c.split, c.method, c.params, k) for c, k in store.done}
        keys = ("model", "data", "split", "method", "params", "index")
        assert done == {tuple(row[key] for key in keys) for row in rows if row["metric"] != "error"}


def test_rows_name_nobody():
    """Neither the machine nor its processes: rows are for everybody."""
    kept = sorted((ROOT / "results").rglob("*.parquet"))
    assert len(kept) >= 3
    for path in kept:
        rows = pyarrow.parquet.read_table(path)
        assert "worker" not in rows.column_names or rows.column("worker").null_count == len(rows), path


def test_costs_are_up_to_date(monkeypatch):
    """After new rows: python benchmarks/cost.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("IMAGENET_S", "VOC2012"):
        monkeypatch.setenv(name, "nowhere")
    cost = script(ROOT / "benchmarks" / "cost.py")
    text = cost.PAGE.read_text(encoding="utf-8")
    assert f"{cost.BEGIN}{cost.table()}{cost.END}" in text, "run python benchmarks/cost.py"


def test_the_photographs_are_laid_out_as_they_are_published(tmp_path):
    """Four of a breed: the first by name is for validation; class numbers stay what they were."""
    from PIL import Image

    assets = tmp_path / "pets"
    for folder in ("original", "trimaps"):
        (assets / folder).mkdir(parents=True)
    names = [f"{breed}_{k}" for breed in ("Abyssinian", "beagle") for k in (20, 100, 3, 4)]
    for name in names:
        Image.new("RGB", (8, 8)).save(assets / "original" / f"{name}.jpg")
        Image.new("L", (8, 8), 1).save(assets / "trimaps" / f"{name}.png")
    listed = [f"{name},{1 if name[0] == 'A' else 5},{name.partition('_')[0]}" for name in names]
    (assets / "list.csv").write_text("\n".join(["image,class_id,breed", *listed]) + "\n")
    script(ROOT / "results" / "real" / "layout.py").lay_out(assets, tmp_path / "laid")
    for targets, expected in (("breeds", {0, 4}), ("imagenet", {162})):
        data = open_data({"kind": "pets", "root": str(tmp_path / "laid"), "targets": targets})
        for split, each in (("validation", 1), ("test", 3)):
            found = [data.target(split, k) for k in range(data.size(split))]
            assert set(found) == expected and len(found) == each * len(expected)
