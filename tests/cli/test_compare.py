"""`backplay compare`: two photographs, or one under two files of weights."""

import json
import os

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import backplay as bp
from backplay import models
from commands import fails, run


@pytest.fixture
def other(tmp_path):
    path = tmp_path / "other.png"
    Image.fromarray(np.random.default_rng(5).integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def weights(networks, tmp_path):
    """Two files of weights of one network."""
    model = models.load(f"{networks}:small").model
    torch.save(model.state_dict(), tmp_path / "first.pth")
    torch.save({k: v * 0.9 + 0.01 for k, v in model.state_dict().items()}, tmp_path / "second.pth")
    return tmp_path / "first.pth", tmp_path / "second.pth"


def checked(report, h):
    assert report["distance"] == pytest.approx(float(h.distance), rel=1e-6)
    assert report["surviving"] == pytest.approx(float(h.surviving), rel=1e-6)
    assert list(report["by_layer"]) == [name for name, _ in h.by_layer]
    numbers = np.load(report["numbers"])
    assert np.allclose(numbers["disagreement"], h.map()[0], rtol=1e-5, atol=1e-9)
    assert np.allclose(numbers["fraction"], h.map("fraction")[0], rtol=1e-5, atol=1e-9)
    with Image.open(report["figure"]) as picture:
        assert picture.width > 300


def test_two_photographs(capsys, networks, image, other, tmp_path):
    """Both are asked about the class that the network finds in the first."""
    out, name = tmp_path / "o", f"{networks}:small"
    code, printed, err = run(
        capsys, "compare", image, other, "--model", name, "--method", "rg,sg", "--tau", "0.7", "-o", out, "--json"
    )
    assert code == 0 and err == ""
    loaded = models.load(name)
    a, b = (loaded.photograph(path)[None] for path in (image, other))
    chosen = int(loaded.model(a).argmax())
    games = bp.RoutingGame(loaded.model, tau=0.7), bp.StoppingGame(loaded.model)
    for report, game in zip(json.loads(printed)["distances"], games, strict=True):
        assert report["target"] == chosen and report["class"] == loaded.classes[chosen]
        play_a, play_b = game.play(a, chosen), game.play(b, chosen)
        checked(report, bp.hellinger(play_a, play_b))
        assert report["a"]["value"] == pytest.approx(float(play_a.value), rel=1e-4)
        assert report["b"]["value"] == pytest.approx(float(play_b.value), rel=1e-4)
    assert sorted(os.listdir(out)) == [
        "photo-vs-other-rg-tau=0.7.npz",
        "photo-vs-other-rg-tau=0.7.png",
        "photo-vs-other-sg.npz",
        "photo-vs-other-sg.png",
        "run.json",
    ]


def test_two_files_of_weights(capsys, networks, image, weights, tmp_path):
    """As A and B with --image, or by --weights twice: one and the same."""
    name, (first, second) = f"{networks}:small", weights
    calls = (
        ["compare", first, second, "--image", image],
        ["compare", image, "--weights", first, "--weights", second],
    )
    plays = [
        bp.RoutingGame(models.load(name, w).model).play(models.load(name).photograph(image)[None], 2) for w in weights
    ]
    for k, call in enumerate(calls):
        options = ("--model", name, "--target", "cat", "-o", tmp_path / f"o{k}")
        code, printed, _ = run(capsys, *call, *options, "--json")
        (report,) = json.loads(printed)["distances"]
        assert code == 0 and [report[side]["weights"] for side in "ab"] == [str(first), str(second)]
        checked(report, bp.hellinger(*plays))
        assert os.path.basename(report["figure"]) == "first-vs-second-rg-target=cat.png"
    code, printed, _ = run(capsys, *call, *options)
    told = f"rg (Routing Game, epsilon=0.5): H {report['distance']:.4f}, given survival {report['surviving']:.4f}"
    assert code == 0 and printed.startswith(told)


@pytest.mark.parametrize(
    "given, said, modes, heading",
    [
        ((), "rg (Routing Game, epsilon=0.5): H ", {"epsilon": 0.5}, "Routing Game, ε = 0.5: H = "),
        (("--epsilon", "0"), "rg (Routing Game, epsilon=0): H ", {"epsilon": 0.0}, "Routing Game, ε = 0: H = "),
        (
            ("--tau", "0.7"),
            "rg (Routing Game, epsilon=0.5, tau=0.7): H ",
            {"epsilon": 0.5, "tau": 0.7},
            "Routing Game, ε = 0.5, τ = 0.7: H = ",
        ),
        (("--method", "sg"), "sg (Stopping Game): H ", {}, "Stopping Game: H = "),
        (
            ("--method", "rg-vgg-localise"),
            "rg-vgg-localise (Routing Game, risk=-1, input_variance=10, epsilon=0.5): H ",
            {"risk": -1.0, "input_variance": 10.0, "epsilon": 0.5},
            "Routing Game, λ = −1, σ² = 10, ε = 0.5: H = ",
        ),
    ],
)
def test_the_game_is_named(capsys, networks, image, other, tmp_path, monkeypatch, given, said, modes, heading):
    """With its ε, also where that is the default, and every other mode: in the line, in JSON and over the figure."""
    drawn = []
    saved = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), saved(self, *a, **k))[1])
    call = ("compare", image, other, "--model", f"{networks}:small", *given, "-o", tmp_path / "o")
    code, printed, _ = run(capsys, *call)
    assert code == 0 and printed.startswith(said)
    assert [text.get_text() for text in drawn[0].texts if text.get_text().startswith(heading)]
    for _ in range(2):  # the second one is read from the record
        (report,) = json.loads(run(capsys, *call, "--json")[1])["distances"]
        assert report["game"] == heading.partition(" Game")[0] + " Game"
        assert {name: pytest.approx(value) for name, value in report["modes"].items()} == modes


def test_the_same_again_is_read_from_the_record(capsys, networks, image, other, tmp_path, monkeypatch):
    given = ("compare", image, other, "--model", f"{networks}:small", "-o", tmp_path / "o", "--json")
    first = run(capsys, *given)
    monkeypatch.setattr(bp, "hellinger", None)
    assert run(capsys, *given) == first


def test_compare_refuses(capsys, networks, image, other, weights, tmp_path):
    def refuses(*arguments, words, code=1):
        given = ("--model", f"{networks}:small", "-o", tmp_path / "o")
        fails(capsys, "compare", *arguments, *given, words=words, code=code)

    refuses(image, words=("1 photograph and no files of weights", "--weights twice"))
    refuses(image, other, image, words=("3 photographs and no files",))
    refuses(image, "--weights", weights[0], words=("1 photograph and 1 file of weights",))
    refuses(*weights, words=("files of weights", "--image"))
    refuses(*weights, "--image", image, "--weights", weights[0], words=("given twice",))
    refuses(image, other, "--image", image, words=("--image",))
    refuses(image, tmp_path / "no.png", words=("no.png", "does not exist"))
    refuses(image, networks, words=("no picture",))
    refuses(image, other, "--method", "gradcam", words=("compare plays games", "gradcam"))
    refuses(image, other, "--method", "sg", "--tau", "0.5", words=("--tau", "sg has no such parameter"))
    refuses(image, other, "--target", "9", words=("classes 0 to 4",))
    refuses(image, other, "--target", "fox", words=("no such class: there are ant, bee, cat, dog, elk;",))
    refuses(image, other, "--tau", "0", words=("tau=0.0",))
    refuses(weights[0], tmp_path / "no.pth", "--image", image, words=("no.pth", "does not exist"))
    assert not (tmp_path / "o").exists()
