"""docs/theory.md: every label of the paper, the code that carries it out and the tests that check it.

    python docs/make_theory.py

writes the page anew. `labels.txt` lists the labels in the order of the paper. Where they are carried out and checked
is read from the source: a label counts for the function or class whose docstring, comment or text names it. What only a
person can say stands in `theory.toml`, one line for each label:

- `says`: what it says, in a few words
- `see`: another label that holds the same, or whose statement it is a part of; that one's code and tests stand for it
- `because`: why there is no code or no test
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "theory.md"

KINDS = {
    "def": "Definitions",
    "thm": "Theorems",
    "prop": "Propositions",
    "lem": "Lemmas",
    "rem": "Remarks",
    "alg": "Algorithms",
    "eq": "Equations",
    "tab": "Tables",
    "fig": "Figures",
    "sec": "Sections",
    "app": "Sections of the appendix",
}
HEADINGS = "sec", "app"
MEASURED = "tab", "fig"  # code and tests may know of them, and still not have measured the same
_LABEL = re.compile(rf"(?<![\w-])(?:{'|'.join(KINDS)}):[A-Za-z][\w-]*")
_RULE = re.compile(r"^#{3,4} (S\d+[a-z]?)\. ")
_SHOWN = 3  # names in a cell; the others are counted

# made-up labels stand here, to see whether they are found out
_UNREAD = ROOT / "tests" / "test_theory.py"


@dataclass
class Entry:
    """One label: what is kept by hand, and where it is cited."""

    label: str
    says: str = ""
    see: str = ""
    because: str = ""
    code: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)  # of docs/specification.md
    below: list[str] = field(default_factory=list)  # of a heading: the labels up to the next one

    @property
    def kind(self) -> str:
        return self.label.partition(":")[0]

    @property
    def cited(self) -> bool:
        return bool(self.code and self.tests)


# ---------------------------------------------------------------- where labels are cited


def owners(text: str) -> dict[int, str]:
    """The line numbers of a Python file, each with the function, method, class or constant that it belongs to.

    Lines of a function inside another belong to the outer one; lines of none are left out.
    """
    found: dict[int, str] = {}

    def claim(node: ast.stmt, name: str) -> None:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        for line in range(first, (node.end_lineno or node.lineno) + 1):
            found[line] = name

    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                claim(node, node.name)
                for inner in node.body if isinstance(node, ast.ClassDef) else []:
                    if isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
                        claim(inner, f"{node.name}.{inner.name}")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                claim(node, name)
            case _:
                pass
    return found


def citations(text: str) -> list[tuple[str, str]]:
    """Each label in a Python file with its owner, the empty string for the file itself."""
    owner = owners(text)
    return [
        (label, owner.get(number, ""))
        for number, line in enumerate(text.splitlines(), 1)
        for label in _LABEL.findall(line)
    ]


def code_citations() -> dict[str, list[str]]:
    """By label: dotted names of the package, configs and benchmarks."""
    found: dict[str, list[str]] = {}
    package = ROOT / "src" / "backplay"
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for label, owner in citations(path.read_text(encoding="utf-8")):
            found.setdefault(label, []).append(f"{module}.{owner}" if owner else module)
    for folder, pattern in (("configs", "*.yaml"), ("benchmarks", "*.py")):
        for path in sorted((ROOT / folder).glob(pattern)):
            for label in _LABEL.findall(path.read_text(encoding="utf-8")):
                found.setdefault(label, []).append(f"{folder}/{path.name}")
    return found


def test_citations() -> dict[str, list[str]]:
    """By label: ids of tests, and files whose first words name it. Oracles and helpers are no tests."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path == _UNREAD:
            continue
        name = path.relative_to(ROOT / "tests").as_posix()
        for label, owner in citations(path.read_text(encoding="utf-8")):
            parts = owner.split(".")
            if parts[-1].startswith("test_") or parts[0].startswith("Test"):
                found.setdefault(label, []).append("::".join([name, *parts]))
            elif owner == "" or owner.isupper():  # first words, or a constant that holds what the paper prints
                found.setdefault(label, []).append(name)
    return found


def rule_citations() -> dict[str, list[str]]:
    """By label: the rules of the specification that name it as their source."""
    found: dict[str, list[str]] = {}
    rule, listing = "", False
    for line in (ROOT / "docs" / "specification.md").read_text(encoding="utf-8").splitlines():
        if head := _RULE.match(line):
            rule = head[1]
        listing = line.startswith("- paper:") or (listing and line.startswith("  "))
        for label in _LABEL.findall(line) if listing else []:
            found.setdefault(label, []).append(rule)
    return found


