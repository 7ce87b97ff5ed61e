"""The rooms of the package: an arrow of the import graph never points back, and no name means two things."""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "backplay"

# From the bottom to the top: a room imports rooms above its own line here, and those beside it only as RELATED says.
LEVELS = (
    ("errors",),
    ("entry", "keywords", "inputs", "progress", "pictured", "supported"),  # what everyone may use
    ("network",),
    ("values",),
    ("kernels",),
    ("trajectory",),
    ("games",),
    ("symmetry",),
    # around the core
    ("methods", "photographs"),
    ("interop", "zoo"),
    ("models",),
    ("circuits",),
    ("view",),
    ("text",),
    ("bench", "sanity"),
    ("app", "cli", "__main__"),
)
CORE = {room for level in LEVELS[:8] for room in level}
RELATED = {("sanity", "bench"), ("cli", "app"), ("__main__", "cli")}
LAZY = {("pictured", "view")}  # what draws itself imports its picture when it is asked for
TYPES = {("trajectory", "games")}  # a pass knows a `Play` by its type alone

# what files of one kind define by agreement: a command, a source of models; an outline is called as its class is
AGREED = {
    "cli": {"command", "describe", "explain"},
    "interop": {"explain"},
    "models": {"load", "names"},
    "zoo": {"load", "triangle"},
}


def modules():
    """Every module by its name without the package's: `games.play`, "" for the package itself."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix("__init__").removesuffix("."), path


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def room(module):
    return module.split(".")[0]


def for_types_alone(tree):
    """The nodes under `if TYPE_CHECKING`."""
    checks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    return {child for check in checks for child in ast.walk(check)}


def imported(node):
    """The modules of the package that a statement imports; the package itself is ""."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are written in full"
        names = []
        for alias in node.names:
            inside = ROOT.joinpath(*f"{node.module}.{alias.name}".split(".")[1:])
            is_module = inside.is_dir() or inside.with_suffix(".py").exists()
            names.append(f"{node.module}.{alias.name}" if is_module else node.module)
    else:
        return []
    return [n.removeprefix("backplay").removeprefix(".") for n in names if n.split(".")[0] == "backplay"]


def arrows():
    """(module, what it imports, whether for types alone), lazy imports too."""
    for module, path in modules():
        tree = parsed(path)
        typed = for_types_alone(tree)
        for node in ast.walk(tree):
            for target in imported(node):
                yield module, target, node in typed


def level(name):
    found = [k for k, rooms in enumerate(LEVELS) if name in rooms]
    assert found, f"the room {name!r} has no place: add it to LEVELS and to the table in CONTRIBUTING"
    return found[0]


def points_back(module, target, typed):
    here, there = room(module), room(target)
    if here == there or module == "" or (here, there) in RELATED | LAZY:
        return False
    if target == "":  # the whole package, as users import it
        return here in CORE
    if typed and (here, there) in TYPES:
        return False
    return level(there) >= level(here)


def test_no_arrow_points_back():
    found = {f"{module} imports {target}" for module, target, typed in arrows() if points_back(module, target, typed)}
    assert not found, "\n".join(sorted(found))


def test_what_counts_as_back():
    """The check itself."""
    assert points_back("kernels.kernel", "games.play", False) and points_back("network.graph", "values.forward", True)
    assert points_back("games.play", "", False) and points_back("zoo.scenes", "view.grid", False)
    assert not points_back("games.play", "trajectory.passes", False) and not points_back("cli.demo", "", False)
    assert points_back("trajectory.passes", "games.play", False)
    assert not points_back("trajectory.passes", "games.play", True)


def libraries(tree):
    """The libraries, by the name of their package, that a module imports as soon as it is imported itself."""
    for node in tree.body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name.split(".")[0] for name in names)


def test_the_core_needs_torch_and_numpy_alone():
    """Other libraries are imported where they are used, by a function that says what is missing."""
    allowed = {"backplay", "torch", "numpy"} | sys.stdlib_module_names
    core = [(module, path) for module, path in modules() if room(module) in CORE]
    found = {f"{module} imports {name}" for module, path in core for name in set(libraries(parsed(path))) - allowed}
    assert len(core) > 80 and not found, "\n".join(sorted(found))


LOADED = """
import json, sys
import torch, numpy
before = set(sys.modules)
import backplay
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_an_import_loads_the_core_and_the_methods_alone():
    """Beside modules of Python itself: nothing more of torch, no other library, no room that has not been entered.

    This is what makes an import quick; `benchmarks/imports.py` takes the time.
    """
    order = [sys.executable, "-c", LOADED]
    loaded = json.loads(subprocess.run(order, capture_output=True, text=True, check=True).stdout)
    own = {name.partition(".")[2] for name in loaded if name.split(".")[0] == "backplay"}
    others = {name for name in loaded if name.split(".")[0] not in {"backplay"} | sys.stdlib_module_names}
    assert "games.play" in own and not others, others
    assert {room(name) for name in own} - {""} <= CORE | {"methods", "circuits"}


def homes(rooms, functions):
    """The modules that define each class of some rooms, private ones too, and with `functions` each public function."""
    found = defaultdict(list)
    for module, path in modules():
        for node in parsed(path).body:
            public = functions and isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            agreed = node.name in AGREED.get(room(module), ()) if hasattr(node, "name") else False
            if room(module) in rooms and (public or isinstance(node, ast.ClassDef)) and not agreed:
                found[node.name.lstrip("_")].append(module)
    return found


def test_no_name_means_two_things():
    """In the core and in the methods, classes and public functions have one home each."""
    found = homes(CORE | {"methods", "interop", "photographs", "models"}, functions=True)
    assert not [f"{name} in {modules}" for name, modules in found.items() if len(modules) > 1]


def test_rooms_around_the_core_leave_its_names_alone():
    """No class around the core has the name of one in it."""
    core, around = homes(CORE, functions=False), homes({r for level in LEVELS[8:] for r in level}, functions=False)
    assert not [f"{name} in {core[name]} and {around[name]}" for name in core.keys() & around.keys()]
