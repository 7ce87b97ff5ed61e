"""What the panels show: the numbers behind them against the library's own calls, and their words."""

import re
import threading
import time

import numpy as np
import pytest
import torch
from matplotlib import colormaps

import backplay as bp
from backplay import models, zoo
from backplay.app import comparison, explore, html, rivals
from backplay.app.grounds import bundled_input, sentences
from backplay.app.paint import paint, png
from backplay.app.scene import Scene, changed
from backplay.app.work import Job, StoppedError
from backplay.entry import entry
from backplay.progress import Progress
from backplay.view.colours import scale_of

VGG = Scene("zoo:vgg", "example:3", modes=changed("rg", {"tau": 0.7}))
TEXT = Scene("zoo:text", text="the coffee was not great", modes=changed("rg", {"epsilon": 0.1}))


@pytest.fixture(scope="module")
def play():
    """What the scene `VGG` is, without the page."""
    model, x = zoo.load("vgg"), zoo.images(4).x[3:]
    return bp.RoutingGame(model, tau=0.7).play(x)


def test_the_map(table, play):
    solved = table.solve(VGG)
    assert solved.target == int(play.target) == solved.ground.predicted
    np.testing.assert_allclose(solved.heat, play.attribution()[0].double().sum(0), rtol=1e-4, atol=1e-7)
    assert solved.value == pytest.approx(float(play.value), rel=1e-5)
    plus, minus, log_scale = solved.players
    np.testing.assert_allclose((plus - minus) * np.exp(log_scale) * solved.value, solved.heat, rtol=1e-2, atol=1e-5)


def test_flow_and_ends(table, play):
    """All walks start, and those that arrive are those that health and marginals know."""
    solved = table.solve(VGG)
    rows, arrives = solved.rows, play.health().arrives
    assert rows[0].plus + rows[0].minus == pytest.approx(1) and rows[-1].name == "input"
    assert rows[-1].plus + rows[-1].minus == pytest.approx(arrives, rel=1e-4)
    assert solved.arriving.sum() == pytest.approx(arrives, rel=1e-4)
    assert [row.name for row in rows[:-1]] == solved.layer_names()
    assert all(row.bits >= -1e-4 for row in rows) and rows[0].bits > 1


def test_walks_to_a_pixel(table, play):
    solved = table.solve(VGG)
    at = tuple(np.unravel_index(solved.heat.argmax(), solved.heat.shape))
    mask = torch.zeros(1, 3, 96, 96, dtype=torch.bool)
    mask[:, :, at[0], at[1]] = True
    share = float(play.through("input", mask).share)
    assert float(solved.ending_at(at).share) == pytest.approx(share, rel=1e-4)
    assert solved.arriving[at] == pytest.approx(share, rel=1e-4)
    shown = explore.details(solved, at, "features.8")
    assert f"Walks that end at row {at[0]}, column {at[1]}" in shown and "Channels of features.8" in shown
    assert str(int(bp.concepts(play, "features.8", k=1).index)) in shown


def test_tokens(table):
    """A sentence has the scores of `bp.text.explain`, for both games."""
    loaded = models.load_text("zoo:text")
    for scene, params in ((TEXT, {"epsilon": 0.1}), (Scene("zoo:text", text=TEXT.text, game="sg"), {})):
        solved = table.solve(scene)
        (found,) = bp.text.explain(loaded.model, loaded.tokenizer, TEXT.text, method=scene.game, **params)
        np.testing.assert_allclose(solved.heat, found.scores.double(), rtol=1e-4, atol=1e-6)
        assert solved.target == found.goal.index
    shown = explore.first_look(table.solve(TEXT)) + explore.details(table.solve(TEXT), (4,), "blocks.0")
    assert all(f'data-token="{k}"' in shown for k in range(6)) and "Walks that end at token 4, “not”" in shown


def test_words_are_escaped(table):
    """What a visitor writes is text and nothing else."""
    solved = table.solve(Scene("zoo:text", text="<img src=x onerror=alert(1)> great"))
    assert "<img src=x" not in explore.first_look(solved) and "&lt;" in explore.first_look(solved)
    assert "<b>" not in html.error("<b>") and "<script" not in html.state("", {"text": '"><script>'})


def test_every_panel_is_there(table):
    shown = explore.first_look(table.solve(VGG)) + explore.details(table.solve(VGG))
    assert re.findall(r'data-panel="(\w+)"', shown) == ["map", "health", "players", "walks", "layers"]
    assert "policy entropy" in shown and "† stopped" in shown and "http" not in shown


def test_what_cannot_be_drawn_is_told(table):
    """Where gradients take the walk's place there is a map, and a line in place of every other panel."""
    solved = table.solve(Scene("zoo:text", text=TEXT.text, modes=changed("rg", {"attention": "gradient"})))
    assert 'data-panel="map"' in explore.first_look(solved)
    shown = explore.details(solved, (3,), "blocks.0")
    assert shown.count("there is no walk") == 6 and shown.count('role="alert"') == 6


@pytest.mark.parametrize(
    "scene, words",
    [
        (Scene("zoo:vgt"), "no model named 'zoo:vgt' (did you mean 'zoo:vgg'?)"),
        (Scene("zoo:vgg", target=10), "there is no class 10; the model has the classes 0 to 9"),
        (Scene("zoo:vgg", picture="example:99"), "there is no picture 'example:99'"),
        (Scene("zoo:vgg", picture="upload:../../x"), "names no upload"),
        (Scene("zoo:text", text="  "), "is empty"),
        (Scene("zoo:text", text="great " * 2000), "give 2000 or fewer"),
        (Scene("zoo:vgg", layers="nothing.*: tau=1"), "matches no node"),
    ],
)
def test_wrong_scenes_are_one_line(table, scene, words):
    with pytest.raises(bp.BackplayError) as told:
        table.solve(scene)
    assert words.split(" (")[0] in str(told.value) and len(str(told.value)) < 300


