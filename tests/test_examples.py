"""Examples of calls are calls: those of docstrings, the README and its pages run, and commands are understood."""

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
    """A reader's own game: the snippets of pages call it `game`, whatever inputs it takes."""

    def __init__(self, image):
        self.image, self.two, self.words = image, bp.RoutingGame(Two()), bp.RoutingGame(Words())

    def attribute(self, inputs, **keywords):
        several = isinstance(inputs, tuple) or "additional_forward_args" in keywords
        game = self.words if isinstance(inputs, dict) else self.two if several else self.image
        return game.attribute(inputs, **keywords)


def reader():
    """What a reader has at hand behind the README's first snippet."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10)).eval()
    x = torch.randn(4, 3, 32, 32)
    left, right = torch.randn(2, 4, 3, 4, 4)
    names = {"torch": torch, "bp": bp, "model": model, "x": x, "logits": model(x).detach(), "MyNet": nn.Identity}
    names |= {"left": left, "right": right, "image": left, "depth": right, "game": AnyGame(bp.RoutingGame(model))}
    names |= {"e": torch.randn(2, 3, 6), "m": torch.ones(2, 3)}
    return names | {"segmenter": bp.StoppingGame(nn.Sequential(nn.Upsample((41, 53)), nn.Conv2d(3, 8, 1)))}


PAGES = {"README.md": README} | {
    f"docs/{name}.md": (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("games", "inputs", "questions", "rivals", "models", "errors-and-health")
}
FIRST = blocks(README, "python")[0]
LONG = "smoothgrad"  # 80 gradients of a bundled network


def snippets():
    for name, page in PAGES.items():
        for k, snippet in enumerate(blocks(page, "python")):
            yield pytest.param(snippet, marks=pytest.mark.slow if LONG in snippet else (), id=f"{name}-{k}")


@pytest.mark.parametrize("snippet", list(snippets()))
def test_pages(snippet, here, capsys):
    """The README's first one brings its own names, and nothing else; its second goes on from there."""
    save_weights(here, snippet)
    names = {} if snippet in blocks(README, "python") else reader()
    if snippet != FIRST and not names:
        exec(FIRST, names)
    exec(snippet, names)
    if "factory" in names:
        model, settings = names["factory"]()
        assert isinstance(model, nn.Module) and settings


# ---------------------------------------------------------------- pages of docs/

DOCS = ROOT / "docs"
# by tests that look at results too
TESTED_ELSEWHERE = {"text.md", "inside.md", "layers.md"}
# with the names of a reader of the README
OF_A_READER = {"games.md", "inputs.md", "questions.md", "rivals.md", "models.md", "errors-and-health.md"}
# which read the folder of a run, or go on from names of one's own
NEED_A_RUN = {"benchmark.md", "sanity.md"}
SLOW = {
    "clusters.md",
    "guide/coming-from.md",
    "guide/images.md",
    "guide/neuron.md",
    "guide/randomise.md",
    "guide/spurious.md",
    "pictures.md",
}


def pages():
    """Every page with snippets, by its path; notebooks are run by `make docs`."""
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).as_posix()
        if name in TESTED_ELSEWHERE | OF_A_READER | NEED_A_RUN or {"notebooks", "_generated"} & set(path.parts):
            continue
        snippets = blocks(path.read_text(encoding="utf-8"), "python")
        if snippets:
            yield pytest.param(name, snippets, marks=pytest.mark.slow if name in SLOW else (), id=name)


def put_files(folder):
    """What pages name: a file with a network, and a folder that `save_pretrained` wrote."""
    body = "nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(576, 10))"
    (folder / "mynet.py").write_text(f"from torch import nn\ndef factory():\n    return {body}, {{'size': 96}}\n")
    from backplay.interop.torchvision import ensure

    ensure()
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=3))
    model.save_pretrained(folder / "models" / "vit")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder / "models" / "vit")


@pytest.mark.parametrize("page, snippets", list(pages()))
def test_guide(page, snippets, here, monkeypatch, capsys):
    """Each snippet goes on where the one before it ended; the first brings its own names.

    What pages add to the tables of operators and methods stays on copies of them.
    """
    from backplay.methods import registry
    from backplay.network import operators

    monkeypatch.setattr(operators, "OPERATORS", dict(operators.OPERATORS))
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    if "hf:" in "".join(snippets):
        put_files(here)
    names = {"__name__": "page"}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{page}, snippet {number}", "exec", dont_inherit=True), names)


def test_no_page_is_left_out():
    """Pages that are not run are those that say why, and the guide is among those that are."""
    run_here = {param.id for param in pages()}
    assert {"index.md", "quickstart.md", "limits.md", "guide/compare.md", "guide/add-kernel.md"} <= run_here
    assert all((DOCS / name).is_file() for name in TESTED_ELSEWHERE | NEED_A_RUN | SLOW)


def commands(text):
    """The command lines of a page; a comment behind one is left out."""
    lines = [line.partition(" #")[0].strip() for block in blocks(text, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("backplay ")]


TEXTS = [README, *(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))]
COMMANDS = list(dict.fromkeys(command for text in TEXTS for command in commands(text)))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, monkeypatch):
    """Every option of a command is one that it has."""
    understood = []
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: understood.append(ctx.command_path))
    assert cli.main(shlex.split(command)[1:]) == 0
    called = understood[-1].split()
    assert len(called) > 1 and command.split()[: len(called)] == called


def test_extras_and_targets():
    """`pip install` names extras that there are; so do `make` and `python`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {e for found in re.findall(r"\.\[([\w,]+)\]", README) for e in found.split(",")}
    assert extras and extras <= project["optional-dependencies"].keys()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        named = set(re.findall(r"`make ([\w-]+)", page))
        assert named and named <= targets
        assert all((ROOT / file).is_file() for file in re.findall(r"`python ((?:benchmarks|docs)/\w+\.py)", page))


def test_faults_are_found():
    """An example that fails, or that says another result than it has, fails here too."""
    parse = doctest.DocTestParser().get_examples
    run(parse(">>> a = 1\n>>> a + 1\n2\n"), {})
    with pytest.raises(AssertionError):
        run(parse(">>> 1 + 1\n3\n"), {})
    with pytest.raises(NameError):
        run(parse(">>> absent\n"), {})
    assert blocks("```sh\nls\n```\n```python\n1\n```\n", "python") == ["1\n"]
