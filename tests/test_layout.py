"""Where things lie: tests in the folder of what they test, and everything where CONTRIBUTING says."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "backplay"
OWN = {"fuzz", "helpers", "oracles"}  # folders that the package has not


def imported(text):
    """Names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{each.name}" for each in node.names)


def is_test(name):
    return any(part.startswith("test_") for part in name.split("."))


def test_no_test_imports_another():
    for path in HERE.rglob("*.py"):
        modules = [name.rpartition(".")[0] or name for name in imported(path.read_text(encoding="utf-8"))]
        assert not [m for m in modules if is_test(m)], path


def test_helpers_hold_no_tests():
    for path in (HERE / "helpers").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not is_test(path.stem) and not [n for n in tree.body if is_test(getattr(n, "name", ""))], path


def test_folders_are_those_of_the_package():
    """A folder of tests is a room of the package or one of its modules; and has nothing in it but tests."""
    for folder in (path for path in HERE.iterdir() if path.is_dir() and path.name not in {*OWN, "__pycache__"}):
        assert (PACKAGE / folder.name).is_dir() or (PACKAGE / f"{folder.name}.py").exists(), folder
        for path in folder.rglob("*.py"):
            assert is_test(path.stem) or path.stem == "conftest", f"{path} belongs to helpers"


def asks_for_names(text):
    """Lines that look for a part of a test's name, where a mark would say what is meant."""
    names = ("item.name", "node.name", "nodeid", "item.fspath", "item.path")
    return [line for line in text.splitlines() if any(name in line for name in names)]


def test_tests_are_chosen_by_marks():
    for path in HERE.rglob("conftest.py"):
        assert not asks_for_names(path.read_text(encoding="utf-8")), path


def guide():
    """CONTRIBUTING from its table of folders on: the names in the table, and all files and folders that it names."""
    text = (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where things are")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    rooms = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    return rooms, set(re.findall(r"`([a-z]\w*/[\w/]*(?:\.\w+)?)`", text.partition("## A release")[0]))


def test_the_table_of_folders_is_complete():
    """Every room and every module beside them stands in the table, and nothing else does."""
    found = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    found |= {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert guide()[0] == found


def test_what_the_guide_names_is_there():
    _, named = guide()
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).exists() or (HERE.parent / name).exists(), name


def test_faults_are_found():
    assert asks_for_names('if "full_size" in item.name:\n    lock()')
    found = list(imported("import games.test_lrp\ndef f():\n    from test_errors import net"))
    assert found == ["games.test_lrp", "test_errors.net"] and all(map(is_test, found))
