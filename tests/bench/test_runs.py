"""Whole runs on the zoo: all engines, kills, failures."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import backplay as bp
from backplay import bench
from backplay.bench import maps
from backplay.bench.engines import start
from backplay.bench.plan import Fitting
from backplay.bench.rows import Job, Outcome, TableCell
from backplay.bench.runs import fittings
from backplay.bench.worker import Worker
from backplay.cli import main

CONFIG = """models: [zoo:vgg]
data: {kind: zoo, validation: 2, test: 3}
metrics: [localisation, pf20, robustness]
limits: {faithfulness: 1, robustness: 2}
draws: 2
seed: 5
tables:
  - kind: main
    methods:
      - gradient
      - {method: smoothgrad, grid: [{n: 2, sigma: [0.1, 0.3]}]}
      - {method: rg, grid: [{tau: [0.5, 0.8]}]}
  - {kind: sweep, title: sweep, method: rg, columns: [al, pg], vary: {tau: [0.5, 1.0, 2.0]}}
"""
# stage 1: 5 points on 2 samples; stage 2: winners, the anchor and the sweep on 3
SAMPLES = 5 * 2 + (3 + 1 + 1 + 1) * 3


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="session")
def inline(config, tmp_path_factory):
    """One run for all tests of this file: those that are slow come long before the others."""
    out = tmp_path_factory.mktemp("runs") / "inline"
    summary = bench.run(bench.load(config), out)
    return out, summary


def text(out):
    return bench.write(bench.build(out), "csv", time=False)


def values(out):
    rows = bench.read(out).to_pylist()
    keys = ("model", "data", "split", "method", "params", "index", "metric")
    return {tuple(row[k] for k in keys): row["value"] for row in rows if row["metric"] not in ("seconds", "cpu")}


@pytest.mark.slow
def test_a_run_from_config_to_table(inline):
    out, summary = inline
    assert summary.done in (SAMPLES, SAMPLES - 3) and summary.failed == 0  # the winner may be a point of the sweep
    assert 0 < summary.busy <= summary.wall
    tables = bench.build(out)
    assert [len(table.rows) for table in tables] == [4, 3]
    titles = [row.title for row in tables[0].rows]
    assert titles == ["Gradient", "SmGrad", "RG", "RG"]
    assert all(entry.value == entry.value for row in tables[0].rows for entry in row.entries)
    rows = bench.read(out).to_pylist()
    assert {row["metric"]: 0 < row["value"] < 60 for row in rows if row["metric"] in ("seconds", "cpu")} == {
        "seconds": True,
        "cpu": True,
    }
    assert {row["seed"] for row in rows} == {5} and {row["version"] for row in rows} == {bp.__version__}
    assert len({(r["split"], r["method"], r["params"], r["index"], r["metric"]) for r in rows}) == len(rows)


@pytest.mark.slow
def test_values_are_those_of_the_library(inline):
    """One cell again by hand: the map from `bp.explain`, Attribution Localisation from its formula."""
    from backplay import zoo

    out, _ = inline
    x, target, mask = zoo.images(1, "test", start=1)
    heat = bp.explain(zoo.load("vgg"), x, target, method="rg").double().sum(1).abs()
    found = values(out)["zoo:vgg", "zoo", "test", "rg", "{}", 1, "al"]
    assert found == pytest.approx(float((heat * mask).sum() / heat.sum()), rel=1e-6)


@pytest.mark.slow
def test_nothing_is_computed_twice(inline, config):
    out, _ = inline
    before = text(out)
    again = bench.run(bench.load(config), out, resume=True)
    assert again.done == 0 and again.before > 20 and text(out) == before


@pytest.mark.slow
def test_winners_of_another_run(inline, config, tmp_path):
    """A transfer: nothing is selected anew, the modes of the other run are played on other samples."""
    text = CONFIG.replace("validation: 2, test: 3", "name: other, seed: 3, test: 1").replace("pf20, robustness", "sel")
    text = text.replace("robustness: 2", "robustness: 0") + f"winners: {inline[0]}\n"
    (tmp_path / "transfer.yaml").write_text(text)
    summary = bench.run(bench.load(tmp_path / "transfer.yaml"), tmp_path / "run")
    assert {row["split"] for row in bench.read(tmp_path / "run").to_pylist()} == {"test"} and summary.failed == 0
    rows = [
        [(row.line.method, row.line.params) for row in bench.build(out)[0].rows]
        for out in (inline[0], tmp_path / "run")
    ]
    assert rows[0] == rows[1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "ray"])
@pytest.mark.filterwarnings("ignore")
def test_engines_agree(inline, config, tmp_path, engine):
    """To the last digit: the same library on the same processor, one thread each."""
    bench.run(bench.load(config), tmp_path / "run", engine, workers=2)
    assert values(tmp_path / "run") == values(inline[0])
    assert text(tmp_path / "run") == text(inline[0])


@pytest.mark.slow
def test_five_kills_leave_the_same_table(inline, config, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "backplay", "bench", "run", str(config), "--out", str(out), "--workers", "2"]
    lots = random.Random(int.from_bytes(os.urandom(4)))
    kills, seen = 0, 0
    while kills < 5:
        resume = ["--resume"] if (out / "config.yaml").exists() else []
        with subprocess.Popen(command + resume, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            _until(process, out, seen + lots.randrange(1, 4))
            time.sleep(lots.random() * 0.2)
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
        kills += 1
        after = len(values(out)) if (out / "config.yaml").exists() else 0
        assert after >= seen  # nothing that was written is lost
        seen = after
    summary = bench.run(bench.load(config), out, resume=True)
    assert kills == 5 and summary.before > 0
    assert values(out) == values(inline[0]) and text(out) == text(inline[0])
    rows = bench.read(out).to_pylist()
    assert len({(r["split"], r["method"], r["params"], r["index"], r["metric"]) for r in rows}) == len(rows)


def _until(process, out, rows):
    """Wait until the run has written so many values more, or has ended."""
    while process.poll() is None:
        try:
            if (out / "config.yaml").exists() and len(values(out)) >= rows:
                return
        except bp.BackplayError:
            pass
        time.sleep(0.2)  # reading what is there takes a processor from those who write


FACTORY = """
import torch
from torch import nn

