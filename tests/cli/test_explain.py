"""`backplay explain` on photographs: maps, figures, names, records."""

import hashlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import AxesImage
from matplotlib.text import Text
from PIL import Image

import backplay as bp
from backplay import models, photographs
from backplay.cli import columns, pictures
from backplay.cli.explaining import Explaining, class_number
from backplay.cli.options import separated
from backplay.view.play import arriving
from commands import fails, run


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---------------------------------------------------------------- maps and numbers


def test_explain(capsys, networks, image, tmp_path):
    name, out = f"{networks}:small", tmp_path / "maps"
    code, printed, err = run(capsys, "explain", image, "--model", name, "--tau", "0.5", "--target", 3, "-o", out)
    assert code == 0 and err == "" and printed.count("\n") == 1
    assert sorted(os.listdir(out)) == ["photo-rg-tau=0.5-target=3.npz", "photo-rg-tau=0.5-target=3.png", "run.json"]
    loaded = models.load(name)
    x = loaded.preprocess(photographs.read(image))[None]
    expected = bp.explain(loaded.model, x, 3, method="rg", tau=0.5)[0]
    found = np.load(out / "photo-rg-tau=0.5-target=3.npz")["rg tau=0.5"]
    assert found.shape == (3, 32, 32) and np.allclose(found, expected, rtol=1e-5, atol=1e-7)
    other = bp.explain(loaded.model, x, 3, method="rg")[0]
    assert not np.allclose(found, other, rtol=1e-2), "the temperature was heeded"
    play = bp.RoutingGame(loaded.model, tau=0.5).play(x, 3)
    value, share = float(play.value), float(arriving(play))
    assert f"dog (3), value {value:.4g}; rg tau=0.5 {100 * share:.1f} % arrives" in printed, (printed, share)


def test_several_methods_and_values(capsys, networks, folder, tmp_path):
    """Each combination is a map; a parameter goes to those methods that know it."""
    out = tmp_path / "maps"
    options = ["--method", "rg,gradient_x_input,sg", "--tau", "0.5,1", "--risk", "0,-1", "--input_variance=2", "--json"]
    (folder / "broken.jpg").unlink()
    code, printed, err = run(capsys, "explain", folder, "--model", f"{networks}:small", "-o", out, *options)
    report = json.loads(printed)
    names = [column["name"] for column in report["columns"]]
    assert code == 0 and err == ""
    assert names == [
        *(f"rg risk={r} input_variance=2 tau={t}" for r in ("0", "-1") for t in ("0.5", "1")),
        "gradient_x_input",
        *(f"sg risk={r} input_variance=2" for r in ("0", "-1")),
    ]
    loaded = models.load(f"{networks}:small")
    paths = [folder / "a.png", folder / "b.jpg", folder / "below" / "a.png"]
    assert [p["image"] for p in report["photographs"]] == [str(p) for p in paths]
    x = torch.stack([loaded.photograph(path) for path in paths])
    logits = loaded.model(x).detach()
    for column in report["columns"]:
        assert column["params"] == bp.methods()[column["method"]].check(column["params"]), "defaults too"
        expected = bp.explain(loaded.model, x, method=column["method"], **column["params"])
        for k, found in enumerate(report["photographs"]):
            target = int(logits[k].argmax())
            assert found["target"] == found["predicted"] == target and found["class"] == loaded.classes[target]
            assert found["value"] == pytest.approx(float(logits[k, target]), rel=1e-4)
            heat = np.load(found["numbers"])[column["name"]]
            assert np.allclose(heat, expected[k], rtol=1e-4, atol=1e-6)
            about = found["maps"][column["name"]]
            assert about["sum"] == pytest.approx(float(expected[k].sum()), rel=1e-3, abs=1e-5) and about["sound"]
            assert (about["arrives"] is None) == (column["method"] == "gradient_x_input")


def test_shares_that_arrive(networks, folder):
    """Against `arriving`, which goes another way: both players' passes."""
    loaded = models.load(f"{networks}:small")
    asked = columns.read(["rg", "sg"], {"tau": ["0.7"]})
    x = torch.stack([loaded.photograph(folder / name) for name in ("a.png", "b.jpg")])
    answers = Explaining(loaded, asked)(x)
    for column, game in zip(asked, (bp.RoutingGame(loaded.model, tau=0.7), bp.StoppingGame(loaded.model)), strict=True):
        expected = arriving(game.play(x)).tolist()
        assert [answer.maps[column].arrives for answer in answers] == pytest.approx(expected, rel=1e-5)


def test_maps_without_shares(capsys, networks, image, tmp_path):
    """`--no-share`: the same maps, and nobody follows the walk."""
    options = ("--model", f"{networks}:small", "--method", "rg,sg,gradient", "--json", "-o", tmp_path / "maps")
    (whole,) = json.loads(run(capsys, "explain", image, *options)[1])["photographs"]
    code, printed, err = run(capsys, "explain", image, "--no-share", *options)
    (bare,) = json.loads(printed)["photographs"]
    assert code == 0 and err == "" and bare["figure"] != whole["figure"], "a run of its own"
    assert whole["maps"]["rg"]["arrives"] > 0 and all(found["arrives"] is None for found in bare["maps"].values())
    assert bare["value"] == whole["value"] and bare["target"] == whole["target"]
    with np.load(whole["numbers"]) as one, np.load(bare["numbers"]) as other:
        assert all(np.allclose(one[name], other[name], rtol=1e-6) for name in ("rg", "sg", "gradient"))


