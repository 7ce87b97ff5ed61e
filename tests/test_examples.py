"""Examples of calls are calls: those of docstrings and of the README run, and its commands are understood."""

import ast
import doctest
import importlib
import re
import shlex
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from backplay import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "backplay"


def docstrings():
    """`file::name` and the examples of every docstring that has any; files are read and not imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                examples = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
                if examples:
                    file = path.relative_to(PACKAGE).as_posix()
                    yield pytest.param(file, examples, id=f"{file}::{getattr(node, 'name', '')}")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def network():
    """With the modules that docstrings speak of."""
    features = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)]
    names = {"features": nn.Sequential(*features), "flat": nn.Flatten(), "fc": nn.Linear(16, 5)}
    model = nn.Sequential()
    for name, module in names.items():
        model.add_module(name, module)
    return model.eval()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that examples name, as the working folder."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_weights(folder, text):
    """Random weights under every name of a file that a text gives to `load`."""
    import torchvision.models

    for name, file in re.findall(r'load\("torchvision:(\w+)", weights="([\w.-]+)"', text):
        torch.save(getattr(torchvision.models, name)().state_dict(), folder / file)


def run(examples, names):
    """Example by example; what one should print is compared where it says so."""
    for example in examples:
        try:
            result = eval(example.source, names)
        except SyntaxError:
            exec(example.source, names)
            continue
        if example.want:
            assert repr(result) + "\n" == example.want


@pytest.mark.parametrize("file, examples", list(docstrings()))
def test_docstrings(file, examples, here):
    """Under the names of their module, of the package, and of a small network with its game, inputs and plays."""
    save_weights(here, "".join(example.source for example in examples))
    model, (x, y) = network(), torch.randn(2, 1, 3, 8, 8)
    game = bp.RoutingGame(model)
    module = importlib.import_module(
        ".".join(["backplay", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
    )
    given = {"bp": bp, "model": model, "x": x, "y": y, "images": [x, y], "others": [y], "game": game}
    given |= {"rg": game, "sg": bp.StoppingGame(model), "other": game.replace(tau=0.5)}
    run(examples, {**vars(bp), **vars(module), **given, "play": game.play(x), "plays": [game.play(y)]})


class Two(nn.Module):
    """Of two inputs: `game.attribute((left, right))`, or an image and a depth that is held fixed."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(48, 6), nn.Linear(48, 6)

    def forward(self, left, right):
        return self.left(left.flatten(1)) + self.right(right.flatten(1)).relu()


class Words(nn.Module):
    """Of embeddings (B, T, 6) and a mask (B, T)."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, inputs_embeds, attention_mask):
        return self.head((inputs_embeds * attention_mask[..., None]).relu().mean(1))


class AnyGame:
    """A reader's own game: the README's snippets call it `game`, whatever inputs it takes."""

    def __init__(self, image):
        self.image, self.two, self.words = image, bp.RoutingGame(Two()), bp.RoutingGame(Words())

    def attribute(self, inputs, **keywords):
        several = isinstance(inputs, tuple) or "additional_forward_args" in keywords
        game = self.words if isinstance(inputs, dict) else self.two if several else self.image
        return game.attribute(inputs, **keywords)


def reader():
    """What a reader of the README has at hand behind its first snippet."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10)).eval()
    x = torch.randn(4, 3, 32, 32)
    left, right = torch.randn(2, 4, 3, 4, 4)
    names = {"torch": torch, "bp": bp, "model": model, "x": x, "logits": model(x).detach(), "MyNet": nn.Identity}
    names |= {"left": left, "right": right, "image": left, "depth": right, "game": AnyGame(bp.RoutingGame(model))}
    names |= {"e": torch.randn(2, 3, 6), "m": torch.ones(2, 3)}
    return names | {"segmenter": bp.StoppingGame(nn.Sequential(nn.Upsample((41, 53)), nn.Conv2d(3, 8, 1)))}


SNIPPETS = blocks(README, "python")
LONG = "smoothgrad"  # 80 gradients of a bundled network


@pytest.mark.parametrize("snippet", [pytest.param(s, marks=pytest.mark.slow if LONG in s else ()) for s in SNIPPETS])
def test_readme(snippet, here, capsys):
    """The first one brings its own names, and nothing else."""
    save_weights(here, snippet)
    names = {} if snippet == SNIPPETS[0] else reader()
    exec(snippet, names)
    if "factory" in names:
        model, settings = names["factory"]()
        assert isinstance(model, nn.Module) and settings


COMMANDS = [
    line.partition("#")[0].strip() for block in blocks(README, "sh") for line in block.splitlines() if line.strip()
]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("backplay ")])
def test_commands(command, monkeypatch):
    """Every option of a command is one that it has."""
    understood = []
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: understood.append(ctx.command_path))
    assert cli.main(shlex.split(command)[1:]) == 0
    assert understood[-1] == " ".join(command.split()[:2])


def test_extras_and_targets():
    """`pip install` names extras that there are; so do `make` and `python`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {e for found in re.findall(r"\.\[([\w,]+)\]", README) for e in found.split(",")}
    assert extras and extras <= project["optional-dependencies"].keys()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        named = set(re.findall(r"`make ([\w-]+)", page))
        assert named and named <= targets
        assert all((ROOT / file).is_file() for file in re.findall(r"`python (benchmarks/\w+\.py)`", page))


def test_faults_are_found():
    """An example that fails, or that says another result than it has, fails here too."""
    parse = doctest.DocTestParser().get_examples
    run(parse(">>> a = 1\n>>> a + 1\n2\n"), {})
    with pytest.raises(AssertionError):
        run(parse(">>> 1 + 1\n3\n"), {})
    with pytest.raises(NameError):
        run(parse(">>> absent\n"), {})
    assert blocks("```sh\nls\n```\n```python\n1\n```\n", "python") == ["1\n"]
