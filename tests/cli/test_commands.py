"""Every command as a user types it; `explain`, `compare` and the demo have files of their own."""

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import click
import pytest
import torch

import backplay as bp
from backplay import models
from backplay.cli import main
from backplay.cli.program import COMMANDS
from backplay.models.sources import Source
from commands import fails, run

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
        ("{", "layers='{' is no JSON (Expecting property name enclosed in double quotes: line 1 column 2"),
        ("[1]", "must be a mapping"),
        ('{"9": {"tau": 0.5}}', "'9' matches no node"),
        ('{"0": {"output": "one"}}', "no meaning by layer"),
    ],
)
def test_inspect_refuses_layers(capsys, networks, layers, words):
    arguments = ("inspect", "--model", f"{networks}:small", "--layers", layers)
    fails(capsys, *arguments, words=(words,), code=1)


def test_inspect_a_text_model(capsys):
    """The graph from the embeddings of a text of eight tokens to its classes."""
    code, out, _ = run(capsys, "inspect", "--model", "zoo:text", "--json")
    report = json.loads(out)
    width = models.load_text("zoo:text").model.get_input_embeddings().embedding_dim
    assert code == 0 and report["classes"] == 2 and report["unsupported"] == []
    assert report["nodes"][0]["shape"] == [None, 8, width] and report["nodes"][-1]["shape"] == [None, 2]


def test_inspect_needs_no_weights(capsys):
    code, out, _ = run(capsys, "inspect", "--model", "torchvision:squeezenet1_1", "--json")
    assert code == 0 and json.loads(out)["nodes"][-1]["shape"] == [None, 1000]


def test_inspect_names_the_operator_without_a_kind(capsys, networks):
    fails(capsys, "inspect", "--model", f"{networks}:cubic", words=("special_bessel_j0", "no kind"), code=1)


def test_inspect_names_all_of_them(capsys, networks):
    """From the input to the output; what stands behind the first one too."""
    words = ("3 operators", "special_bessel_j0 in module '1', special_airy_ai in module '3', special_bessel_j0", "'4'")
    fails(capsys, "inspect", "--model", f"{networks}:several", words=words, code=1)
    code, out, _ = run(capsys, "inspect", "--model", f"{networks}:several", "--json")
    assert code == 1 and json.loads(out)["error"]["type"] == "CaptureError"


def test_models(capsys):
    code, out, err = run(capsys, "models", "--json")
    found = {entry["form"]: entry for entry in json.loads(out)}
    assert code == 0 and err == ""
    assert list(found) == ["zoo:NAME", "torchvision:NAME", "timm:NAME", "hf:PATH", "path.py:factory"]
    assert found["zoo:NAME"]["names"][:2] == ["vgg", "vgg-spurious"]
    assert "resnet18" in found["torchvision:NAME"]["names"] and "vit_tiny_patch16_224" in found["timm:NAME"]["names"]
    assert found["hf:PATH"]["library"] == "transformers" and found["hf:PATH"]["installed"]
    code, out, _ = run(capsys, "models")
    assert code == 0 and all(form in out for form in found) and len(out.splitlines()) == 12