def test_shares_of_few_photographs(capsys, networks, image, tmp_path):
    """Up to eight photographs have the share; more only with `--share`, and a line says that it is left out."""
    many = tmp_path / "many"
    many.mkdir()
    for k in range(9):
        shutil.copy(image, many / f"{k}{image.suffix}")
    options = ("--model", f"{networks}:small", "-o", tmp_path / "maps")
    few = run(capsys, "explain", *sorted(many.iterdir())[:8], *options)[1]
    assert few.count("arrives") == 8 and "--share" not in few
    bare = run(capsys, "explain", many, *options)[1]
    assert "arrives" not in bare.partition("\n")[2] and "9 photographs: maps only; --share" in bare
    asked = run(capsys, "explain", many, "--share", *options)[1]
    assert asked.count("done before") == 8, "the same settings as those of the few"
    assert asked.count("arrives") == 1


def test_games_share_a_forward_pass(networks, image):
    """Those of the network, and those of a deformed one: each column is what its game says alone."""
    loaded = models.load(f"{networks}:small")
    x = loaded.photograph(image)[None]
    variance = {"input_variance": ["2"]}
    asked = columns.read(
        ["rg", "sg"], {"tau": ["0.5", "0.8"], "tau_forward": ["true", "false"], "risk": ["0", "-1"]} | variance
    )
    (answer,) = Explaining(loaded, asked)(x)
    assert list(answer.maps) == asked and answer.predicted == int(loaded.model(x).argmax())
    for column in asked:
        expected = bp.explain(loaded.model, x, answer.predicted, method=column.method, **column.params)[0]
        assert np.allclose(answer.maps[column].heat, expected, rtol=1e-5, atol=1e-7), column.name


def test_relevance_at_a_layer(capsys, networks, image, tmp_path):
    """At the output of a module, in its shape; class activation maps read their feature map there."""
    options = ("--method", "rg,gradient_x_input,gradcam,sg", "--layer", "1", "--target", "2", "--json")
    code, printed, err = run(capsys, "explain", image, "--model", f"{networks}:small", *options, "-o", tmp_path / "o")
    report = json.loads(printed)
    (found,) = report["photographs"]
    assert code == 0 and err == "" and "-layer=1" in os.path.basename(found["figure"])
    loaded = models.load(f"{networks}:small")
    x = loaded.photograph(image)[None]
    with np.load(found["numbers"]) as numbers:
        for method in ("rg", "gradient_x_input", "gradcam", "sg"):
            expected = bp.explain(loaded.model, x, 2, method=method, layer="1")[0]
            assert numbers[f"{method} layer=1"].shape == ((1, 32, 32) if method == "gradcam" else (4, 15, 15))
            assert np.allclose(numbers[f"{method} layer=1"], expected, rtol=1e-4, atol=1e-6), method
    assert all(column["params"]["layer"] == "1" for column in report["columns"])
    assert found["maps"]["rg layer=1"]["arrives"] is None


def test_tokens_lie_on_the_photograph(image):
    """Relevance at a transformer's block is drawn patch by patch, without the class token."""
    loaded = models.load("zoo:vit")
    x = loaded.photograph(image)[None]
    network = bp.capture(loaded.model, x)
    blocks = [n.name for n in network.nodes if n.kind == "sum" and len(n.shape) == 3]
    asked = columns.read(["rg"], {"layer": [blocks[1], blocks[-1]]})
    (answer,) = Explaining(loaded, asked)(x)
    for column in asked:
        found, expected = answer.maps[column], bp.explain(loaded.model, x, method="rg", layer=column.layer)[0]
        assert np.allclose(found.heat, expected, rtol=1e-4, atol=1e-6)
        side, scores = math.isqrt(len(expected)), expected.sum(1)
        first = len(expected) - side * side
        assert np.allclose(found.shown, scores[first:].reshape(side, side), rtol=1e-4, atol=1e-6)
        assert found.aside == pytest.approx(float(scores[:first].abs().sum() / scores.abs().sum()), rel=1e-3)
    early, late = (answer.maps[column] for column in asked)
    assert early.shown.any() and late.aside == 1, "the last block's patches are not read any more"
    notes = pictures.letters(image, answer, loaded)["notes"]
    assert notes[asked[1].title].replace("\u00a0", " ") == "100 % on other tokens"
    assert bp.view.panels(answer.x[None], pictures.planes(answer)).axes[0].images[1].get_array().shape == (side, side)