def test_scenes_do_not_disturb_each_other(table):
    """Whatever is played between, a scene has the same numbers."""
    first = table.solve(VGG).heat.copy()
    for tau in (0.3, 0.5, 0.9, 1.1, 1.3, 1.5, 1.7):
        table.solve(Scene("zoo:vgg", "example:3", modes=changed("rg", {"tau": tau})))
    assert VGG not in table._known
    np.testing.assert_allclose(table.solve(VGG).heat, first, rtol=1e-6)


def test_distances(table):
    """Two pictures, two models, two modes."""
    x, others = zoo.images(4).x, zoo.images(1, start=1, spurious="wrong").x
    a = bp.RoutingGame(zoo.load("vgg"), tau=0.7).play(x[3:])
    target = int(a.target)
    wanted = {
        Scene("zoo:vgg", "cue:1", modes=VGG.modes): bp.RoutingGame(a.network, tau=0.7).play(others, target),
        Scene("zoo:vgg", "example:3"): bp.RoutingGame(a.network).play(x[3:], target),
        Scene("zoo:vgg-spurious", "example:3", modes=VGG.modes): bp.RoutingGame(
            zoo.load("vgg", spurious=True), tau=0.7
        ).play(x[3:], target),
    }
    for scene, b in wanted.items():
        pair, h = comparison.compare(table, VGG, scene), bp.hellinger(a, b)
        assert float(pair.h.distance) == pytest.approx(float(h.distance), rel=1e-5)
        np.testing.assert_allclose(pair.disagreement, h.disagreement[0].sum(0), rtol=1e-3, atol=1e-9)
        assert "distance H" in comparison.look(pair)


def test_distances_are_taken_while_both_models_are_held(table, monkeypatch):
    """Nobody else plays on them meanwhile."""
    other, taken = Scene("zoo:vgg-spurious", "example:3"), []

    def free(model):
        found = []
        asking = threading.Thread(target=lambda: found.append(model.lock.acquire(blocking=False)))
        asking.start()
        asking.join()
        return found[0]

    def distance(a, b):
        taken.extend(free(table.library.find(name)) for name in ("zoo:vgg", "zoo:vgg-spurious"))

    monkeypatch.setattr(bp, "hellinger", distance)
    comparison.compare(table, VGG, other)
    assert taken == [False, False]


def test_networks_that_cannot_be_compared(table):
    with pytest.raises(bp.BackplayError):
        comparison.compare(table, VGG, TEXT)


def test_methods(table):
    ground = table.ground(VGG)
    names = rivals.fitting(ground)
    assert {"rg", "sg", "gradcam"} <= set(names) and "attn_lrp" not in names
    found = rivals.gather(VGG, ground, ["rg", "gradcam"])
    job = Job(lambda job: rivals.explain(job, found))
    assert list(job.wait(300)) == [] and job.result() is found and not found.failed
    x = bundled_input("example:3")
    for name, params in (("rg", {"tau": 0.7}), ("gradcam", {})):
        expected = bp.explain(zoo.load("vgg"), x, found.target, name, **params)[0].sum(0)
        np.testing.assert_allclose(found.plane(name), expected, rtol=1e-3, atol=1e-6)
    assert "RG (rg)" in rivals.look(found)
    with pytest.raises(bp.BackplayError, match="attn_lrp does not fit zoo:vgg"):
        rivals.gather(VGG, ground, ["attn_lrp"])
    with pytest.raises(bp.BackplayError, match="no method is chosen"):
        rivals.gather(VGG, ground, [])


def test_methods_end_where_they_are_stopped(table, monkeypatch):
    """A stop in the middle of a method is no failure of that method, and no other one begins."""
    found = rivals.gather(VGG, table.ground(VGG), ["rg", "gradcam"])
    begun = threading.Event()

    @entry
    def endless(*_):
        begun.set()
        with Progress("averaging", 1000) as progress:
            for _ in range(1000):
                progress.advance(1)
                time.sleep(0.01)

    monkeypatch.setattr(rivals, "_explained", endless)
    job = Job(lambda job: rivals.explain(job, found))
    assert begun.wait(60)
    job.stop()
    job._thread.join(60)
    assert not found.failed and not found.maps
    with pytest.raises(StoppedError):
        job.result()


def test_a_stop_is_no_line_in_a_panel(table):
    def panel(_):
        raise StoppedError

    with pytest.raises(StoppedError):
        explore._told("Health", panel, table.solve(VGG))


def test_colours_are_those_of_the_figures():
    """One pixel of the map, one of the picture."""
    plane = np.linspace(-2, 2, 35).reshape(5, 7)
    plane[0, 0] = np.nan
    scale = scale_of([plane], signed=True)
    expected = colormaps["RdBu_r"](scale.limits(np.nan_to_num(plane)), bytes=True)[..., :3].astype(int)
    found = paint(plane, scale).astype(int)
    assert found[0, 0].tolist() == [191] * 3 and np.abs(found - expected)[1:].max() <= 6
    assert png(paint(plane, scale)).startswith(b"\x89PNG")


def test_bundled_inputs():
    assert torch.equal(bundled_input("example:2"), zoo.images(3).x[2:])
    assert torch.equal(bundled_input("cue:1"), zoo.images(2, spurious="wrong").x[1:])
    assert sentences() == list(zoo.texts(6).texts)
