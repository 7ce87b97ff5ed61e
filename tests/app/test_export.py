"""Exports: the lines of Python are executed, and give the numbers of the page."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from backplay.app import comparison, export, rivals
from backplay.app.scene import Scene
from backplay.app.work import Job

SCENES = {
    "routing": (
        Scene("zoo:vgg", "example:3", modes=(("epsilon", 0.1), ("tau", 0.6))),
        (40, 50),
        "features.8",
    ),
    "stopping": (Scene("zoo:vgg", "cue:2", target=4, game="sg"), None, ""),
    "by layer": (Scene("zoo:vgg", "example:1", layers="features.*: tau=0.5; head.*: epsilon=0"), None, ""),
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Execute lines in a folder of their own; what they define."""
    monkeypatch.chdir(tmp_path)

    def execute(lines):
        names = {}
        exec(compile(lines, "exported", "exec"), names)
        return names

    return execute


def check_picture(content):
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        assert image.format == "PNG" and min(image.size) > 200


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_a_picture(table, run, tmp_path, name):
    scene, at, layer = SCENES[name]
    files = export.of_scene(table.solve(scene), at, layer)
    check_picture(files.figure)
    numbers = np.load(io.BytesIO(files.numbers))
    found = run(files.python)
    np.testing.assert_allclose(numbers["map"], found["heat"][0].double().sum(0), rtol=1e-4, atol=1e-7)
    assert float(numbers["value"]) == pytest.approx(float(found["play"].value), rel=1e-5)
    assert float(numbers["cemetery"]) == pytest.approx(float(found["play"].cemetery), rel=1e-4)
    assert (tmp_path / "map.png").stat().st_size > 1000
    if at is not None:
        assert float(numbers["chosen_share"]) == pytest.approx(float(found["there"].share), rel=1e-4)
        assert found["found"].layer == layer == str(numbers["layer"])
        assert numbers["channels"].tolist() == found["found"].index[0].tolist()
        np.testing.assert_allclose(numbers["relevance"], found["found"].relevance[0], rtol=1e-3)


@pytest.mark.slow
def test_an_upload(table, run, tmp_path):
    """The lines read the visitor's own file by its name."""
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 255, (120, 150, 3), dtype=np.uint8)).save(tmp_path / "my cat.png")
    scene = Scene("zoo:vgg", table.uploads.keep(tmp_path / "my cat.png"))
    files = export.of_scene(table.solve(scene))
    assert "'my cat.png'" in files.python
    found = run(files.python)
    numbers = np.load(io.BytesIO(files.numbers))
    np.testing.assert_allclose(numbers["map"], found["heat"][0].double().sum(0), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["rg", "sg"])
def test_a_sentence(table, run, capsys, game):
    files = export.of_scene(table.solve(Scene("zoo:text", text='it\'s "not" great', game=game)))
    check_picture(files.figure)
    numbers, found = json.loads(files.numbers), run(files.python)["found"]
    np.testing.assert_allclose(numbers["map"], found.scores.double(), rtol=1e-4, atol=1e-6)
    assert numbers["tokens"] == found.tokens and numbers["value"] == pytest.approx(found.value, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("at, layer", [((3,), ""), (None, "blocks.0.mlp.0"), ((1,), "blocks.1.mlp.0")])
def test_inside_a_sentence(table, run, capsys, at, layer):
    files = export.of_scene(table.solve(Scene("zoo:text", text="the coffee was not great")), at, layer)
    numbers, found = json.loads(files.numbers), run(files.python)
    if at is not None:
        assert numbers["chosen"] == list(at) and "there" in found
        assert numbers["chosen_share"] == pytest.approx(float(found["there"].share), rel=1e-4)
    if layer:
        assert numbers["channels"] == found["in_layer"].index[0].tolist()


@pytest.mark.parametrize(
    "a, b",
    [
        (Scene("zoo:vgg", "example:3"), Scene("zoo:vgg-spurious", "example:3", modes=(("tau", 0.5),))),
        (Scene("zoo:text", text="the coffee was not great"), Scene("zoo:text", text="the coffee was so great")),
    ],
)
def test_a_distance(table, run, a, b):
    pair = comparison.compare(table, a, b)
    files = export.of_pair(pair)
    check_picture(files.figure)
    text = a.model == "zoo:text"
    numbers = json.loads(files.numbers) if text else np.load(io.BytesIO(files.numbers))
    h = run(files.python)["h"]
    assert float(numbers["distance"]) == pytest.approx(float(h.distance), rel=1e-5)
    found = next(iter(h.disagreement.values())) if isinstance(h.disagreement, dict) else h.disagreement
    summed = found[0].sum(-1)[: len(numbers["disagreement"])] if text else found[0].sum(0)
    np.testing.assert_allclose(numbers["disagreement"], summed, rtol=1e-3, atol=1e-9)


def test_a_distance_of_an_upload(table, run, tmp_path):
    """A file's name stays as it is, though it reads like a name of the lines themselves."""
    Image.new("RGB", (120, 150), "teal").save(tmp_path / "loaded.jpg")
    a = Scene("zoo:vgg", table.uploads.keep(tmp_path / "loaded.jpg"))
    files = export.of_pair(comparison.compare(table, a, Scene("zoo:vgg", "example:3")))
    assert "x = loaded_a.photograph('loaded.jpg')[None]" in files.python
    h = run(files.python)["h"]
    assert float(np.load(io.BytesIO(files.numbers))["distance"]) == pytest.approx(float(h.distance), rel=1e-5)


@pytest.mark.parametrize("scene", [SCENES["routing"][0], Scene("zoo:text", text="the coffee was not great")])
def test_methods(table, run, scene):
    found = rivals.gather(scene, table.ground(scene), ["rg", "gradient_x_input"])
    job = Job(lambda job: rivals.explain(job, found))
    list(job.wait(300))
    files = export.of_rivals(job.result())
    check_picture(files.figure)
    text = scene.model == "zoo:text"
    numbers = json.loads(files.numbers) if text else np.load(io.BytesIO(files.numbers))
    for name, map_ in run(files.python)["maps"].items():
        summed = map_.double() if text else map_[0].double().sum(0)
        np.testing.assert_allclose(numbers[name], summed, rtol=1e-3, atol=1e-6)


def test_methods_that_still_come(table, monkeypatch):
    """An export holds the maps that were there when it was asked for."""
    scene = SCENES["routing"][0]
    found = rivals.gather(scene, table.ground(scene), ["rg", "gradient_x_input"])
    found.maps["rg"] = found.ground.x
    plane = rivals.Rivals.plane

    def meanwhile(self, name):
        self.maps["gradient_x_input"] = self.ground.x
        return plane(self, name)

    monkeypatch.setattr(rivals.Rivals, "plane", meanwhile)
    files = export.of_rivals(found)
    assert set(np.load(io.BytesIO(files.numbers))) == {"rg", "target"} and "gradient_x_input" not in files.python


def test_links(table):
    """Files are held by the page itself, under names to save them by."""
    shown = export.of_scene(table.solve(Scene("zoo:vgg", "example:3"))).look()
    for file, kind in (("map.png", "image/png"), ("map.npz", "application/octet-stream"), ("map.py", "text/x-python")):
        assert f'download="{file}" href="data:{kind};base64,' in shown