def test_why_one_rather_than_another(capsys, networks, image, tmp_path):
    """+1 at the target and −1 at the other class (S26b)."""
    options = ("--method", "rg,gradient", "--target", "dog", "--against", "bee", "-o", tmp_path / "maps")
    code, printed, _ = run(capsys, "explain", image, "--model", f"{networks}:small", "--json", *options)
    (found,) = json.loads(printed)["photographs"]
    loaded = models.load(f"{networks}:small")
    x = loaded.photograph(image)[None]
    weights = torch.tensor([0.0, -1.0, 0.0, 1.0, 0.0])
    logits = loaded.model(x)[0].detach()
    assert code == 0 and found["value"] == pytest.approx(float(logits[3] - logits[1]), rel=1e-4)
    assert found["against_class"] == "bee" and os.path.basename(found["figure"]).endswith("-against=bee.png")
    for method in ("rg", "gradient"):
        expected = bp.explain(loaded.model, x, weights, method=method)[0]
        assert np.allclose(np.load(found["numbers"])[method], expected, rtol=1e-4, atol=1e-6)


def test_gradients_through_attention(capsys, image, tmp_path):
    """S25: nobody walks, so no share arrives; but there is a map."""
    options = ("--model", "zoo:vit", "--attention", "gradient", "--json", "-o", tmp_path / "maps")
    code, out, err = run(capsys, "explain", image, *options)
    (found,) = json.loads(out)["photographs"]
    assert code == 0 and found["maps"]["rg attention=gradient"]["arrives"] is None, err
    assert np.load(found["numbers"])["rg attention=gradient"].any()


@pytest.mark.parametrize("value", ["-1e-1", "-.1", "-0.1", "-1E-1"])
def test_negative_numbers(value):
    (column,) = columns.read(["rg"], {"risk": [value], "input_variance": ["1"]})
    assert column.params["risk"] == -0.1


def test_lists_of_values():
    assert separated(["a, b", "c"]) == ["a", "b", "c"] and separated(["", "a,"]) == ["", "a", ""]
    assert separated(['{"a": [1, 2], "b": {"c": 1}},x']) == ['{"a": [1, 2], "b": {"c": 1}}', "x"]


def test_negative_numbers_on_the_line(capsys, networks, image, tmp_path):
    options = ("--model", f"{networks}:small", "--risk", "-1e-1", "--input-variance", "1", "--json")
    code, out, err = run(capsys, "explain", image, *options, "-o", tmp_path / "o")
    assert code == 0 and json.loads(out)["columns"][0]["params"]["risk"] == -0.1, err


def test_a_layer_is_named_by_text(capsys, networks, image, tmp_path):
    """The modules of a Sequential are called 0, 1, 2: names, not numbers."""
    options = ("--model", f"{networks}:small", "--method", "gradcam", "--layer", "1", "--json", "-o", tmp_path / "maps")
    code, out, err = run(capsys, "explain", image, *options)
    assert code == 0 and json.loads(out)["columns"][0]["params"]["layer"] == "1", err


def test_classes_of_one_name():
    loaded = models.Loaded(torch.nn.Identity(), lambda image: torch.zeros(3, 1, 1), ("crane", "crane"), (1, 1), "two")
    with pytest.raises(bp.BackplayError, match="classes 0, 1"):
        class_number("--target", "crane", loaded)


def test_a_target_by_name(networks):
    assert class_number("--target", "Dog", models.load(f"{networks}:small")) == 3


# ---------------------------------------------------------------- presets


@pytest.mark.filterwarnings("default:.*selected on vit")
def test_presets(capsys, networks, image, tmp_path):
    """A preset is a name among methods; it warns on networks that it was not selected on."""
    options = ("--model", f"{networks}:small", "--method", "rg-vgg-localise,rg-vit-focus", "--json")
    code, out, err = run(capsys, "explain", image, *options, "-o", tmp_path / "o")
    report = json.loads(out)
    assert code == 0 and err.count("\n") == 1 and "rg-vit-focus" in err and "selected on vit" in err
    loaded = models.load(f"{networks}:small")
    for column in report["columns"]:
        keywords = bp.presets[column["name"]].keywords
        assert keywords.items() <= column["params"].items()
        x = loaded.photograph(image)[None]
        heat = np.load(report["photographs"][0]["numbers"])[column["name"]]
        expected = bp.RoutingGame(loaded.model, **keywords).attribute(x)[0]
        assert np.allclose(heat, expected, rtol=1e-4, atol=1e-6)


def test_columns_of_presets():
    averaged, plain = columns.read(["rg-eq", "rg-vit-focus"], {"epsilon": ["0.1"]})
    assert averaged.method == "rg_eq" and averaged.params["n"] == 50 and averaged.params["epsilon"] == 0.1
    assert plain.params["tau"] == 0.5 and plain.name == "rg-vit-focus epsilon=0.1"


# ---------------------------------------------------------------- figures


