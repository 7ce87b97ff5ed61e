"""What an installed backplay must do at least. It runs in the environment that is put to the test, far from this clone.

`python -I smoke.py plain VERSION` after `pip install backplay`: torch and numpy, and nothing else;
`python -I smoke.py extras` after `pip install backplay[cli,view,zoo]`.
"""

import importlib.metadata
import re
import sys
from collections.abc import Callable
from pathlib import Path

ALWAYS = {"pip", "setuptools"}  # what a new environment has


def plain(version: str) -> None:
    """Dependencies, version, and a map that autograd confirms; what needs an extra says which."""
    asked = {_name(r) for r in importlib.metadata.requires("backplay") or () if "extra ==" not in r}
    assert asked == {"torch", "numpy"}, f"asks for {asked}"
    installed = {_name(d.metadata["Name"]) for d in importlib.metadata.distributions()}
    more = installed - _with_dependencies({"torch", "numpy"}) - ALWAYS - {"backplay"}
    assert not more, f"these came along: {more}"

    import torch

    import backplay as bp

    assert Path(bp.__file__).is_relative_to(sys.prefix), f"imported from {bp.__file__}"
    assert (Path(bp.__file__).parent / "py.typed").is_file(), "type checkers would not read it"
    assert bp.__version__ == importlib.metadata.version("backplay") == version, bp.__version__
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    model, x = torch.nn.Sequential(*layers).double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, 3].sum(), x)
    torch.testing.assert_close(bp.StoppingGame(model).attribute(x.detach(), target=3), gradient)
    assert bp.RoutingGame(model, tau=0.5).play(x.detach(), target=3).health().ok
    for extra, ask in {"view": lambda: bp.view.grid, "zoo": lambda: _zoo("vgg")}.items():
        assert f"backplay[{extra}]" in _refusal(ask), f"without the extra {extra}: {_refusal(ask)}"
    print(f"plain: backplay {version} with torch {torch.__version__}; {len(installed)} packages in all")


def extras() -> None:
    """Every bundled network is there and sees what it was trained to see."""
    from backplay import zoo

    for name in ("vgg", "resnet", "vit"):
        for spurious in (False, True):
            batch = zoo.images(20, seed=1, spurious=spurious)
            right = (zoo.load(name, spurious=spurious)(batch.x).argmax(1) == batch.target).double().mean()
            assert right >= 0.8, f"{name}, spurious={spurious}: right about {right:.0%} of 20 pictures"
    assert zoo.load("text").tokenizer is not None
    print("extras: the bundled networks see")


def _refusal(ask: Callable[[], object]) -> str:
    """What the package says to a question that it cannot answer without an extra."""
    from backplay import BackplayError

    try:
        return f"no refusal, but {ask()!r}"
    except BackplayError as error:
        return str(error)


def _zoo(name: str) -> object:
    from backplay import zoo

    return zoo.load(name)


def _name(requirement: str) -> str:
    """`Typing_Extensions>=4.10; python_version…` as `typing-extensions`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _with_dependencies(names: set[str]) -> set[str]:
    """Some packages and everything that they may ask for, extras aside, as far as it is installed."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            try:
                asked = importlib.metadata.requires(name) or ()
            except importlib.metadata.PackageNotFoundError:
                continue  # of another system
            waiting += [_name(r) for r in asked if "extra ==" not in r]
    return found


if __name__ == "__main__":
    {"plain": plain, "extras": extras}[sys.argv[1]](*sys.argv[2:])