def test_methods(capsys):
    """A line each by default, family by family; `--json` tells everything."""
    code, out, _ = run(capsys, "methods", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0 and list(found) == [*bp.methods(), *(p for p in bp.presets if p not in bp.methods())]
    assert found["rg"]["params"]["tau"]["default"] == 1.0 and found["rg"]["family"] == bp.methods()["rg"].family
    for name, info in bp.methods().items():
        assert found[name]["title"] == info.title and found[name]["grid"] == [dict(point) for point in info.grid]
    code, out, _ = run(capsys, "methods")
    named = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert code == 0 and named == list(found) and "--gate-noise" not in out
    assert "rg-vit-localise       for vit: localisation\n" in out
    assert "  gradcam               GCAM      Grad-CAM: each channel" in out, "the title that stands over maps"


def test_one_method_in_full(capsys):
    code, out, _ = run(capsys, "methods", "rg")
    info = bp.methods()["rg"]
    assert code == 0 and all(f"--{name.replace('_', '-')} " in out for name in info.params) and info.reference in out
    assert "--tau 1.0: a finite number > 0; temperature of the policies\n" in out
    assert "--layer None: the name of a module or node, or None; a module at whose output" in out
    assert run(capsys, "methods", "gradcam")[1].count("--layer") == 1
    _, out, _ = run(capsys, "methods", "lime")
    assert "--layer" not in out
    assert "--segments 80: an integer >= 1; superpixels that SLIC is asked for\n" in out
    _, out, _ = run(capsys, "methods", "lrp_gamma")
    assert "--gamma 0.25: a finite number >= 0\n" in out, "nothing behind a parameter without a note"
    grids = {
        "integrated_gradients": "validation grid, 5 points: steps 5, 10, 20, 50, 100",
        "smoothgrad": "validation grid, 12 points: n 10, 30; sigma 0.05, 0.1, 0.15, 0.2, 0.3; aggregate mean, std",
        "deeplift": "validation grid, 5 points: rule default, gamma, zplus; ",
        "gradient": "validation grid: the defaults alone",
    }
    for name, words in grids.items():
        assert words in run(capsys, "methods", name)[1]
    code, out, _ = run(capsys, "methods", "rg", "--json")
    assert code == 0 and json.loads(out)["name"] == "rg"
    fails(capsys, "methods", "rgg", words=("no method named 'rgg'", "did you mean rg"), code=1)


def test_one_preset_in_full(capsys):
    """A preset says which architecture it is for."""
    code, out, _ = run(capsys, "methods", "rg-vit-localise")
    assert code == 0 and "a preset of rg for networks like vit: localisation" in out
    assert "tau 0.5, attention_risk -10.0, input_variance 2.0" in out and "tab:eval-vit" in out
    _, out, _ = run(capsys, "methods", "rg-eq", "--json")
    assert json.loads(out)["method"] == "rg_eq" and json.loads(out)["preset"] == {"n": 50}


def test_methods_that_fit_a_model(capsys, networks):
    """`MethodInfo.fits` for a network by name, and why not; presets too."""
    code, out, _ = run(capsys, "methods", "--model", f"{networks}:small", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)}
    model = models.load(f"{networks}:small").model
    network = bp.capture(model, torch.zeros(2, 3, 32, 32))
    assert code == 0 and {name: found[name]["fits"] for name in bp.methods()} == {
        name: info.fits(network) for name, info in bp.methods().items()
    }
    assert found["rg"]["refusal"] is None and "attention" in found["rollout"]["refusal"]
    assert found["rg-vgg-localise"]["fits"] and not found["rg-vit-localise"]["fits"]
    code, out, _ = run(capsys, "methods", "--model", f"{networks}:small")
    assert code == 0 and "rollout" in out and "(does not fit: it " in out
    fails(capsys, "methods", "--model", "zoo:alexnet", words=("vit-spurious",), code=1)


def test_a_folder_is_no_file_of_weights(capsys, tmp_path, monkeypatch):
    """Told before the training, not after it."""
    monkeypatch.setattr("backplay.zoo.training.train", None)
    fails(capsys, "zoo", "train", "vgg", "--out", tmp_path, words=("is a folder", "vgg.safetensors"), code=1)


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


# ---------------------------------------------------------------- any command


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["explian"], "did you mean explain"),
        (["inspect"], "--model"),
        (["inspect", "--model", "zoo:vgg", "--weight", "x"], "did you mean --weights"),
        (["models", "--jsn"], "did you mean --json"),
        (["models", "more"], "more"),
        (["zoo", "train", "lenet"], "vgg"),
        (["inspect", "--model", "zoo:alexnet"], "vit-spurious"),
        (["explain", "--method"], "--method"),
        (["inspect", "--model", "zoo:"], "zoo:vgg"),
        (["inspect", "--model", "hf:"], "hf:PATH"),
        (["methods", "--model", "zoo:text"], "reads text"),
        (["--jsn", "models"], "did you mean --json"),
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--seed", "-1"], "--seed"),
        (["completion", "tcsh"], "bash"),
        (["bench", "runn"], "runn"),
        (["bench", "table"], "RUN"),
        (["compare", "--model", "zoo:vgg"], "A"),
    ],
)
def test_bad_arguments_are_one_line(capsys, arguments, words):
    fails(capsys, *arguments, words=(words,))


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["inspect", "--model", "zoo:alexnet"], ["methods", "rgg"], ["nope"]]
)
def test_errors_as_json(capsys, arguments):
    """`--json` before or behind the command: an object on standard output, the line on standard error."""
    for given in (["--json", *arguments], [*arguments, "--json"]):
        code, out, err = run(capsys, *given)
        error = json.loads(out)["error"]
        assert code != 0 and error["code"] == code and error["command"].startswith("backplay")
        assert err == f"{error['command']}: {error['message']}\n" and error["type"]