def test_the_figure(networks, image):
    """Numbers drawn: the image in its own colours, each map, the class, the value, the shares that arrive."""
    loaded = models.load(f"{networks}:small")
    asked = columns.read(["rg", "gradient"], {"tau": ["0.5", "1"]})
    (answer,) = Explaining(loaded, asked, target="2")(loaded.photograph(image)[None])
    letters = pictures.letters(image, answer, loaded)
    figure = bp.view.panels(answer.x[None], pictures.planes(answer), **letters, model=loaded)
    drawn = [np.asarray(i.get_array()) for i in figure.findobj(AxesImage)]
    panels = [d for d in drawn if d.shape[0] == 32]
    assert np.allclose(panels[0], np.moveaxis(answer.x * 0.5 + 0.5, 0, -1), atol=1e-6)
    for panel, column in zip(panels[1:], asked, strict=True):
        assert np.allclose(panel, answer.maps[column].heat.sum(0, dtype=np.float64))
    said = [t.get_text() for t in figure.findobj(Text) if t.get_text()]
    title = next(t for t in said if "photo.png" in t).replace("\n", " ")
    assert "photo.png: cat" in title and f"(answer: {loaded.class_name(answer.predicted)})" in title
    from backplay.view.colours import number, share

    assert f"value {number(answer.value)}" in title
    assert {"image", "RG, τ = 0.5", "RG, τ = 1", "Gradient"} <= set(said)
    for column in asked[:2]:
        assert f"{share(answer.maps[column].arrives)} of walks arrive" in said
    assert sum("walks arrive" in t for t in said) == 2, "nobody walks in a gradient"


# ---------------------------------------------------------------- files, records, resuming


def test_a_bad_file_is_told_and_the_rest_goes_on(capsys, networks, folder, tmp_path):
    out = tmp_path / "maps"
    code, printed, err = run(capsys, "explain", folder, "--model", f"{networks}:small", "-o", out)
    assert code == 3 and err.count("\n") == 1 and "broken.jpg" in err and "no picture" in err
    assert printed.count("\n") == 3 and "notes" not in printed + err
    assert {"a-rg.png", "a-rg-2.png", "b-rg.png", "run.json"} <= set(os.listdir(out)), "one name, two photographs"
    code, printed, _ = run(capsys, "explain", folder, "--model", f"{networks}:small", "-o", out, "--json")
    report = json.loads(printed)
    assert code == 3 and len(report["photographs"]) == report["skipped"] == 3
    assert [os.path.basename(f["image"]) for f in report["failed"]] == ["broken.jpg"]


def test_a_batch_that_fails_is_tried_one_by_one(capsys, networks, folder, tmp_path):
    """`--against` what the model itself answers: refused for that photograph alone."""
    loaded = models.load(f"{networks}:small")
    (folder / "broken.jpg").unlink()
    paths = ("a.png", "b.jpg", "below/a.png")
    answers = {p: int(loaded.model(loaded.photograph(folder / p)[None]).argmax()) for p in paths}
    name = loaded.classes[answers["b.jpg"]]
    alike = [p for p, k in answers.items() if k == answers["b.jpg"]]
    code, printed, err = run(
        capsys, "explain", folder, "--model", f"{networks}:small", "--against", name, "-o", tmp_path / "maps"
    )
    assert code == (3 if len(alike) < 3 else 1) and err.count("\n") == len(alike) and "b.jpg" in err
    assert printed.count("\n") == 3 - len(alike)


def test_resuming(capsys, networks, folder, tmp_path, monkeypatch):
    """The same call again computes what is missing or has changed, and nothing else."""
    out, given = tmp_path / "maps", ["--model", f"{networks}:small", "--tau", "0.5"]
    (folder / "broken.jpg").unlink()
    assert run(capsys, "explain", folder / "a.png", *given, "-o", out)[0] == 0
    before = files(out)
    asked = []
    photograph = models.Loaded.photograph
    seen = lambda self, path: asked.append(path.name) or photograph(self, path)  # noqa: E731
    monkeypatch.setattr(models.Loaded, "photograph", seen)
    code, printed, _ = run(capsys, "explain", folder, *given, "-o", out)
    assert code == 0 and printed.count("done before") == 1 and sorted(asked) == ["a.png", "b.jpg"]
    assert {k: v for k, v in files(out).items() if k in before and k != "run.json"} == {
        k: v for k, v in before.items() if k != "run.json"
    }
    asked.clear()
    code, printed, _ = run(capsys, "explain", folder, *given, "-o", out)
    assert code == 0 and asked == [] and printed.count("done before") == 3
    Image.new("RGB", (40, 40), "red").save(folder / "b.jpg")
    os.unlink(out / "a-rg-tau=0.5.png")
    assert run(capsys, "explain", folder, *given, "-o", out)[0] == 0
    assert sorted(asked) == ["a.png", "b.jpg"] and (out / "a-rg-tau=0.5.png").exists()
    assert not (out / "a-rg-tau=0.5-3.png").exists(), "its own file is made anew"
    assert (out / "b-rg-tau=0.5-2.png").exists(), "another picture under the same path takes another name"


