"""The commands as a user types them, on networks that a file of the user's builds."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from PIL import Image

import backplay as bp
from backplay import models, photographs
from backplay.cli import main

NETWORKS = """
    import time
    import torch
    from torch import nn

    def small():
        torch.manual_seed(3)
        layers = [nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 15 * 15, 5)]
        names = ["ant", "bee", "cat", "dog", "elk"]
        return nn.Sequential(*layers), {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3, "classes": names}

    def cubic():
        class Cubic(nn.Module):
            def forward(self, x):
                return torch.special.bessel_j0(x).mean((2, 3))
        return Cubic(), {"size": 8}

    def wrong():
        return small()[0], {"size": 16}

    def dense():
        return nn.Conv2d(3, 4, 3), {"size": 8}

    def slow():
        print("started", flush=True)
        time.sleep(60)
"""


@pytest.fixture
def networks(tmp_path):
    (tmp_path / "networks.py").write_text(textwrap.dedent(NETWORKS))
    return tmp_path / "networks.py"


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "photo.png"
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    return code, out, err


def fails(capsys, *arguments, words=(), code=None):
    """One clear line on standard error, nothing on standard output."""
    found, out, err = run(capsys, *arguments)
    assert found not in (0, None) and (code is None or found == code), (found, out, err)
    assert out == "" and err.count("\n") == 1 and err.startswith("backplay"), err
    assert all(word in err for word in words), err


# ---------------------------------------------------------------- inspect, models, methods, demo


def test_inspect(capsys, networks):
    code, out, err = run(capsys, "inspect", "--model", f"{networks}:small")
    lines = out.splitlines()
    assert code == 0 and err == ""
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["input", "input"],
        ["0", "affine"],
        ["1", "gate"],
        ["2", "wire"],
        ["3", "affine"],
    ]
    assert "batch × 4 × 15 × 15" in lines[1] and "5 nodes" in lines[-1]


def test_inspect_as_json(capsys, networks):
    code, out, _ = run(capsys, "inspect", "--model", f"{networks}:small", "--json")
    report = json.loads(out)
    loaded = models.load(f"{networks}:small")
    network = bp.capture(loaded.model, torch.zeros(2, 3, 32, 32))
    assert code == 0 and [n["name"] for n in report["nodes"]] == [n.name for n in network.nodes]
    assert report["nodes"][-1] == {"name": "3", "kind": "affine", "operator": "linear", "shape": [None, 5]}
    assert report["kinds"]["affine"] == 2 and report["unsupported"] == [] and report["classes"] == 5


def test_inspect_shows_the_modes_of_each_node(capsys, networks):
    layers = '{"*": {"tau": 0.5}, "0": {"epsilon": 0.1, "risk": -1.0}}'
    code, out, err = run(capsys, "inspect", "--model", f"{networks}:small", "--layers", layers)
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0 and err == ""
    assert lines["0"].endswith("epsilon=0.1  tau=0.5") and lines["3"].endswith("  tau=0.5")
    assert "=" not in lines["1"] and "=" not in lines["input"]  # a gate has no temperature, and λ is not at "1"
    code, out, _ = run(capsys, "inspect", "--model", f"{networks}:small", "--layers", layers, "--json")
    nodes = {node["name"]: node for node in json.loads(out)["nodes"]}
    assert nodes["0"]["modes"]["alpha"] == 2.0 and nodes["0"]["changed"] == {"epsilon": 0.1, "tau": 0.5}
    assert nodes["1"]["modes"]["risk"] == 0.0 and nodes["2"]["modes"] == {}


@pytest.mark.parametrize(
    "layers, words",
    [
        ("{", "layers='{' is out of range: it must be a mapping"),
        ("[1]", "must be a mapping"),
        ('{"9": {"tau": 0.5}}', "'9' matches no node"),
        ('{"0": {"output": "one"}}', "no meaning by layer"),
    ],
)
def test_inspect_refuses_layers(capsys, networks, layers, words):
    arguments = ("inspect", "--model", f"{networks}:small", "--layers", layers)
    fails(capsys, *arguments, words=(words,), code=1)


def test_inspect_needs_no_weights(capsys):
    code, out, _ = run(capsys, "inspect", "--model", "torchvision:squeezenet1_1", "--json")
    assert code == 0 and json.loads(out)["nodes"][-1]["shape"] == [None, 1000]


def test_inspect_names_the_operator_without_a_kind(capsys, networks):
    fails(capsys, "inspect", "--model", f"{networks}:cubic", words=("special_bessel_j0", "no kind"), code=1)


def test_models(capsys):
    code, out, err = run(capsys, "models", "--json")
    found = {entry["form"]: entry for entry in json.loads(out)}
    assert code == 0 and err == ""
    assert list(found) == ["zoo:NAME", "torchvision:NAME", "timm:NAME", "hf:PATH", "path.py:factory"]
    assert found["zoo:NAME"]["names"][:2] == ["vgg", "vgg-spurious"]
    assert "resnet18" in found["torchvision:NAME"]["names"] and "vit_tiny_patch16_224" in found["timm:NAME"]["names"]
    assert found["hf:PATH"]["library"] == "transformers" and found["hf:PATH"]["installed"]
    code, out, _ = run(capsys, "models")
    assert code == 0 and all(form in out for form in found) and len(out.splitlines()) == 11


def test_methods(capsys):
    code, out, _ = run(capsys, "methods", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0 and list(found) == list(bp.methods())
    assert found["rg"]["params"]["tau"]["default"] == 1.0 and found["rg"]["family"] == bp.methods()["rg"].family
    for name, info in bp.methods().items():
        assert found[name]["title"] == info.title and found[name]["grid"] == [dict(point) for point in info.grid]
    code, out, _ = run(capsys, "methods")
    assert code == 0 and "--gate-noise 1.0" in out and all(name in out for name in found)
    assert "IntGrad" in out and "validation grid, 5 points: steps 5, 10, 20, 50, 100" in out
    assert "validation grid, 12 points: n 10, 30; sigma 0.05, 0.1, 0.15, 0.2, 0.3; aggregate mean, std" in out
    assert "validation grid, 5 points: rule default, gamma, zplus; " in out


def test_methods_that_fit_a_model(capsys, networks):
    """Issue 6: `MethodInfo.fits` for a network by name, and why not."""
    code, out, _ = run(capsys, "methods", "--model", f"{networks}:small", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)}
    model = models.load(f"{networks}:small").model
    network = bp.capture(model, torch.zeros(2, 3, 32, 32))
    assert code == 0 and {name: e["fits"] for name, e in found.items()} == {
        name: info.fits(network) for name, info in bp.methods().items()
    }
    assert found["rg"]["refusal"] is None and "attention" in found["rollout"]["refusal"]
    code, out, _ = run(capsys, "methods", "--model", f"{networks}:small")
    assert code == 0 and "rollout" in out and "does not fit: it " in out
    fails(capsys, "methods", "--model", "zoo:alexnet", words=("vit-spurious",), code=1)


@pytest.mark.slow
def test_demo(capsys, tmp_path):
    """Issue bar: the network that learned from tiles shows at least three times the relevance there."""
    code, out, _ = run(capsys, "demo", "--out", tmp_path / "demo", "--json")
    report = json.loads(out)
    assert code == 0 and report["files"] == [
        str(tmp_path / "demo" / f) for f in ("maps.png", "tile.png", "report.html")
    ]
    assert report["share_on_tile"]["tile"] >= 3 * report["share_on_tile"]["object"]
    assert report["accuracy"]["object"]["wrong tile"] > 0.9 and report["accuracy"]["tile"]["wrong tile"] < 0.1
    for file in report["files"][:2]:
        with Image.open(file) as picture:
            assert picture.width > 100
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2 and "://" not in page


def test_the_page_of_the_demo_explains_itself():
    from backplay.cli import demo

    right = {"right tile": 1.0, "wrong tile": 0.5}
    shares = {"object": 0.1, "tile": 0.4}
    report = {"network": "resnet", "accuracy": {"object": right, "tile": right}, "distance": [0.5, 0.6]}
    report |= {"share_on_tile": shares, "share_on_object": shares, "health": {"object": {"summary": "sound"}}}
    page = demo._page(report, {"maps.png": b"", "tile.png": b""})
    for words in ("Red speaks for", "The network that learned from objects, explained", "temperature τ", "Hellinger"):
        assert words in page
    assert "looks at the tile, where 40.0% of its relevance lies, against 10.0%" in page
    report["share_on_tile"] = {"object": 0.4, "tile": 0.1}
    assert "do not tell the two networks apart" in demo._page(report, {})


@pytest.mark.slow
def test_zoo_train(capsys, tmp_path, monkeypatch):
    """The real training, cut to a few steps: the weights that it writes are those that `--weights` reads."""
    from backplay.zoo import training

    short = {name: recipe._replace(pool=64, steps=(2,), batch=8) for name, recipe in training.RECIPES.items()}
    monkeypatch.setattr(training, "RECIPES", short)
    out = tmp_path / "new" / "vgg.safetensors"
    code, printed, _ = run(capsys, "zoo", "train", "vgg", "--out", out, "--seed", 5, "--json")
    assert code == 0 and json.loads(printed)["weights"] == str(out) and os.listdir(out.parent) == [out.name]
    trained, loaded = training.train("vgg", seed=5), models.load("zoo:vgg", out).model
    assert torch.allclose(trained(torch.ones(1, 3, 96, 96)), loaded(torch.ones(1, 3, 96, 96)), atol=1e-5)


# ---------------------------------------------------------------- explain


def test_explain(capsys, networks, image, tmp_path):
    name, out = f"{networks}:small", tmp_path / "maps"
    code, printed, err = run(capsys, "explain", image, "--model", name, "--tau", "0.5", "--target", 3, "-o", out)
    assert code == 0 and err == "" and "dog (3)" in printed and "sound: forward error" in printed
    assert f"{name} (as the factory made it), explained by rg\n" in printed
    assert f"{out / 'photo-rg.png'}, {out / 'photo-rg.npy'}\n" in printed
    assert sorted(os.listdir(out)) == ["photo-rg.npy", "photo-rg.png"]
    loaded = models.load(name)
    x = loaded.preprocess(photographs.read(image))[None]
    expected = bp.explain(loaded.model, x, 3, method="rg", tau=0.5)[0]
    found = np.load(out / "photo-rg.npy")
    assert found.shape == (3, 32, 32) and np.allclose(found, expected, rtol=1e-5, atol=1e-7)
    other = bp.explain(loaded.model, x, 3, method="rg")[0]
    assert not np.allclose(found, other, rtol=1e-2), "the temperature was heeded"
    with Image.open(out / "photo-rg.png") as picture:
        assert picture.size == (32, 32) and picture.mode == "RGB"


def test_a_target_by_name(capsys, networks, image, tmp_path):
    options = ("--model", f"{networks}:small", "--method", "gradient", "--json", "-o", tmp_path / "maps")
    code, out, err = run(capsys, "explain", image, *options, "--target", "Dog")
    assert code == 0 and json.loads(out)["maps"][0]["target"] == 3, err


def test_classes_of_one_name():
    from backplay.cli.explain import _target

    loaded = models.Loaded(torch.nn.Identity(), lambda image: torch.zeros(3, 1, 1), ("crane", "crane"), (1, 1), "two")
    with pytest.raises(bp.BackplayError, match="classes 0, 1"):
        _target("crane", loaded)


def test_explain_several_as_json(capsys, networks, image, tmp_path):
    """Parameters stand before and after the images; images of one name do not overwrite each other."""
    (tmp_path / "other").mkdir()
    Image.new("L", (20, 50), 90).save(tmp_path / "other" / "photo.jpg")
    images, out = [image, tmp_path / "other" / "photo.jpg"], tmp_path / "maps"
    options = ["--method=sg", "--risk", "-0.5", *images, "--input-variance=1", "--gate=noisy", "--gate_noise", "2"]
    code, printed, _ = run(capsys, "explain", *options, "--model", f"{networks}:small", "--json", "-o", out)
    report = json.loads(printed)
    given = {"risk": -0.5, "input_variance": 1.0, "gate": "noisy", "gate_noise": 2.0}
    assert code == 0 and report["params"] == {k: p.default for k, p in bp.methods()["sg"].params.items()} | given
    assert [os.path.basename(m["picture"]) for m in report["maps"]] == ["photo-sg.png", "photo-sg-2.png"]
    loaded = models.load(f"{networks}:small")
    x = torch.stack([loaded.photograph(path) for path in images])
    logits = loaded.model(x).detach()
    for k, found in enumerate(report["maps"]):
        target = int(logits[k].argmax())
        assert found["target"] == found["predicted"] == target and found["class"] == loaded.classes[target]
        assert found["logit"] == pytest.approx(float(logits[k, target]), rel=1e-4) and found["health"]["ok"]
        expected = bp.explain(loaded.model, x[k : k + 1], method="sg", **report["params"])[0]
        assert np.allclose(np.load(found["array"]), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "gradcam"])
def test_explain_with_rivals(capsys, networks, image, tmp_path, method):
    code, out, _ = run(
        capsys, "explain", image, "--model", f"{networks}:small", "--method", method, "--json", "-o", tmp_path / "maps"
    )
    (found,) = json.loads(out)["maps"]
    assert code == 0 and found["ok"] and found["health"] is None
    assert np.isfinite(np.load(found["array"])).all()


def test_a_warning_is_one_line(networks, image, tmp_path):
    options = ["--model", f"{networks}:small", "--alpha", "3", "-o", tmp_path / "maps"]
    command = [sys.executable, "-m", "backplay", "explain", image, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("\n") == 2
    assert done.stderr.count("\n") == 1 and "alpha" in done.stderr and ".py" not in done.stderr


def test_json_before_the_command(capsys, networks, image, tmp_path):
    code, out, _ = run(capsys, "--json", "methods")
    assert code == 0 and isinstance(json.loads(out), list)
    options = ("--model", f"{networks}:small", "--tau", "0.5", "-o", tmp_path / "maps")
    code, out, _ = run(capsys, "--json", "explain", image, *options)
    assert code == 0 and json.loads(out)["params"]["tau"] == 0.5


def test_a_layer_is_named_by_text(capsys, networks, image, tmp_path):
    """The modules of a Sequential are called 0, 1, 2: names, not numbers."""
    options = ("--model", f"{networks}:small", "--method", "gradcam", "--layer", "1", "--json", "-o", tmp_path / "maps")
    code, out, err = run(capsys, "explain", image, *options)
    assert code == 0 and json.loads(out)["params"]["layer"] == "1", err


@pytest.mark.parametrize("value", ["-1e-1", "-.1", "-0.1", "-1E-1"])
def test_negative_numbers(capsys, networks, image, tmp_path, value):
    options = ("--model", f"{networks}:small", "--risk", value, "--json", "-o", tmp_path / "maps")
    code, out, err = run(capsys, "explain", image, *options, "--input-variance", "1")
    assert code == 0 and json.loads(out)["params"]["risk"] == -0.1, err


def test_gradients_through_attention(capsys, image, tmp_path):
    """S25: no walk, so no health; but a map."""
    options = ("--model", "zoo:vit", "--attention", "gradient", "--json", "-o", tmp_path / "maps")
    code, out, err = run(capsys, "explain", image, *options)
    (found,) = json.loads(out)["maps"]
    assert code == 0 and found["ok"] and found["health"] is None, err
    assert np.load(found["array"]).any()


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


def test_a_folder_is_no_file_of_weights(capsys, tmp_path, monkeypatch):
    """Told before the training, not after it."""
    monkeypatch.setattr("backplay.zoo.training.train", None)
    fails(capsys, "zoo", "train", "vgg", "--out", tmp_path, words=("is a folder", "vgg.safetensors"), code=1)


def test_every_method_has_its_parameters_as_options(capsys):
    for name, info in bp.methods().items():
        code, out, _ = run(capsys, "explain", "--method", name, "--help")
        assert code == 0 and all(f"--{param.replace('_', '-')} " in out for param in info.params), name


def test_notes_on_parameters(capsys):
    """What a parameter is, where its name does not say it."""
    code, out, _ = run(capsys, "explain", "--method", "lime", "--help")
    assert code == 0 and "superpixels that SLIC is asked for; an integer >= 1 (default: 80)" in " ".join(out.split())
    code, out, _ = run(capsys, "methods")
    assert code == 0 and "--segments 80: an integer >= 1; superpixels that SLIC is asked for\n" in out
    assert "--tau 1.0: a finite number > 0; temperature of the policies\n" in out
    assert "--gamma 0.25: a finite number >= 0\n" in out, "nothing behind a parameter without a note"


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
    refuses("--tau", "-1", words=("tau", "-1"))
    refuses("--target", "bea", words=("no such class", "did you mean bee"))
    refuses("--target", "heart", words=("heart", "give a number"), model=f"{networks}:wrong")
    refuses("--tau", "warm", words=("--tau", "'warm' is no number"), code=2)
    refuses("--steps", 5, words=("--steps", "rg has no such parameter", "integrated_gradients"), code=2)
    refuses(words=("add :factory",), model=networks)
    refuses("--tua", "1", words=("--tua", "--tau"), code=2)
    refuses("--method", "rgg", words=("rgg", "rg"), code=2)
    refuses("--method", "rollout", words=("attention",))
    refuses("--method", "rg", "--method", "gradient", words=("give one method",), code=2)
    refuses("--weights", tmp_path / "no.pth", words=("no.pth", "does not exist"))
    refuses(words=("(4, 6, 6)",), model=f"{networks}:dense")
    refuses("--method", "smoothgrad", "--seed", 10**23, words=("seed", "64 bits"))
    Image.new("L", (1, 60_000)).save(tmp_path / "line.png")
    line = {"picture": tmp_path / "line.png", "model": "torchvision:squeezenet1_1"}
    refuses("--weights", "random", words=("megapixels",), **line)
    (tmp_path / "taken").touch()
    refuses("-o", tmp_path / "taken", words=("cannot make the folder",))
    refuses("-o", tmp_path / "taken" / "below", words=("cannot make the folder", "is a file"))
    assert not out.exists(), "nothing was written, and no empty folder is left"


def test_an_image_is_never_overwritten(capsys, networks, image, tmp_path):
    taken = image.rename(tmp_path / "photo-rg.png")
    original = tmp_path / "photo.png"
    original.write_bytes(taken.read_bytes())
    before = taken.read_bytes()
    options = ("--model", f"{networks}:small", "-o", tmp_path)
    fails(capsys, "explain", original, taken, *options, words=("overwritten",), code=1)
    assert taken.read_bytes() == before


# ---------------------------------------------------------------- any command


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "COMMAND"),
        (["explian"], "explian"),
        (["inspect"], "--model"),
        (["inspect", "--model", "zoo:vgg", "--weight", "x"], "did you mean --weights"),
        (["models", "--jsn"], "did you mean --json"),
        (["models", "more"], "unknown argument more"),
        (["zoo", "train", "lenet"], "vgg"),
        (["inspect", "--model", "zoo:alexnet"], "vit-spurious"),
        (["explain", "--method"], "--method"),
        (["inspect", "--model", "zoo:"], "zoo:vgg"),
        (["inspect", "--model", "hf:"], "hf:PATH"),
        (["--jsn", "models"], "did you mean --json"),
    ],
)
def test_bad_arguments_are_one_line(capsys, arguments, words):
    fails(capsys, *arguments, words=(words,))


def test_help(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0 and all(name in out for name in ("explain", "inspect", "models", "methods", "demo", "zoo"))


# ---------------------------------------------------------------- as a process


def test_interrupted(networks):
    running = subprocess.Popen(
        [sys.executable, "-m", "backplay", "inspect", "--model", f"{networks}:slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert running.stdout.readline() == "started\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=300)
    assert running.returncode == 130 and err == "backplay inspect: interrupted\n"


def test_a_model_that_fails_is_one_line(networks, image, tmp_path):
    """torch logs twenty lines about what its exporter met, which are silenced."""
    options = ["--model", f"{networks}:wrong", "-o", tmp_path / "maps"]
    command = [sys.executable, "-m", "backplay", "explain", image, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Sequential itself fails on input (2, 3, 16, 16)" in done.stderr


def test_a_reader_that_leaves(networks):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "backplay", "inspect", "--model", f"{networks}:small"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 141 and done.stderr == b""


def test_the_library_stays_light():
    """Pictures, networks of others and plots are loaded where they are asked for, not with the package."""
    code = """
        import sys
        import backplay
        around = ("backplay.cli", "backplay.models", "backplay.photographs")
        assert not [name for name in sys.modules if name.startswith(around)]
        import backplay.cli, backplay.models, backplay.photographs
        heavy = {"PIL", "torchvision", "timm", "transformers", "safetensors", "huggingface_hub", "matplotlib"}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