def plain():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 23 * 23, 8))
    return net, {"size": 96, "mean": [0.5] * 3, "std": [0.25] * 3}
"""
FRAGILE = """models: [{name: toy, load: "nets.py:plain"}]
data: {kind: zoo, validation: 1, test: 4}
metrics: [localisation]
retries: 1
tables:
  - {kind: main, methods: [{method: gradient, frozen: [{}]}, {method: rg, frozen: [{tau: 0.5}]}]}
"""


@pytest.fixture
def fragile(tmp_path):
    (tmp_path / "nets.py").write_text(FACTORY)
    (tmp_path / "fragile.yaml").write_text(FRAGILE)
    return tmp_path / "fragile.yaml"


def test_failures_are_told_sample_by_sample(fragile, tmp_path, monkeypatch):
    """Sample 2 fails every time, sample 1 the first time: the run goes on, and what failed is tried again later."""
    from backplay.bench.data.sets import Zoo

    real, calls = Zoo.sample, []

    def sample(self, split, index, loaded):
        calls.append(index)
        if index == 2 or (index == 1 and calls.count(1) == 1):
            raise OSError("the disk has gone")
        return real(self, split, index, loaded)

    with monkeypatch.context() as patch:
        patch.setattr(Zoo, "sample", sample)
        summary = bench.run(bench.load(fragile), tmp_path / "run")
    assert summary.failed == 3 and summary.done == 9  # three cells: gradient, the anchor, τ = 0.5
    assert calls.count(2) == 6  # two attempts in each
    errors = [row for row in bench.read(tmp_path / "run").to_pylist() if row["metric"] == "error"]
    assert {(row["index"], row["note"]) for row in errors} == {(2, "OSError: the disk has gone")}
    assert "Gradient: 1 samples failed" in bench.build(tmp_path / "run")[0].notes
    again = bench.run(bench.load(fragile), tmp_path / "run", resume=True)
    assert again.done == 3 and again.failed == 0
    assert not any(row["metric"] == "error" for row in bench.read(tmp_path / "run").to_pylist())


class Touchy(Worker):
    """Refuses every portion that sample 2 is in."""

    def __init__(self):
        self.name, self.threads, self.asked = "touchy", 1, []

    def worker(self):
        return self

    def measured(self, portion, attempt):
        self.asked.append(tuple(job.index for job in portion))
        if 2 in self.asked[-1]:
            raise OSError("the disk has gone")
        return [Outcome(job, attempt=attempt) for job in portion]

    def forget(self):
        pass


def test_of_a_portion_only_those_fail_that_must():
    worker = Touchy()
    jobs = tuple(Job(TableCell("toy", "zoo", "test", "gradient"), index, ("al",)) for index in range(4))
    found = list(start(worker, "inline").run([jobs], retries=1))
    assert worker.asked == [(0, 1, 2, 3), (0,), (1,), (2,), (3,), (2,)]  # each alone, then what failed once more
    assert [(o.job.index, o.error is None, o.attempt) for o in found] == [
        (0, True, 1),
        (1, True, 1),
        (3, True, 1),
        (2, False, 2),
    ]


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(fragile):
    from backplay.bench.runs import _order

    machine = start(_order(bench.load(fragile)), "processes", workers=2)
    try:
        jobs = [Job(TableCell("toy", "zoo", "test", "gradient"), index, ("al",)) for index in range(4)]
        found = []
        for outcome in machine.run([(job,) for job in jobs], retries=1):
            if not found:
                machine.workers[0][0].kill()
                machine.workers[1][0].kill()
            found.append(outcome)
        assert sorted(o.job.index for o in found) == [0, 1, 2, 3]
        assert all(o.error is None for o in found)
        assert any(o.attempt == 2 for o in found)
    finally:
        machine.close()
    # who waits ends by himself; the other may not have come to that yet
    assert any(process.exitcode == 0 for process, _ in machine.workers)


def test_methods_that_do_not_fit_are_left_out(fragile, tmp_path):
    config = bench.load(fragile)
    bench.run(config, tmp_path / "run")
    found = fittings(config, tmp_path / "run")[0]
    assert isinstance(found, Fitting) and "rollout" in found.refused and "rg" in found.fits and not found.attention


def test_overhead_of_the_harness(fragile, tmp_path):
    """Processor time outside methods and metrics, on samples that take a tenth of a second: less than a twentieth."""
    import cProfile
    import pstats

    config = bench.load(fragile, limits={"test": 30})
    profile = cProfile.Profile(time.process_time)
    profile.runcall(bench.run, config, tmp_path / "run")
    spent = {(place[0].rpartition("/")[2], place[2]): entry for place, entry in pstats.Stats(profile).stats.items()}
    inside = spent["registry.py", "attribute"][3] + spent["metrics.py", "measure"][3]
    harness = spent["store.py", "append"][3] + spent["progress.py", "advance"][3]
    assert harness < 0.05 * inside


# the commands


def test_commands(fragile, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["bench", "run", str(fragile), "--out", out, "--test", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 6
    assert main(["bench", "table", out]) == 0
    assert "| Gradient | – |" in capsys.readouterr().out
    for form in ("latex", "csv", "html"):
        assert main(["bench", "table", out, "--format", form, "-o", str(tmp_path / f"t.{form}")]) == 0
        assert "Gradient" in (tmp_path / f"t.{form}").read_text() or form == "csv"
    assert main(["bench", "rows", out, "--sql", "select count(*) as n from rows where metric = 'al'", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 6}]
    assert main(["bench", "rows", out]) == 0
    assert capsys.readouterr().out.startswith('"run","model"')
    assert main(["bench", "rows", out, "--format", "parquet", "-o", str(tmp_path / "rows.parquet")]) == 0
    assert (tmp_path / "rows.parquet").stat().st_size > 100


def test_the_page_shows_maps(fragile, tmp_path):
    out = str(tmp_path / "run")
    main(["bench", "run", str(fragile), "--out", out, "--test", "3"])
    assert main(["bench", "table", out, "--format", "html", "--maps", "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 3 * 3 * 2  # three rows; best, median, worst; image and map
    assert page.count("best: test-") == 3


def test_the_page_shows_maps_where_localisation_was_not_measured(fragile, tmp_path):
    """An ablation by sensitivity, where less is better: both sides of the switch, the least value as the best."""
    (tmp_path / "ablation.yaml").write_text(
        FRAGILE.partition("tables:")[0].replace("localisation", "maxs")
        + "draws: 2\ntables:\n  - {kind: ablation, toggle: {epsilon: 1.0}, rows: [{method: rg, params: {tau: 0.5}}]}\n"
    )
    out = tmp_path / "run"
    bench.run(bench.load(tmp_path / "ablation.yaml"), out)
    page = maps.page(out)
    rows = [row for row in bench.read(out).to_pylist() if row["metric"] == "maxs" and row["params"] != "{}"]
    for params, word in (('{"tau": 0.5}', "best"), ('{"epsilon": 1, "tau": 0.5}', "switched on, best")):
        least = min((row for row in rows if row["params"] == params), key=lambda row: row["value"])
        assert f"{word}: {least['sample']}, MaxS {least['value']:.3f}" in page
    assert page.count("<figcaption>") == 3 * 4  # the anchor, whose row the config does not name, among them


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["run", "nothing.yaml", "--out", "x"], "nothing.yaml does not exist"),
        (["table", "nowhere"], "nowhere holds no run"),
        (["rows", "nowhere"], "nowhere holds no run"),
        (["table", "nowhere", "--maps"], "--maps is for --format html"),
    ],
)
def test_bad_input_is_one_line(arguments, said, capsys):
    assert main(["bench", *arguments]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_prompt_answers_query_by_query(fragile, tmp_path, capsys, monkeypatch):
    """A mistake is told and the next line answered."""
    out = str(tmp_path / "run")
    main(["bench", "run", str(fragile), "--out", out, "--test", "1"])
    capsys.readouterr()
    asked = "select count(*) as n from rows where metric = 'al'\n\nselect nonsense from rows\nselect 1 + 1 as two\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(asked))
    assert main(["bench", "rows", out, "--sql"]) == 0
    said = capsys.readouterr()
    assert said.out == '"n"\n3\n"two"\n2\n' and said.err.count("the query fails") == 1


def test_bad_queries(fragile, tmp_path, capsys):
    out = str(tmp_path / "run")
    main(["bench", "run", str(fragile), "--out", out, "--test", "1"])
    capsys.readouterr()
    for query in ("select nonsense from rows", "select * from read_csv('/etc/passwd')", "drop table rows"):
        assert main(["bench", "rows", out, "--sql", query]) == 1
        assert "the query fails" in capsys.readouterr().err


def test_a_run_that_another_process_holds(fragile, tmp_path, capsys):
    from backplay.bench.lock import Lock

    (tmp_path / "run").mkdir()
    with Lock(tmp_path / "run"):
        assert main(["bench", "run", str(fragile), "--out", str(tmp_path / "run"), "--resume"]) == 1
    assert f"held by process {os.getpid()}" in capsys.readouterr().err


def test_what_is_refused_leaves_no_folder(config, tmp_path):
    for wrong in ({"workers": 0}, {"engine": "inline", "workers": 3}, {"address": "here:1"}):
        with pytest.raises(bp.BackplayError):
            bench.run(bench.load(config), tmp_path / "run", **wrong)
    (tmp_path / "wrong.yaml").write_text(CONFIG.replace("zoo:vgg", "zoo:vgh"))
    with pytest.raises(bp.BackplayError, match="did you mean vgg"):
        bench.run(bench.load(tmp_path / "wrong.yaml"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_tables_as_records(inline, capsys):
    """`--json`: what csv has, as numbers."""
    out, _ = inline
    assert main(["bench", "table", str(out), "--no-time", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(io.StringIO(text(out))))
    assert len(records) == len(rows) > 20 and [list(r) for r in records] == [list(row) for row in rows]
    assert [str(r["mean"]) for r in records] == [row["mean"] for row in rows]
    assert {type(r["best"]) for r in records} == {bool}