def test_help(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0 and all(f"  {name} " in out for name in COMMANDS)
    for group in ([], ["bench"], ["sanity"], ["zoo"]):  # without a command, the help in its own lines
        code, out, err = run(capsys, *group)
        assert code == 2 and out == "" and err == run(capsys, *group, "--help")[1]
        code, out, err = run(capsys, *group, "--json")
        assert code == 2 and "Missing command" in json.loads(out)["error"]["message"] and err.count("\n") == 1
    for name in COMMANDS:
        code, out, err = run(capsys, name, "--help")
        assert code == 0 and "Usage: backplay" in out and err == "", name


@pytest.mark.parametrize("name", ["explain", "compare"])
def test_help_in_groups(capsys, name):
    """What is asked, what is written, and the parameters of the methods that the line names; an example ends it."""
    code, out, _ = run(capsys, name, "--method", "sg", "--help")
    parts = ("\nGeneral:\n  --model ", "\nOutput:\n", "\nParameters of sg:\n", "\n  Example: backplay ")
    places = [out.find(part) for part in parts]
    assert code == 0 and -1 not in places and places == sorted(places)
    assert places[1] < out.find("  -o, --out") < places[2] < out.find("  --softplus") < places[3]
    assert "--tau" not in out and out.count("--help") == 1
    assert "--target CLASS" in out[places[0] : places[1]] and "--json" in out[places[1] : places[2]]


def test_libraries_and_their_extras(capsys, monkeypatch):
    """`backplay models` names the extra that the error names."""
    monkeypatch.setattr(Source, "version", None)
    code, out, _ = run(capsys, "models")
    missing = [line.strip() for line in out.splitlines() if "is not installed" in line]
    assert code == 0 and missing == [
        "torchvision is not installed: pip install 'backplay[vision]'",
        "timm is not installed: pip install 'backplay[models]'",
        "transformers is not installed: pip install 'backplay[models]'",
    ]


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"backplay {bp.__version__}\n", "")
    for given in (["--version", "--json"], ["--json", "--version"]):
        code, out, _ = run(capsys, *given)
        assert code == 0 and json.loads(out) == {"version": bp.__version__}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys, shell):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0 and "_BACKPLAY_COMPLETE" in out
    code, out, _ = run(capsys, "completion", shell, "--json")
    assert code == 0 and json.loads(out)["shell"] == shell


@pytest.mark.parametrize(
    "typed, offered",
    [
        (["ex"], "explain"),
        (["explain", "--ta"], "--target"),
        (["explain", "--method", "rg,layer"], "rg,layercam"),
        (["explain", "--method", "rg-vit-l"], "rg-vit-localise"),
        (["inspect", "--model", "zo"], "zoo:"),
        (["inspect", "--model", "zoo:vg"], "zoo:vgg-spurious"),
        (["methods", "gradc"], "gradcam_pp"),
        (["completion", "z"], "zsh"),
    ],
)
def test_what_a_shell_is_offered(capsys, monkeypatch, typed, offered):
    monkeypatch.setenv("_BACKPLAY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["backplay", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    assert main([]) == 0
    assert f"plain,{offered}" in capsys.readouterr().out.splitlines()


def test_without_its_libraries(capsys, monkeypatch):
    """The core needs torch and numpy alone; the command says in a line what it lacks."""
    for name in [name for name in sys.modules if name.startswith("backplay.cli.")]:
        if name != "backplay.cli.output":
            monkeypatch.delitem(sys.modules, name)
    for missing in ("click", "rich.console"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            if missing != "click":
                patch.setitem(sys.modules, "rich", None)
            fails(capsys, "models", words=("pip install 'backplay[cli]'", missing.split(".")[0]), code=1)
            code, out, _ = run(capsys, "--json", "models")
            assert code == 1 and json.loads(out)["error"]["type"] == "MissingLibraryError"


def test_a_missing_benchmark_library_is_one_line(capsys, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["backplay", "bench"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "c.yaml").write_text("a: 1")
    fails(capsys, "bench", "run", tmp_path / "c.yaml", "--out", tmp_path / "r", words=("backplay[bench]",), code=1)


def test_every_command_is_a_click_command():
    for name in COMMANDS:
        found = importlib.import_module(f"backplay.cli.{name}").command
        assert isinstance(found, click.Command) and found.name == name


# ---------------------------------------------------------------- as a process


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_model_that_fails_is_one_line(networks, image, tmp_path):
    """torch logs twenty lines about what its exporter met, which are silenced."""
    options = ["--model", f"{networks}:wrong", "-o", tmp_path / "maps"]
    command = [sys.executable, "-m", "backplay", "explain", image, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Sequential itself fails on input (1, 3, 16, 16)" in done.stderr


@pytest.mark.slow
def test_a_reader_that_leaves(networks):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "backplay", "inspect", "--model", f"{networks}:small"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 141 and done.stderr == b""


@pytest.mark.slow
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
