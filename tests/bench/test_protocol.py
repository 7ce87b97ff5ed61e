"""The protocol and what is made of its rows: selection, anchors, intervals, tests, tables."""

import csv
import io
import json
import math

import numpy as np
import pytest
from scipy import stats

from backplay import bench
from backplay.bench import statistics
from backplay.bench.formats import write
from backplay.bench.plan import TOGETHER, Fitting, Plan, best_by_ranks, means_of
from backplay.bench.progress import RunProgress
from backplay.bench.rows import Job, Outcome, Session, TableCell
from backplay.bench.runs import NETWORKS
from backplay.bench.sources import Contender
from backplay.bench.store import Store
from backplay.bench.tables import build, words

# selection


@pytest.mark.parametrize("seed", range(20))
def test_the_winner_has_the_least_sum_of_ranks(seed):
    scores = np.random.default_rng(seed).integers(0, 5, (7, 3)) / 4  # with ties
    sums = sum(stats.rankdata(-column) for column in scores.T)
    best = best_by_ranks(scores.tolist())
    assert sums[best] == sums.min()
    assert scores[best, 0] == max(scores[k, 0] for k in range(7) if sums[k] == sums.min())


def test_what_was_not_measured_ranks_last():
    assert best_by_ranks([[math.nan] * 3, [0.1, 0.9, 0.9], [0.2, 0.8, 0.8]]) == 1
    assert best_by_ranks([[math.nan, 1.0, 0.7], [0.1, 0.9, 0.9], [0.2, 0.8, 0.8]]) == 1  # ranks 3 + 1 + 3 against 5


