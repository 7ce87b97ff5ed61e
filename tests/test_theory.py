"""`docs/theory.md` and the source say the same: every label of the paper has code and tests, or a reason."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load():
    """docs/make_theory.py as a module; docs are no package."""
    spec = importlib.util.spec_from_file_location("make_theory", ROOT / "docs" / "make_theory.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


theory = load()


@pytest.fixture(scope="module")
def entries():
    return theory.entries()


def test_no_label_is_left_without_a_word(entries):
    """Each is named by code and by tests, or theory.toml says why not; nothing there is out of date."""
    assert theory.faults(entries) == []


def test_the_page_is_up_to_date(entries):
    """After a change of citations or of theory.toml: python docs/make_theory.py."""
    assert theory.PAGE.read_text(encoding="utf-8") == theory.page(entries), "run python docs/make_theory.py"


def test_every_citation_is_a_label(entries):
    """Source, tests, configs and pages name no label that the paper does not have."""
    assert not {label: files for label, files in theory.cited_anywhere().items() if label not in entries}


def test_what_is_kept_by_hand_is_of_use(entries):
    """theory.toml speaks of labels alone, and of each one."""
    text = (ROOT / "docs" / "theory.toml").read_text(encoding="utf-8")
    assert re.findall(r'^"(.+?)" = ', text, re.MULTILINE) == list(entries), "the order is that of labels.txt"


def test_the_list_is_the_papers():
    """Where the paper lies beside the repository, its labels are those of the list, in its order."""
    papers = [parent / "shared" / "paper.tex" for parent in ROOT.parents]
    found = next((p for p in papers if p.is_file()), None)
    if found is None:
        pytest.skip("the paper is not here")
    assert re.findall(r"\\label\{([^}]+)\}", found.read_text(encoding="utf-8")) == theory.labels()


SOURCE = '''"""A module (thm:a)."""

TABLE = {
    "x": 1,  # tab:b
}


def outer():
    """Does it (eq:c,
    eq:d-e)."""

    def inner():
        return 0  # lem:f

    return inner


@decorated  # rem:g
class Thing:
    """Of several (eq:h; S12)."""

    def method(self):
        """Neither eq: nor xeq:j nor eq:."""


if True:
    pass  # alg:k
'''


def test_citations_are_found_with_their_owners():
    assert theory.citations(SOURCE) == [
        ("thm:a", ""),
        ("tab:b", "TABLE"),
        ("eq:c", "outer"),
        ("eq:d-e", "outer"),
        ("lem:f", "outer"),
        ("rem:g", "Thing"),
        ("eq:h", "Thing"),
        ("alg:k", ""),
    ]


def entry(label, **known):
    return theory.Entry(label, **{"says": "something", **known})


BOTH = {"code": ["games.x"], "tests": ["test_x.py::test_y"]}


@pytest.mark.parametrize(
    "found, said",
    [
        (entry("eq:a", code=["games.x"]), "no tests names it"),
        (entry("eq:a", tests=["test_x.py"]), "no code names it"),
        (entry("eq:a"), "no code and tests names it"),
        (entry("eq:a", says="", **BOTH), "does not say what it says"),
        (entry("eq:a", because="prose", **BOTH), "not needed any more"),
        (entry("eq:a", see="eq:b", **BOTH), "not needed any more"),
        (entry("eq:a", see="eq:c"), "eq:c, which has no code"),
        (entry("eq:a", see="eq:b", because="prose"), "not both"),
        (entry("sec:a"), "no code and tests names it"),
    ],
)
def test_faults_are_found(found, said):
    others = {"eq:b": entry("eq:b", **BOTH), "eq:c": entry("eq:c", because="prose")}
    (line,) = theory.faults({found.label: found, **others})
    assert said in line and line.startswith(found.label)


@pytest.mark.parametrize(
    "found, status",
    [
        (entry("eq:a", **BOTH), "tested"),
        (entry("eq:a", see="eq:b"), "see `eq:b`"),
        (entry("eq:a", because="prose"), "prose"),
        (entry("tab:a", because="on the zoo", **BOTH), "on the zoo"),
        (entry("sec:a", below=["eq:b", "eq:c"]), "heading of 2 labels, from `eq:b` on"),
    ],
)
def test_every_row_has_a_status(found, status):
    assert theory.faults({found.label: found, "eq:b": entry("eq:b", **BOTH)}) == []
    assert theory.page({found.label: found}).splitlines().count(theory._row(found)) == 1
    assert theory._row(found).endswith(f"| {status} |")