@pytest.mark.parametrize("broken", ["write", "letters"])
def test_what_is_done_before_a_failure_is_kept(capsys, networks, folder, tmp_path, monkeypatch, broken):
    """A disk that fills up while the second photograph is written, or a stop while it is drawn."""
    own, calls = getattr(pictures, broken), []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return own(*args)

    monkeypatch.setattr(pictures, broken, failing)
    (folder / "broken.jpg").unlink()
    asked = ["explain", folder, "--model", f"{networks}:small", "-o", tmp_path / "maps", "--json"]
    assert run(capsys, *asked)[0] == 1
    if broken == "write":  # in a second thread, which must not call torch
        _, colours, dpi, _, arrays = calls[0]
        assert {type(colours), *map(type, arrays.values())} == {np.ndarray} and isinstance(dpi, int)
    monkeypatch.setattr(pictures, broken, own)
    code, printed, _ = run(capsys, *asked)
    assert code == 0 and len(json.loads(printed)["photographs"]) == 3
    assert json.loads(printed)["skipped"] in ([1] if broken == "letters" else [1, 2])


def test_a_changed_photograph_takes_a_new_name(capsys, networks, image, tmp_path):
    """What was found of the picture before stays, and is found again when that picture is back."""
    out, given = tmp_path / "maps", ["explain", image, "--model", f"{networks}:small", "-o", tmp_path / "maps"]
    first = image.read_bytes()
    assert run(capsys, *given)[0] == 0
    before = files(out)
    entry = json.loads((out / "run.json").read_text())["items"][str(image)]
    Image.new("RGB", (40, 40), "red").save(image)
    for expected in ("photo-rg-2.png", "done before"):
        code, printed, _ = run(capsys, *given)
        assert code == 0 and expected in printed
    after = files(out)
    assert {k: after[k] for k in before if k != "run.json"} == {k: v for k, v in before.items() if k != "run.json"}
    assert sorted(after) == ["photo-rg-2.npz", "photo-rg-2.png", "photo-rg.npz", "photo-rg.png", "run.json"]
    assert json.loads(after["run.json"])["items"][str(image)]["earlier"] == [entry]
    image.write_bytes(first)
    code, printed, _ = run(capsys, *given)
    assert code == 0 and printed.endswith(f"done before, {out / 'photo-rg.png'}\n")


def test_nothing_to_explain_is_told_from_too_much(capsys, networks, image, tmp_path):
    given = ["--model", f"{networks}:small", "-o", tmp_path / "maps"]
    fails(capsys, "explain", *given, words=("nothing to explain", "--text"), code=1)
    fails(capsys, "explain", image, "--text", "a", *given, words=("not both",), code=1)


def test_rules_as_json(capsys, networks, image, tmp_path):
    """Rules by layer from the command line are those of the library."""
    rules = '{"*": "ZPlus", "0": {"Gamma": {"gamma": 0.5}}}'
    given = ["explain", image, "--model", f"{networks}:small", "--method", "lrp", "-o", tmp_path / "maps"]
    code, out, _ = run(capsys, *given, "--rules", rules, "--json")
    report = json.loads(out)
    assert code == 0 and report["columns"][0]["params"]["rules"] == json.loads(rules)
    loaded = models.load(f"{networks}:small")
    found = report["photographs"][0]
    own = {"*": bp.lrp.ZPlus(), "0": bp.lrp.Gamma(gamma=0.5)}
    x = loaded.photograph(image)[None]
    heat = bp.explain(loaded.model, x, target=found["target"], method="lrp", rules=own)
    assert np.allclose(next(iter(np.load(found["numbers"]).values())), heat[0].numpy(), atol=1e-6)
    for wrong, words in {
        "{": "no JSON",
        '{"*": "ZPlu"}': "did you mean ZPlus",
        '{"*": {"Gamma": {"gama": 1}}}': "gamma",
        '{"*": {"Gamma": {"gamma": -1}}}': "Gamma: gamma=-1",
        '{"*": {}}': "is no rule",
    }.items():
        fails(capsys, *given, "--rules", wrong, words=(words,), code=1)


def test_no_run_writes_over_anothers_files(capsys, networks, image, tmp_path):
    out = tmp_path / "maps"
    out.mkdir()
    (out / "photo-rg.png").write_bytes(b"mine")
    (out / "run.json").write_text("not a record")
    code, _, _ = run(capsys, "explain", image, "--model", f"{networks}:small", "-o", out)
    assert code == 0 and sorted(os.listdir(out)) == [
        "photo-rg-2.npz",
        "photo-rg-2.png",
        "photo-rg.png",
        "run-2.json",
        "run.json",
    ]
    first = files(out)
    for more in (["--weights", "random"], ["--target", "1"], ["--tau", "2"], ["--method", "sg"]):
        assert run(capsys, "explain", image, "--model", f"{networks}:small", "-o", out, *more)[0] == 0
        assert first.items() <= files(out).items(), more
        first = files(out)
    assert "photo-rg-3.png" in first and "photo-rg-tau=2.png" in first and "run-6.json" in first