CONFIG = """models: [zoo:vgg]
data: {kind: zoo, validation: 2, test: 4}
metrics: [localisation, sel]
tables:
  - kind: main
    methods:
      - gradient
      - {method: rg, grid: [{tau: [0.5, 0.7, 1.0]}, {attention_risk: -10, input_variance: 2}]}
      - {method: lrp_epsilon, frozen: [{epsilon: 0.5}]}
      - rollout
  - {kind: sweep, title: swept, method: sg, base: {input_variance: 1}, vary: {risk: [-1, 0]}}
  - kind: ablation
    split: validation
    toggle: {tau_forward: true}
    rows: [{method: rg, params: {tau: 0.5}}, {method: sg}]
  - {kind: every, top: 1, methods: [{method: rg, grid: [{tau: [0.5, 0.7]}]}]}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return bench.load(path)


@pytest.fixture
def plan(config):
    import backplay as bp

    known = bp.methods()
    fits = {name: info for name, info in known.items() if name != "rollout"}
    return Plan(config, Fitting(Contender("zoo:vgg", "zoo:vgg"), fits, {"rollout": "it has no attention"}, False))


def cell(split, method, params="{}"):
    return TableCell("zoo:vgg", "zoo", split, method, params)


def test_stage_one_is_the_grids(plan):
    """λ_sm is for attention alone; frozen points are not selected; the default of τ is the anchor itself."""
    assert plan.first() == [
        cell("validation", "gradient"),
        cell("validation", "rg", '{"tau": 0.5}'),
        cell("validation", "rg", '{"tau": 0.7}'),
        cell("validation", "rg"),
    ]


MEANS = {
    cell("validation", "gradient"): {"al": 0.1, "pg": 0.1, "tk": 0.1},
    cell("validation", "rg", '{"tau": 0.5}'): {"al": 0.9, "pg": 0.2, "tk": 0.2},
    cell("validation", "rg", '{"tau": 0.7}'): {"al": 0.8, "pg": 0.5, "tk": 0.5},
    cell("validation", "rg"): {"al": 0.1, "pg": 0.4, "tk": 0.4},
}


def test_stage_two_is_the_winners_and_the_anchor(plan, config):
    lines = plan.lines(config.tables[0], MEANS)
    assert [(line.method, dict(line.params), line.anchor) for line in lines] == [
        ("gradient", {}, False),
        ("rg", {}, True),
        ("rg", {"tau": 0.7}, False),
        ("lrp_epsilon", {"epsilon": 0.5}, False),
    ]
    assert all(line.cell.split == "test" for line in lines)


def test_the_anchor_is_in_every_table(plan, config):
    for table in config.tables:
        assert any(line.anchor and line.method == "rg" for line in plan.lines(table, MEANS))


def test_an_ablation_has_both_sides(plan, config):
    lines = {line.method + line.cell.params: line for line in plan.lines(config.tables[2], MEANS)}
    assert lines['rg{"tau": 0.5}'].toggled == cell("validation", "rg", '{"tau": 0.5, "tau_forward": true}')
    assert lines["sg{}"].toggled == lines["sg{}"].cell  # it has no such switch


def test_validation_has_all_metrics_where_a_table_shows_it(config):
    assert "sel" in config.wanted("validation", 0)


def test_a_stopped_run_has_every_row_on_the_same_samples(plan):
    """Each job once; the first so many samples of every cell come before the next ones of any."""
    cells = [cell("validation", "gradient"), cell("test", "gradient"), cell("test", "rg")]
    jobs = plan.jobs(cells, {"validation": 3, "test": 2 * TOGETHER + 3})
    assert {(job.cell, job.index) for job in jobs} == {
        *((cells[0], k) for k in range(3)),
        *((c, k) for c in cells[1:] for k in range(2 * TOGETHER + 3)),
    }
    assert len(jobs) == 3 + 2 * (2 * TOGETHER + 3)
    assert [job.index // TOGETHER for job in jobs] == sorted(job.index // TOGETHER for job in jobs)
    assert plan.jobs([], {"validation": 3, "test": 2}) == []


# statistics


def test_intervals_are_those_of_scipy():
    values = np.random.default_rng(3).exponential(size=60)
    low, high = statistics.interval(values)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    assert low == pytest.approx(theirs.low, abs=0.02) and high == pytest.approx(theirs.high, abs=0.02)
    assert statistics.interval(values) == (low, high)  # the same every time
    assert all(map(math.isnan, statistics.interval(values[:1])))


def test_intervals_cover_the_mean():
    """95 % of them, of means of 40 draws: between 90 and 98 % of 400."""
    rng = np.random.default_rng(0)
    hits = sum(low <= 1.0 <= high for low, high in (statistics.interval(rng.exponential(size=40)) for _ in range(400)))
    assert 0.90 <= hits / 400 <= 0.98


def test_paired_test_counts_signs():
    assert statistics.paired(np.array([1.0, 1.0, 1.0])) == 2 / 8  # all positive, all negative
    assert statistics.paired(np.array([1.0, -1.0])) == 1.0
    assert statistics.paired(np.zeros(5)) == 1.0


def test_paired_test_is_the_share_of_all_signs():
    """Fourteen pairs are more than are tried one by one: the drawn share against that of all 16,384."""
    differences = np.random.default_rng(5).normal(0.3, 1, 14)
    signs = 1 - 2 * (np.arange(2**14)[:, None] >> np.arange(14) & 1)
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert 0.01 < exact < 0.9 and statistics.paired(differences) == pytest.approx(exact, abs=0.01)


def test_holm():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    adjusted = statistics.holm([0.5, math.nan, 0.6])
    assert adjusted[0] == 1.0 and math.isnan(adjusted[1]) and adjusted[2] == 1.0


# tables


@pytest.fixture
def folder(tmp_path, config):
    """A run whose numbers are known: AL is a constant of the row plus a small pattern, Selectivity is 10 · AL."""
    cells = {
        cell("test", "gradient"): 0.2,
        cell("test", "rg"): 0.5,
        cell("test", "rg", '{"tau": 0.7}'): 0.7,
        cell("test", "lrp_epsilon", '{"epsilon": 0.5}'): 0.6,
        cell("test", "sg", '{"input_variance": 1, "risk": -1}'): 0.3,
        cell("test", "rg", '{"tau": 0.5}'): 0.4,
    }
    out = tmp_path / "run"
    with Store(out, Session(0, "t", "1", "", config.hash, 0, "", ""), config.text) as store:
        for where, means in MEANS.items():
            store.append(Outcome(Job(where, 0, ()), "v", means))
        for where, base in cells.items():
            for k in range(8):
                al = base + 0.01 * ((k * 7 + len(where.params)) % 5 - 2)
                values = {"al": al, "pg": 1.0, "tk": 0.5 if k else None, "sel": 10 * al, "seconds": 0.1 if k else 9.0}
                store.append(Outcome(Job(where, k, ()), f"s{k}", values, {} if k else {"tk": "empty mask"}))
        store.append(Outcome(Job(cell("test", "gradient"), 99, ()), "s99", error="ValueError: boom"))
    found = {"fits": ["gradient", "rg", "lrp_epsilon", "sg"], "refused": {"rollout": "none"}, "attention": False}
    (out / NETWORKS).write_text(json.dumps({"zoo:vgg": found}))
    return out


def test_numbers_of_a_table(folder):
    table = build(folder)[0]
    assert [(row.title, words(row.line.params)) for row in table.rows] == [
        ("Gradient", ""), ("RG", ""), ("RG", "τ=0.7"), ("LRP-ε", "ε=0.5"),
    ]  # fmt: skip
    al = [row.entries[0] for row in table.rows]
    expected = np.mean([0.7 + 0.01 * ((k * 7 + len('{"tau": 0.7}')) % 5 - 2) for k in range(8)])
    assert al[2].value == pytest.approx(expected) and al[2].count == 8
    assert [e.best for e in al] == [False, False, True, False]
    assert [e.best_in_block for e in al] == [True, False, True, False]  # gradient is alone in its block
    sel = [row.entries[3] for row in table.rows]
    assert [e.best for e in sel] == [True, False, False, False]  # lower is better
    assert [e.best_in_block for e in sel] == [True, True, False, False]
    assert math.isnan(al[1].p) and al[2].significant and al[2].p == pytest.approx(3 * 2 / 2**8)
    assert table.rows[0].entries[-1].value == 0.1  # the median time, not the mean
    assert "Gradient: 1 samples failed" in table.notes
    assert "RG τ=0.7: 1 samples skipped in TK: empty mask" in table.notes
    assert "AR is left out: none" in table.notes


def test_top_keeps_the_best_and_the_anchor(folder):
    rows = build(folder)[3].rows
    assert [words(row.line.params) for row in rows] == ["", "τ=0.7"]


def test_every_format_shows_the_same_numbers(folder):
    tables = build(folder)
    texts = {form: write(tables, form) for form in bench.FORMATS}
    for form in ("md", "latex", "html"):
        for row in tables[0].rows:
            assert f"{row.entries[0].value:.3f}" in texts[form]
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    found = next(r for r in rows if r["params"] == '{"tau": 0.7}' and r["metric"] == "al" and r["table"] == "config")
    assert float(found["mean"]) == tables[0].rows[2].entries[0].value and found["best"] == "1"
    assert "**0.6" in texts["md"] or "**0.7" in texts["md"]
    assert "\\specialrule{1.2pt}" in texts["latex"] and "\\multirow{2}{*}{RG}" in texts["latex"]
    assert texts["latex"].count("\\begin{tabular}{@{}") == len(tables)
    assert "$\\tau$=0.7" in texts["latex"] and "_" not in texts["latex"].replace("\\_", "").replace("$_", "").replace(
        "_{", ""
    )
    assert texts["html"].count("<table>") == len(tables)


def test_without_the_time(folder):
    text = write(build(folder), "md", time=False)
    assert "t/img" not in text and "AL ↑" in text


def test_a_table_of_half_a_run(tmp_path, config):
    """What is not there is a dash, not an error."""
    out = tmp_path / "run"
    with Store(out, Session(0, "t", "1", "", config.hash, 0, "", ""), config.text):
        pass
    assert build(out) == []
    (out / NETWORKS).write_text('{"zoo:vgg": {"fits": ["gradient", "rg"], "refused": {}, "attention": false}}')
    text = write(build(out), "md")
    assert "| RG | – | – |" in text and "Gradient" not in text  # without validation there is no winner yet


def test_means_leave_skipped_samples_out():
    where = cell("test", "rg")
    assert means_of([(where, "al", 1.0), (where, "al", None), (where, "al", 2.0), (where, "error", None)]) == {
        where: {"al": 1.5}
    }
    values = [0.7, 0.4, 0.8, 0.7]
    there, back = (means_of([(where, "al", v) for v in order]) for order in (values, values[::-1]))
    assert there == back  # to the bit: the winner of a tie is the earlier point, not a matter of who wrote first


def test_progress_tells_rate_and_time_left():
    told, now = [], [0.0]
    progress = RunProgress(told.append, lambda: now[0])
    progress.stage(10, 4, "test")
    for k in range(6):
        now[0] += 2.0
        progress.advance(failed=k == 1)
    assert told[1] == "test: 6/10 samples, 0.5 a second, 8 s left, 1 failed"
    assert told[-1].startswith("test: 10/10")
