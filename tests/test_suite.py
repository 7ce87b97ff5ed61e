"""The suite of speed and memory works, and weighs right; how fast anything is, no test asks."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def rounds(monkeypatch):
    """The module that times, with a clock of its own: a call takes as many seconds as it returns."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rounds

    monkeypatch.setattr(rounds, "seconds", lambda call: float(call()))
    yield rounds
    sys.modules.pop("rounds")


def silently(words):
    pass


def test_calls_are_interleaved(rounds):
    """First every call once, then round by round, until each has its time."""
    order = []

    def taking(name, seconds):
        return rounds.Timed(lambda: order.append(name) or seconds)

    calls = {"gradient": taking("g", 0.5), "map": taking("m", 1.0), "sweep": taking("s", 10.0)}
    rows = rounds.measure(calls, "gradient", rounds.Pace(4.0), silently)
    assert "".join(order) == "gms" + "gms" + 4 * "gm"
    assert [len(row.times) for row in rows] == [5, 5, 1]
    assert [row.ratio for row in rows] == [1.0, 2.0, 20.0] and rows[2].first == 10.0


def test_a_ratio_rests_on_common_rounds(rounds):
    """A machine that is busy later does not make what was called early look fast."""
    speeds = itertools.chain([1, 1, 1], itertools.repeat(4))
    taking = {"gradient": lambda: next(speeds), "slow": lambda: 5.0, "quick": lambda: 0.1}
    calls = {name: rounds.Timed(call) for name, call in taking.items()}
    rows = {row.what: row for row in rounds.measure(calls, "gradient", rounds.Pace(4.0), silently)}
    assert len(rows["slow"].times) == 2 and rows["slow"].ratio == 5.0
    assert len(rows["quick"].times) > 5 and rows["quick"].ratio == pytest.approx(0.1 / 4)


def test_what_has_a_bar_is_called_more_often(rounds):
    """However long it takes; a small run asks for no more than its pace."""
    calls = {"gradient": rounds.Timed(lambda: 3.0), "map": rounds.Timed(lambda: 9.0, least=5)}
    assert [len(row.times) for row in rounds.measure(calls, "gradient", rounds.Pace(1.0), silently)] == [5, 5]
    assert [len(row.times) for row in rounds.measure(calls, "gradient", rounds.Pace(0.0, 1), silently)] == [1, 1]


def test_parts_and_pairs(rounds):
    """A draw of an average is a part of one call; a distance is weighed against two gradients."""
    calls = {
        "gradient": rounds.Timed(lambda: 2.0),
        "draw": rounds.Timed(lambda: 12.0, parts=4),
        "distance": rounds.Timed(lambda: 8.0, against=2),
    }
    _, draw, distance = rounds.measure(calls, "gradient", rounds.Pace(4.0), silently)
    assert (draw.seconds, draw.ratio, len(draw.times)) == (3.0, 1.5, 1)  # a call takes as long as all its parts
    assert (distance.seconds, distance.ratio) == (8.0, 2.0)


def test_what_does_not_run_says_why(rounds):
    """And the others go on; without a gradient there is nothing to weigh against."""

    def fails():
        raise TypeError("no rule for LayerNorm\nand a second line")

    calls = {"gradient": rounds.Timed(lambda: 1.0), "peer": rounds.Timed(fails), "map": rounds.Timed(lambda: 2.0)}
    _, peer, own = rounds.measure(calls, "gradient", rounds.Pace(1.0), silently)
    assert peer.why == "does not run: no rule for LayerNorm (TypeError)" and peer.seconds is peer.ratio is None
    assert own.ratio == 2.0
    with pytest.raises(TypeError, match="no rule"):
        rounds.measure({"gradient": rounds.Timed(fails)}, "gradient", rounds.Pace(1.0), silently)


def test_bars(monkeypatch):
    """What was measured is held against its bar, from above or from below; what was not is left out."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bars

    def case(section, network, batch, **ratios):
        rows = [{"what": what.replace("_", " "), "ratio": ratio} for what, ratio in ratios.items()]
        return f"{section}: {network}, batch {batch}", {"section": section, "network": network, "rows": rows}

    slow = {"zennit AlphaBeta(2, 1)": 7.0}
    cases = dict(
        [
            case("games", "VGG-16", 1, Stopping_map=1.05, Routing_anchor=2.2),
            case("peers", "VGG-16", 1, Routing_anchor=2.0, **slow),
            case("growth", "ResNet-50", 8, Stopping_map=1.0),
            case("growth", "ResNet-50", 32, Stopping_map=0.85),
            case("capture", "BERT", 2, capture=1.5),
        ]
    )
    found = {(bar.promise, bar.network): (bar.limit, round(bar.found, 2), bar.holds) for bar in bars.bars(cases)}
    assert found == {
        ("Stopping map", "VGG-16"): ("≤ 1.1", 1.05, True),
        ("Routing anchor", "VGG-16"): ("≤ 2.1", 2.2, False),
        ("zennit AlphaBeta(2, 1) beside the anchor", "VGG-16"): ("≥ 3.3", 3.5, True),
        ("Stopping map: change of the ratio from batch 8 to 32", "ResNet-50"): ("≤ 0.1", 0.15, False),
        ("capture beside torch.export", "BERT"): ("≤ 2", 1.5, True),
    }
    sys.modules.pop("bars")


def suite(*options):
    order = [sys.executable, str(BENCHMARKS / "suite.py"), "--small", *map(str, options)]
    return subprocess.run(order, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_small_suite(tmp_path):
    """Every section runs on tiny networks, writes its files, and is not run again by `--resume`."""
    done = suite("--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert found["machine"]["threads"] >= 1 and found["machine"]["torch"]
    sections = [case["section"] for case in found["cases"]]
    assert list(dict.fromkeys(sections)) == ["games", "peers", "growth", "memory", "capture"]
    rows = [(case["key"], row) for case in found["cases"] for row in case["rows"]]
    failed = [(key, row["what"], row["why"]) for key, row in rows if row["why"] and "does not run" in row["why"]]
    assert [what for _, what, _ in failed] == ["captum LRP"], failed  # which knows no nn.Flatten
    assert all(row["ratio"] is not None for _, row in rows if row["what"] != "captum LRP")
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    for words in (
        "## Games",
        "## Peers",
        "## Growth",
        "## Memory",
        "## Capture",
        "captum LRP on tiny CNN: does not run",
    ):
        assert words in page
    assert {file.name for file in tmp_path.glob("*.png")} == {f"growth-{a}.png" for a in ("batch", "side", "tokens")}
    again = suite("--out", tmp_path, "--resume")
    assert again.returncode == 0 and again.stderr.count("there already") == len(found["cases"]), again.stderr


@pytest.mark.slow
def test_a_wrong_name_is_refused(tmp_path):
    """With what there is, before anything is measured."""
    for options, words in ((["--only", "speed"], "there are games, peers"), (["--networks", "vgg17"], "VGG-16")):
        refused = suite("--out", tmp_path / "new", *options)
        assert refused.returncode == 2 and words in refused.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()
