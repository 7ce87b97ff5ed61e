"""Where tests lie: what several of them need is in `helpers`, and every file can be read alone."""

import ast
from pathlib import Path

HERE = Path(__file__).parent


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


def test_faults_are_found():
    found = list(imported("import games.test_lrp\ndef f():\n    from test_errors import net"))
    assert found == ["games.test_lrp", "test_errors.net"] and all(map(is_test, found))