def test_an_image_is_never_overwritten(capsys, networks, image, tmp_path):
    taken = image.rename(tmp_path / "photo-rg.png")
    original = tmp_path / "photo.png"
    original.write_bytes(taken.read_bytes())
    before = taken.read_bytes()
    assert run(capsys, "explain", original, taken, "--model", f"{networks}:small", "-o", tmp_path)[0] == 0
    assert taken.read_bytes() == before and (tmp_path / "photo-rg-2.png").exists()
    fails(capsys, "explain", tmp_path, "--model", f"{networks}:small", "-o", tmp_path, words=("itself",), code=1)


def test_results_below_a_folder_are_no_photographs(capsys, networks, folder):
    (folder / "broken.jpg").unlink()
    for _ in range(2):
        code, printed, _ = run(capsys, "explain", folder, "--model", f"{networks}:small", "-o", folder / "maps")
        assert code == 0 and printed.count("\n") == 3


def test_the_record_makes_it_again(capsys, networks, image, tmp_path):
    """Everything that results depend on, and the command itself."""
    out, again = tmp_path / "maps", tmp_path / "again"
    weights = tmp_path / "w.pth"
    torch.save(models.load(f"{networks}:small", "random").model.state_dict(), weights)
    given = ["explain", image, "--model", f"{networks}:small", "--weights", weights, "--method", "smoothgrad"]
    assert run(capsys, *given, "--n", "3", "-o", out)[0] == 0
    record = json.loads((out / "run.json").read_text())
    settings, (entry,) = record["settings"], record["items"].values()
    assert settings["backplay"] == bp.__version__ and settings["model"] == f"{networks}:small"
    assert settings["weights"] == [{"name": str(weights), "sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}]
    assert settings["model_sha256"] == hashlib.sha256(networks.read_bytes()).hexdigest()
    assert settings["columns"][0]["params"]["seed"] == 0
    assert entry["sha256"] == hashlib.sha256(image.read_bytes()).hexdigest()
    assert record["machine"]["torch"] == torch.__version__ and list(record["items"]) == [str(image)]
    typed = shlex.split(record["command"])[1:]
    assert run(capsys, *[str(again) if word == str(out) else word for word in typed])[0] == 0
    (first,), (second,) = (sorted(folder.glob("*.npz")) for folder in (out, again))
    assert np.allclose(np.load(first)["smoothgrad n=3"], np.load(second)["smoothgrad n=3"], rtol=1e-5, atol=1e-7)


def test_a_run_that_is_killed_goes_on(networks, folder, tmp_path):
    """Names are the run's own before it writes them."""
    from backplay.cli.runs import Item, RunFolder

    out, item = tmp_path / "maps", Item("key", "cat")
    first = RunFolder.open(out, {"a": 1}, (".png",))
    first.claim({item: "d"}, "rg")
    (out / "cat-rg.png").write_bytes(b"half a run")  # written, not yet in the record
    second = RunFolder.open(out, {"a": 1}, (".png",))
    assert not second.is_done(item, "d")
    second.claim({item: "d"}, "rg")
    assert [f.name for f in second.files(item)] == ["cat-rg.png"]
    second.done(item, "d", {"x": float("nan")})
    second.write()
    third = RunFolder.open(out, {"a": 1}, (".png",))
    assert third.is_done(item, "d") and not third.is_done(item, "e") and third.report(item) == {"x": None}
    other = RunFolder.open(out, {"a": 2}, (".png",))
    other.claim({item: "d"}, "rg")
    assert [f.name for f in other.files(item)] == ["cat-rg-2.png"] and other.record.name == "run-2.json"


def test_long_names_are_cut():
    asked = columns.read(["rg"], {"tau": [str(1 + k / 100) for k in range(60)]})
    name = columns.file_name(asked, {})
    assert len(name) <= 120 and name != columns.file_name(asked[:-1], {})
    (column,) = columns.read(["gradcam"], {"layer": ["a/b-c"]})
    assert columns.file_name([column], {}) == "gradcam-layer=a_b-c" and column.title == "GCAM, layer = a/b-c"
    (column,) = columns.read(["sg"], {"risk": ["-1"], "input_variance": ["0.5"]})
    assert column.title == "SG, λ = −1, σ² = 0.5"
    assert columns.file_name([column], {"target": 3}) == "sg-risk=-1-input_variance=0.5-target=3"


# ---------------------------------------------------------------- refusals


def test_explain_refuses(capsys, networks, image, tmp_path):
    out = tmp_path / "maps"

    def refuses(*options, words, picture=image, model=f"{networks}:small", code=1):
        fails(capsys, "explain", picture, "--model", model, "-o", out, *options, words=words, code=code)

    refuses(words=("does not exist",), picture=tmp_path / "no.jpg")
    refuses(words=("no picture",), picture=networks)
    refuses(words=("resnet18",), model="torchvision:resnet81")
    refuses(words=("nothing is downloaded",), model="hf:google/vit")
    refuses("--target", 5, words=("classes 0 to 4",))
    refuses("--target", -1, words=("classes 0 to 4",))
    refuses("--against", 7, words=("--against 7", "classes 0 to 4"))
    refuses("--against", "ant", "--target", "0", words=("--against ant", "another"))
    refuses("--tau", "-1", words=("tau", "-1"))
    refuses("--tau", "0.5,,1", words=("--tau", "no number"))
    refuses("--target", "bea", words=("no such class", "did you mean bee"))
    refuses("--target", "heart", words=("heart", "give a number"), model=f"{networks}:wrong")
    refuses("--tau", "warm", words=("--tau", "'warm' is no number"))
    refuses("--steps", 5, words=("--steps", "rg has no such parameter", "integrated_gradients"))
    refuses("--steps", 5, "--method", "rg,gradcam", words=("--steps", "rg, gradcam", "integrated_gradients"))
    refuses(words=("add :factory",), model=networks)
    refuses("--tua", "1", words=("--tua", "--tau"), code=2)
    refuses("--method", "rgg", words=("rgg", "rg"))
    refuses("--method", "rg,", words=("--method",))
    refuses("--method", "rollout", words=("attention",))
    refuses("--method", "rg,rollout", words=("rollout", "attention"))
    refuses("--weights", tmp_path / "no.pth", words=("no.pth", "does not exist"))
    refuses(words=("(4, 6, 6)",), model=f"{networks}:dense")
    refuses("--method", "smoothgrad", "--seed", 10**23, words=("seed", "64 bits"))
    refuses("--text", "a text", words=("not both",))
    refuses("--position", "1", words=("--position",))
    refuses("--layer", "9", words=("--layer 9", "backplay inspect"))
    refuses("--layer", "9", "--method", "gradcam", words=("--layer 9", "backplay inspect"))
    refuses("--layer", "3", words=("--layer 3", "(5,)", "name one of"))
    refuses("--layer", "1", "--method", "lime", words=("--layer", "lime has no such parameter", "gradcam"))
    (tmp_path / "empty").mkdir()
    refuses(words=("no photographs",), picture=tmp_path / "empty")
    Image.new("L", (1, 60_000)).save(tmp_path / "line.png")
    line = {"picture": tmp_path / "line.png", "model": "torchvision:squeezenet1_1"}
    refuses("--weights", "random", words=("megapixels",), **line)
    (tmp_path / "taken").touch()
    refuses("-o", tmp_path / "taken", words=("cannot make the folder",))
    refuses("-o", tmp_path / "taken" / "below", words=("cannot make the folder", "is a file"))
    fails(capsys, "explain", "--model", "zoo:vgg", "-o", out, words=("photographs",), code=1)
    assert not out.exists(), "nothing was written, and no empty folder is left"


def test_parameters_are_checked_first(capsys, networks, image, tmp_path):
    """Nothing is loaded for what cannot be played."""
    options = ("--model", f"{networks}:slow", "-o", tmp_path / "maps")
    fails(capsys, "explain", image, *options, "--tau", "0", words=("tau=0.0",), code=1)
    fails(capsys, "explain", image, *options, "--tau-forward", "true", "--risk-forward", "true", words=("use one",))
    fails(capsys, "explain", image, *options, "--method", "smoothgrad", "--n", "2.5", words=("n='2.5'",), code=1)


def test_a_missing_library_is_told_first(capsys, networks, image, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    options = ("--model", f"{networks}:slow", "--method", "lime", "-o", tmp_path / "maps")
    fails(capsys, "explain", image, *options, words=("scikit-image", "pip install 'backplay[methods]'"), code=1)
    code, out, _ = run(capsys, "methods", "--model", f"{networks}:small")
    assert code == 0 and "does not fit: it needs scikit-image" in out


def test_every_method_has_its_parameters_as_options(capsys):
    for name, info in bp.methods().items():
        code, out, _ = run(capsys, "explain", "--method", name, "--help")
        assert code == 0 and all(f"--{param.replace('_', '-')} " in out for param in info.params), name


def test_help_shows_the_parameters_of_the_methods_it_names(capsys):
    _, out, _ = run(capsys, "explain", "--method=lime", "--help")
    assert "superpixels that SLIC is asked for; an integer >= 1 (default: 80)" in " ".join(out.split())
    assert "--tau " not in out
    for given in ([], ["--method", "rg-vit-focus"]):
        _, out, _ = run(capsys, "explain", *given, "--help")
        assert "--tau " in out and "--segments " not in out


# ---------------------------------------------------------------- texts


REVIEW = "on monday we went to the cafe . the coffee was not great ."


def test_texts(capsys, tmp_path):
    """The numbers are those of `bp.text.explain`; the page holds the words."""
    from backplay import zoo

    out = tmp_path / "maps"
    options = ("--model", "zoo:text", "--method", "rg,gradient_x_input", "--tau=0.7", "-o", out, "--target", "positive")
    code, printed, err = run(capsys, "explain", "--text", REVIEW, "--text", "a great place", *options, "--json")
    report = json.loads(printed)
    assert code == 0 and err == "" and [t["text"] for t in report["texts"]] == [REVIEW, "a great place"]
    model = zoo.load("text")
    asked = {"rg tau=0.7": {"method": "rg", "tau": 0.7}, "gradient_x_input": {"method": "gradient_x_input"}}
    for column, params in asked.items():
        expected = bp.text.explain(model, model.tokenizer, REVIEW, "positive", **params)[0]
        found = json.loads(Path(report["texts"][0]["numbers"]).read_text())[column]
        scores = expected.scores.tolist()
        assert found["tokens"] == expected.tokens and found["scores"] == pytest.approx(scores, rel=1e-4, abs=1e-6)
        assert found["value"] == pytest.approx(expected.value, rel=1e-5) and found["target"] == "positive"
    page = Path(report["texts"][0]["figure"]).read_text()
    assert "monday" in page and "RG, τ = 0.7" in page and "http" not in page.replace("http-equiv", "")
    code, printed, _ = run(capsys, "explain", "--text", REVIEW, *options)
    assert code == 0 and "positive (1)" in printed and len(os.listdir(out)) == 5


def test_why_one_word_rather_than_another(capsys, tmp_path):
    from backplay import zoo

    options = ("--model", "zoo:text", "--target", "negative", "--against", "positive", "-o", tmp_path / "maps")
    code, printed, _ = run(capsys, "explain", "--text", REVIEW, *options, "--json")
    (found,) = json.loads(printed)["texts"]
    model = zoo.load("text")
    expected = bp.text.explain(model, model.tokenizer, REVIEW, "negative", against="positive")[0]
    assert code == 0 and (found["class"], found["against_class"]) == ("negative", "positive")
    assert found["value"] == pytest.approx(expected.value, rel=1e-5)
    numbers = json.loads(Path(found["numbers"]).read_text())["rg"]
    assert numbers["scores"] == pytest.approx(expected.scores.tolist(), rel=1e-4, abs=1e-6)
    assert "rather than positive" in Path(found["figure"]).read_text()
    code, printed, _ = run(capsys, "explain", "--text", REVIEW, *options)
    assert code == 0 and "negative (0) rather than positive" in printed, "read from the record"


def test_texts_that_are_refused(capsys, tmp_path):
    out = ("-o", tmp_path / "maps")
    fails(capsys, "explain", "--text", "  ", "--model", "zoo:text", *out, words=("empty",), code=1)
    fails(capsys, "explain", "--text", REVIEW, "--model", "zoo:vgg", *out, words=("zoo:text",), code=1)
    fails(capsys, "explain", "--text", REVIEW, "--model", "hf:nowhere", *out, words=("no folder",), code=1)
    fails(capsys, "explain", "--text", REVIEW, "--model", "zoo:text", "--target", "neutral", *out, words=("neutral",))
    fails(
        capsys, "explain", "--text", REVIEW, "--model", "zoo:text", "--against", "0", *out, words=("against", "itself")
    )
    fails(capsys, "explain", "--text", REVIEW, "--model", "zoo:text", "--layer", "a", *out, words=("--layer", "tokens"))
    fails(
        capsys, "explain", "--text", REVIEW, "--model", "zoo:text", "--no-share", *out, words=("--no-share", "always")
    )
    fails(capsys, "explain", "--text", REVIEW, "--model", "zoo:text", "--method", "gradcam", *out, words=("gradcam",))
    assert not (tmp_path / "maps").exists()
    code, printed, err = run(capsys, "explain", "--text", " ", "--text", "great", "--model", "zoo:text", *out)
    assert code == 3 and err.count("\n") == 1 and printed.count("\n") == 1


def test_a_text_model_of_transformers(capsys, tmp_path):
    """A folder that `save_pretrained` wrote, with its tokenizer."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    vocabulary = {word: k for k, word in enumerate(words)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **specials)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config)
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    capsys.readouterr()
    code, printed, err = run(
        capsys, "explain", "--text", "good film", "--model", f"hf:{tmp_path / 'bert'}", "-o", tmp_path / "o", "--json"
    )
    assert code == 0, err
    (found,) = json.loads(printed)["texts"]
    expected = bp.text.explain(model.eval(), tokenizer, "good film")[0]
    numbers = json.loads(Path(found["numbers"]).read_text())["rg"]
    assert numbers["scores"] == pytest.approx(expected.scores.tolist(), rel=1e-4, abs=1e-6)
    code, printed, err = run(capsys, "inspect", "--model", f"hf:{tmp_path / 'bert'}", "--json")
    graph = json.loads(printed)
    assert code == 0 and graph["classes"] == 2 and graph["nodes"][0]["shape"] == [None, 8, 16], err


# ---------------------------------------------------------------- as a process


@pytest.mark.slow
def test_a_warning_is_one_line(networks, image, tmp_path):
    options = ["--model", f"{networks}:small", "--alpha", "3", "-o", tmp_path / "maps"]
    command = [sys.executable, "-m", "backplay", "explain", image, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    assert done.stderr.count("\n") == 1 and "alpha" in done.stderr and ".py" not in done.stderr


@pytest.mark.slow
def test_the_entry_point_is_installed():
    """`backplay`, as pip installs it."""
    found = shutil.which("backplay", path=os.path.dirname(sys.executable))
    if found is None:
        pytest.skip("the package is not installed in this environment")
    done = subprocess.run([found, "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("backplay ")
