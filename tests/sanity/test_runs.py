"""Runs of experiments: rows are what the library gives, whatever engine works them off; tables and figures of them."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
import torch

import backplay as bp
from backplay import bench, models, zoo
from backplay.bench.engines import ENGINES
from backplay.cli import main
from backplay.sanity import cascade, config, double_random, figures, input_noise, runs, separability, tables
from backplay.sanity.plan import portions
from backplay.sanity.walks import played

NETS = """
import torch
from torch import nn

def build(seed=0):
    torch.manual_seed(seed)
    layers = nn.AvgPool2d(8), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(5), nn.Flatten(), nn.Linear(20, 10)
    return nn.Sequential(*layers).eval(), {"size": 96}

def other():
    return build(1)
"""
CONFIG = """models: [{name: toy, load: "nets.py:build"}, {name: twin, load: "nets.py:other"}]
data: {kind: zoo, test: 12}
seed: 3
retries: 0
experiments:
  - kind: cascade
    methods: [gradient, rollout, {method: rg, params: {tau: 0.5, attention_risk: -1, input_variance: 1}}]
    further: [ordinary, bound, floor, permuted]
    limits: {permuted: 1, bound: 2}
  - {kind: correlation, name: ranks, steps: [last, "5", 99], which: weights, methods: [gradient]}
  - {kind: double-random, rounds: 3}
  - {kind: input-noise, images: 5, sigmas: [0.1, 0.5]}
  - {kind: separability, pairs: 2, games: [rg]}
  - {kind: distances, further: [permuted], limits: {permuted: 1}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sanity")
    (folder / "nets.py").write_text(NETS)
    (folder / "small.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def done(home):
    """The folder of a run, and its values by (network, experiment, cell, sample, metric)."""
    summary = runs.run(config.load(home / "small.yaml"), home / "run", tell=lambda line: None)
    assert summary.failed == 0, [r["note"] for r in bench.read(home / "run").to_pylist() if r["metric"] == "error"]
    return home / "run", values(home / "run")


def values(folder):
    found = {}
    for row in bench.read(folder).to_pylist():
        if row["metric"] != "seconds":
            given = json.loads(row["params"])
            key = next((given[k] for k in ("step", "sigma", "pair", "other") if k in given), "")
            found[row["model"], row["method"], key, row["index"], row["metric"]] = row["value"]
    return found


def load(home, name="build"):
    return models.load(f"{home / 'nets.py'}:{name}").model


def same(found, expected):
    return (found is None and math.isnan(float(expected))) or found == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.slow
def test_rows_are_what_the_library_gives(done, home):
    """Each experiment as a call on the whole batch, against its rows, which were measured image by image."""
    _, found = done
    model, batch = load(home), zoo.images(12)
    x = batch.x
    further = ("ordinary", "bound", "floor")
    for step in cascade(model, x, method=["gradient"], further=further, seed=3):
        for k in (0, 7):
            for game in ("sg", "rg"):
                for name in ("distance", "surviving", "ordinary", *(["floor"] if game == "sg" else [])):
                    row = found["toy", "cascade", step.number, k, f"{game}.{name}"]
                    assert same(row, step.readout(name)[game][k]), (step.number, k, game, name)
            assert same(found["toy", "cascade", step.number, k, "gradient.spearman"], step.spearman["gradient"][k])
            assert same(found["toy", "cascade", step.number, k, "gradient.hog"], step.hog["gradient"][k])
    for r in double_random(model, x, batch.target, rounds=3, seed=3):
        assert same(found["toy", "double-random", "", r.number, "sg.distance"], r.distance["sg"])
        assert same(found["toy", "double-random", "", r.number, "rg.surviving"], r.surviving["rg"])
    for level in input_noise(model, x, sigmas=(0.1, 0.5), seed=3):
        for k in range(5):
            assert same(found["toy", "input-noise", level.sigma, k, "sg.distance"], level.distance["sg"][k])
    for pair in separability(model, x, batch.target, pairs=2, games=["rg"], seed=3):
        assert same(found["toy", "separability", pair.kind, pair.number, "rg.distance"], pair.distance["rg"])
    network = bp.capture(model, x[:2])
    plays = [bp.StoppingGame(network.on(m)).play(x[:1], batch.target[:1]) for m in (model, load(home, "other"))]
    assert same(found["toy", "distances", "twin", 0, "sg.distance"], bp.hellinger(*plays).distance)


@pytest.mark.slow
def test_what_is_measured_where(done):
    """Limits hold, methods that do not fit are left out, steps that a network has not are passed over."""
    _, found = done
    assert {key[3] for key in found if key[4] == "sg.permuted" and key[1] == "cascade"} == {0}
    assert {key[3] for key in found if key[4] == "rg.bound"} == {0, 1}
    labels = {key[4].rpartition(".")[0] for key in found if key[1] == "cascade"}
    assert labels == {"sg", "rg", "gradient"}  # no attention: neither rollout nor its risk
    assert {key[2] for key in found if key[1] == "ranks"} == {1, 2}  # layer "5", then the last one
    assert {key[2] for key in found if key[1] == "cascade"} == {0, 1, 2}
    assert {key[0] for key in found if key[1] == "distances"} == {"toy"}
    assert {key[3] for key in found if key[1] == "input-noise"} == set(range(5))


@pytest.mark.slow
def test_nothing_is_computed_twice(done, home):
    again = runs.run(config.load(home / "small.yaml"), home / "run", resume=True, tell=lambda line: None)
    assert again.done == 0 and again.before > 100
    with pytest.raises(bp.BackplayError, match="--resume"):
        runs.run(config.load(home / "small.yaml"), home / "run")
    with pytest.raises(bp.BackplayError, match="another config"):
        runs.run(config.load(home / "small.yaml", images=2), home / "run", resume=True)


@pytest.mark.slow
def test_tables(done):
    folder, found = done
    built = {table.title.split(": ", 1)[1]: table for table in tables.build(folder)}
    walks = built["walks (double-random) on zoo"]
    rounds = [found["toy", "double-random", "", k, "sg.distance"] for k in range(3)]
    labels, numbers = walks.rows[0]
    assert labels == ("toy", "both random") and walks.columns[:2] == ("SG H", "SG H_surv")
    assert numbers[0].value == pytest.approx(sum(rounds) / 3) and numbers[0].count == 3
    assert numbers[0].std == pytest.approx(float(torch.tensor(rounds).std(correction=0)), abs=1e-6)
    pairs = built["walks (separability) on zoo"]
    kinds = ["intraclass", "interclass", "clean-random", "random-random"]
    assert [labels[1] for labels, _ in pairs.rows] == kinds * 2
    ranks = built["Spearman correlations across images (ranks) on zoo"]
    assert (
        len(ranks.rows) == 16 and len(ranks.columns) == 6
    )  # two networks and steps, four readouts of walks, two of maps
    assert all(math.isnan(numbers[k % 4].value) for k, (_, numbers) in enumerate(ranks.rows))  # with itself
    maps = built["maps at the last step (cascade) on zoo"]
    assert [labels for labels, _ in maps.rows[:1]] == [("toy", "gradient")]
    matrix = built["SG H (distances) on zoo"]
    assert matrix.rows[0][1][1].value == matrix.rows[1][1][0].value
    for form in tables.FORMATS:
        text = tables.write(tables.build(folder), form)
        assert "separability" in text and "nan" not in text


@pytest.mark.slow
def test_figures(done, tmp_path):
    folder, _ = done
    drawn = figures.draw(folder)
    assert list(drawn) == ["cascade", "cascade-spread", "cascade-maps", "input-noise", "distances"]
    upper, lower = drawn["cascade"].axes[0], drawn["cascade"].axes[2]
    labels = [line.get_label() for line in upper.get_lines()]
    assert {"SG H", "SG H_surv", "SG H_perm", "SG H of the floor", "RG H", "SG H, both random"} <= set(labels)
    assert [line.get_label() for line in lower.get_lines()][:2] == ["SG BC_ord", "SG bound of BC_ord"]
    assert lower.get_yscale() == "log" and len(drawn["distances"].axes) == 4
    written = figures.save({"cascade": drawn["cascade"]}, tmp_path / "figures")
    assert [path.name for path in written] == ["cascade.png", "cascade.svg"] and all(p.stat().st_size for p in written)


@pytest.mark.slow
def test_commands(done, home, tmp_path, capsys):
    folder = str(done[0])
    assert main(["sanity", "run", str(home / "small.yaml"), "--out", folder, "--resume"]) == 0
    assert "0 samples computed" in capsys.readouterr().out
    assert (done[0] / "tables" / "tables.md").read_text() == tables.write(tables.build(folder), "md")
    assert (done[0] / "tables" / "tables.csv").read_text() == tables.write(tables.build(folder), "csv")
    drawn = sorted(path.name for path in (done[0] / "figures").iterdir())
    assert drawn == sorted(f"{name}.{form}" for name in figures.draw(folder) for form in ("png", "svg"))
    assert main(["sanity", "--json", "table", folder]) == 0
    records = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(io.StringIO(tables.write(tables.build(folder), "csv"))))
    assert len(records) == len(rows) > 50
    assert all(
        {k: "" if v is None else str(v) for k, v in r.items()} == row for r, row in zip(records, rows, strict=True)
    )
    (done[0] / "figures" / "cascade.svg").unlink()
    assert main(["sanity", "figure", folder, "--format", "svg"]) == 0 and capsys.readouterr()
    assert (done[0] / "figures" / "cascade.svg").exists()
    assert main(["bench", "table", folder]) == 1
    assert "it is a config of backplay sanity, not of backplay bench" in capsys.readouterr().err
    assert main(["sanity", "table", folder, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("table,row,column")
    assert main(["sanity", "figure", folder, "--out", str(tmp_path), "--format", "svg"]) == 0
    assert (tmp_path / "input-noise.svg").exists()
    assert main(["sanity", "table", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_what_is_refused_leaves_no_folder(home, tmp_path):
    checked = config.load(home / "small.yaml")
    for wrong in ({"workers": 0}, {"engine": "inline", "workers": 3}):
        with pytest.raises(bp.BackplayError, match="workers"):
            runs.run(checked, tmp_path / "run", **wrong)
    (tmp_path / "wrong.yaml").write_text("models: [zoo:vgh]\ndata: {kind: zoo}\nexperiments: [{kind: double-random}]\n")
    with pytest.raises(bp.BackplayError, match="did you mean vgg"):
        runs.run(config.load(tmp_path / "wrong.yaml"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def portions_of(home):
    layers = {"all": ["5", "1"], "weights": ["5", "1"]}
    known = {name: layers | {"fits": ["gradient"], "together": 10} for name in ("toy", "twin")}
    return portions(config.load(home / "small.yaml"), known, zoo.images(12).target.tolist())


def on_images(found):
    """Those of the first network's cascades."""
    return [p for p in found if p[0].cell.model == "toy" and p[0].cell.method in ("cascade", "ranks")]


def test_samples_that_want_the_same_are_played_together(home):
    found = portions_of(home)
    keys = [job.key for portion in found for job in portion]
    # of each network: steps, chosen steps, rounds, noises, pairs; and the two beside each other
    assert len(set(keys)) == len(keys) == 2 * (3 * 12 + 2 * 12 + 3 + 2 * 5 + (2 + 2 + 12 + 2)) + 12
    for portion in found:
        assert len({(job.cell, job.metrics) for job in portion}) == 1 and len(portion) <= 10
    cuts = [tuple(job.index for job in portion) for portion in on_images(found)]
    assert list(dict.fromkeys(cuts)) == [(0,), (1,), tuple(range(2, 10)), (10, 11)]  # limits are cuts too
    assert cuts == sorted(cuts)  # everything on some images, then everything on the next


def test_the_unchanged_network_is_played_once(home, monkeypatch):
    """All steps of both cascades on the same images are compared with one play of each game."""
    seen = []

    def watched(network, game, x, aim):
        seen.append((network, game, len(x)))
        return played(network, game, x, aim)

    monkeypatch.setattr("backplay.sanity.walks.played", watched)
    worker = runs._order(config.load(home / "small.yaml")).worker()
    wanted = [portion for portion in on_images(portions_of(home)) if portion[0].index == 2]
    assert len(wanted) == 5  # three steps and two
    for portion in wanted:
        assert [outcome.error for outcome in worker.do(portion)] == [None] * 8
    own = [(game, images) for network, game, images in seen if network is worker._network]
    assert own == [("sg", 8), ("rg", 8)] and len(seen) == 2 + 2 * 4  # step 0 plays nothing more


def test_its_own_keys_are_named(tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(bp.BackplayError, match="models, data and experiments"):
        config.load(tmp_path / "empty.yaml")
    with pytest.raises(bp.BackplayError, match=r"configs/sanity/zoo-quick\.yaml"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "bench.yaml").write_text("models: [zoo:vgg]\ndata: {kind: zoo}\ntables: [{kind: main, methods: all}]\n")
    with pytest.raises(bp.BackplayError, match="a config of backplay bench, not of backplay sanity"):
        config.load(tmp_path / "bench.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "inline"])
@pytest.mark.filterwarnings("ignore")
def test_engines_agree(done, home, tmp_path, engine):
    runs.run(config.load(home / "small.yaml"), tmp_path / "run", engine, workers=2)
    assert values(tmp_path / "run") == pytest.approx(done[1], abs=1e-9)


@pytest.mark.parametrize(
    "line, change, said",
    [
        ("{kind: double-random, rounds: 3}", "{kind: double-random, rounds: 0}", "1 or more, found 0"),
        ("kind: double-random", "kind: double-randm", "did you mean double-random"),
        ("sigmas: [0.1, 0.5]", "sigmas: [0.1, -1]", "a number above 0, found -1"),
        ("name: ranks", "name: a/b", "no name of a file"),
        ("name: ranks", "name: cascade", "two experiments of one name"),
        ("games: [rg]", "games: [gr]", "'gr' is unknown"),
        ("methods: [gradient]", "methods: [gradiant]", "did you mean gradient"),
        ("tau: 0.5", "tau: -1", "tau"),
        ("rounds: 3", "pairs: 3", "unknown key"),
        (', {name: twin, load: "nets.py:other"}', "", "distances compares two or more"),
    ],
)
def test_configs_are_checked(tmp_path, line, change, said):
    path = tmp_path / "wrong.yaml"
    assert line in CONFIG
    path.write_text(CONFIG.replace(line, change))
    with pytest.raises(bp.BackplayError, match=said):
        config.load(path)


def test_every_config_can_be_read(monkeypatch):
    for name in ("IMAGENET_S", "ZOO_TRAINED"):
        monkeypatch.setenv(name, "somewhere")
    found = sorted((Path(__file__).parents[2] / "configs" / "sanity").glob("*.yaml"))
    papers = {config.load(path).paper for path in found}
    assert {"tab:hellinger-input-random", "tab:sanity-check", "tab:double-random-hellinger"} <= papers
    assert {"tab:per-image-corr", "fig:hellinger-sanity", "fig:hellinger-input-noise"} <= papers
    assert "fig:hellinger-variance" in papers
    for path in found:
        if path.stem != "zoo-distances":
            assert {network.load for network in config.load(path, zoo=True).networks} >= {"zoo:vgg", "zoo:vit"}