def cited_anywhere() -> dict[str, list[str]]:
    """By label: every file of the repository that names it, oracles, configs and pages included."""
    found: dict[str, list[str]] = {}
    for folder, ending in (("src", "py"), ("tests", "py"), ("benchmarks", "py"), ("configs", "yaml"), ("docs", "md")):
        for path in sorted((ROOT / folder).rglob(f"*.{ending}")):
            if path not in (_UNREAD, PAGE):
                for label in _LABEL.findall(path.read_text(encoding="utf-8")):
                    found.setdefault(label, []).append(path.relative_to(ROOT).as_posix())
    return found


# ---------------------------------------------------------------- the entries and what is missing in them


def labels() -> list[str]:
    """All labels, in the order of the paper."""
    return (ROOT / "docs" / "labels.txt").read_text(encoding="utf-8").split()


def entries() -> dict[str, Entry]:
    """Every label with all that is known of it."""
    kept = tomllib.loads((ROOT / "docs" / "theory.toml").read_text(encoding="utf-8"))
    code, tests, rules = code_citations(), test_citations(), rule_citations()
    found: dict[str, Entry] = {}
    heading: Entry | None = None
    for label in labels():
        entry = Entry(label, **kept.get(label, {}))
        entry.code, entry.tests, entry.rules = (_ordered(c.get(label, [])) for c in (code, tests, rules))
        found[label] = entry
        if entry.kind in HEADINGS:
            heading = entry
        elif heading is not None:
            heading.below.append(label)
    return found


def _ordered(names: list[str]) -> list[str]:
    """Once each; what is a part of a file before whole files."""
    return sorted(set(names), key=lambda n: (n.endswith(".py") or (n.islower() and "::" not in n), n))


def faults(found: dict[str, Entry]) -> list[str]:
    """What is missing, contradicts itself or has been overtaken, one line each."""
    lines: list[str] = []
    for label, entry in found.items():
        if not entry.says:
            lines.append(f"{label}: theory.toml does not say what it says")
        if entry.see and entry.because:
            lines.append(f"{label}: either `see` or `because`, not both")
        if entry.cited and (entry.see or entry.because) and entry.kind not in (*MEASURED, *HEADINGS):
            lines.append(f"{label}: code and tests name it: the explanation in theory.toml is not needed any more")
        if entry.see and not _stands(entry.see, found):
            lines.append(f"{label}: `see` leads to {entry.see}, which has no code and tests of its own")
        if not entry.cited and not entry.see and not entry.because and not entry.below:
            lacking = " and ".join(n for n, c in (("code", entry.code), ("tests", entry.tests)) if not c)
            lines.append(f"{label}: no {lacking} names it, and theory.toml does not say why")
    return lines


def _stands(label: str, found: dict[str, Entry]) -> bool:
    return label in found and found[label].cited


# ---------------------------------------------------------------- the page


def page(found: dict[str, Entry]) -> str:
    """The whole of docs/theory.md."""
    theory = [e for e in found.values() if e.kind not in (*HEADINGS, *MEASURED)]
    lines = [
        "# From the paper to the code",
        "",
        "<!-- written by docs/make_theory.py: change theory.toml or the source, and run it -->",
        "",
        "Every label of the paper, what it says, the code that carries it out and tests that check it. Names of code",
        "stand in `backplay`, names of tests in `tests/`; S-numbers are rules of the",
        "[specification](specification.md). A citation in a docstring, a comment or a test is what counts. Where there",
        "is none, the last column says why: *see* leads to a label that holds the same or whose statement this one is",
        "a part of. `python docs/make_theory.py` writes this page, and `tests/test_theory.py` fails where it is out of",
        "date or has an empty cell that nothing explains.",
        "",
        _counted(theory),
    ]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", "| label | what it says | code | tests | status |", "|---|---|---|---|---|"]
        lines += [_row(e) for e in found.values() if e.kind == kind]
    return "\n".join(lines) + "\n"


def _counted(theory: list[Entry]) -> str:
    own, parts, reasons = (sum(bool(getattr(e, kind)) for e in theory) for kind in ("cited", "see", "because"))
    return (
        f"Of {len(theory)} definitions, statements and equations, {own} are named by code and tests of their own,\n"
        f"{parts} are parts or repetitions of those, and of {reasons} the last column says why not."
    )


def _row(entry: Entry) -> str:
    says = f"{entry.says} ({', '.join(entry.rules)})" if entry.rules else entry.says
    cells = (f"`{entry.label}`", says, _names(entry.code), _names(entry.tests), _status(entry))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{n}`" for n in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "–"


def _status(entry: Entry) -> str:
    if entry.cited and (entry.kind not in MEASURED or not entry.because):
        return "tested"
    if entry.see:
        return f"see `{entry.see}`"
    if entry.because:
        return entry.because
    return f"heading of {len(entry.below)} labels, from `{entry.below[0]}` on"


if __name__ == "__main__":
    known = entries()
    if wrong := faults(known):
        raise SystemExit("\n".join(wrong))
    PAGE.write_text(page(known), encoding="utf-8")
