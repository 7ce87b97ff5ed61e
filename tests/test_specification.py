"""`docs/specification.md` and the code say the same: every rule that is cited is there, every name in it exists."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
UNBUILT = "not built yet"

_RULE = re.compile(r"^#{3,4} (S\d+[a-z]?)\. (.+)$", re.MULTILINE)
_CITED = re.compile(r"\bS(\d{1,2}[a-z]?)\b(?: ?[-–] ?S(\d{1,2}[a-z]?)\b)?")
_FUNCTION = re.compile(r"`(backplay(?:\.\w+)+)`")
_TEST = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)*)`")


def rules(page):
    """Title and text of each rule; a number that is defined twice is an error."""
    found = {}
    heads = list(_RULE.finditer(page))
    for head in heads:
        end = re.compile(r"^#", re.MULTILINE).search(page, head.end())
        assert head[1] not in found, f"{head[1]} is defined twice"
        found[head[1]] = (head[2], page[head.end() : end.start() if end else len(page)])
    return found


def cited(text):
    """Rules that a text names; `S12-S18` names all between, letters with their numbers at the ends alone."""
    found = set()
    for first, last in _CITED.findall(text):
        found.add(f"S{first}")
        if last:
            found.add(f"S{last}")
            start, stop = (int(re.match(r"\d+", n)[0]) for n in (first, last))
            found.update(f"S{n}" for n in range(start + 1, stop))
    return found


def citations(folder):
    """The files below a folder that cite each rule."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path != Path(__file__):
            for rule in cited(path.read_text(encoding="utf-8")):
                found.setdefault(rule, []).append(str(path.relative_to(ROOT)))
    return found


def missing_function(name):
    """Whether a dotted name leads to nothing."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for part in parts[k:]:
            if not hasattr(found, part):
                return True
            found = getattr(found, part)
        return False
    return True


@cache
def _tests_in(path):
    """Names of a test module, `Class::method` included; the module is read and not imported."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            found.update(f"{node.name}::{m.name}" for m in node.body if isinstance(m, ast.FunctionDef))
    return found


def missing_test(name):
    """Whether a test id has no file or no function."""
    path, _, inside = name.partition("::")
    return not (ROOT / path).is_file() or (inside != "" and inside not in _tests_in(ROOT / path))


def test_every_citation_has_its_rule():
    """A newcomer who reads a number in the source finds it."""
    known = rules(PAGE)
    for folder in ("src", "tests"):
        assert not {rule: files for rule, files in citations(folder).items() if rule not in known}


def test_every_rule_is_cited():
    """A rule that nothing speaks of is not built, and says so."""
    spoken_of = citations("src").keys() | citations("tests").keys()
    built = {rule for rule, (title, _) in rules(PAGE).items() if UNBUILT not in title}
    assert not built - spoken_of


def test_every_rule_names_its_code_and_its_tests():
    """What is built is built somewhere, and something checks it."""
    for rule, (title, text) in rules(PAGE).items():
        says, paper, _ = text.partition("\n- paper: ")
        assert len(title) < 60 < len(says), rule
        assert paper, rule
        if UNBUILT not in title:
            assert _FUNCTION.search(text.partition("\n- code: ")[2]), rule
            assert _TEST.search(text.partition("\n- tests: ")[2]), rule


def test_the_page_cites_only_itself():
    """Rules refer to each other by numbers that exist."""
    assert not cited(PAGE) - rules(PAGE).keys()


def test_functions_exist():
    """Each dotted name can be imported."""
    names = set(_FUNCTION.findall(PAGE))
    assert names
    assert not {n for n in names if missing_function(n)}


def test_tests_exist():
    """Each test id is a function of that file."""
    names = set(_TEST.findall(PAGE))
    assert names
    assert not {n for n in names if missing_test(n)}


def test_faults_are_found():
    """The checks above can fail."""
    assert cited("as in S3b, S12-S14 (S26b); RMS2, S123") == {"S3b", "S12", "S13", "S14", "S26b"}
    assert rules("### S1. One\ntext\n#### S1a. Two (not built yet)\nmore\n## End\n") == {
        "S1": ("One", "\ntext\n"),
        "S1a": ("Two (not built yet)", "\nmore\n"),
    }
    with pytest.raises(AssertionError, match="twice"):
        rules("### S1. One\n### S1. One\n")
    assert missing_function("backplay.games.routing.RoutingGame.absent")
    assert missing_function("backplay.absent.capture")
    assert not missing_function("backplay.network.reading.products.contract")
    assert missing_test("tests/test_absent.py::test_faults_are_found")
    assert missing_test("tests/test_specification.py::test_absent")
    assert not missing_test("tests/test_specification.py::test_faults_are_found")
