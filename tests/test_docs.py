"""The pages of docs: links lead somewhere, quoted messages are the package's, tables come from the source."""

import ast
import importlib
import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import backplay as bp

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_generated" not in path.parts)


def load(name):
    """A script of docs/ as a module; docs are no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check_pages, fields, make_scaling, make_tables = map(load, ("check_pages", "fields", "make_scaling", "make_tables"))


def text_of(path):
    return path.read_text(encoding="utf-8")


# conf.py leaves them out of the contents where they are not there
MAYBE = ast.literal_eval(re.search(r"^MAYBE = (\(.*?\))$", text_of(DOCS / "conf.py"), re.MULTILINE)[1])


# ---------------------------------------------------------------- links

_LINK = re.compile(r"(?<!`)!?\[[^\]\n]*\]\(([^)\s]+)\)")
_ROLE = re.compile(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`")
_DIRECTIVE = re.compile(r"^[:`]{3,}\{(?:image|include|literalinclude|figure)\} (\S+)$", re.MULTILINE)
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors of a page's headings, as MyST and GitHub make them."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#{1,4} (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def contents(text):
    """What the tables of contents of a page name."""
    inside = "\n".join(_TOCTREE.findall(text))
    return [line.strip() for line in inside.splitlines() if line.strip() and not line.startswith(":")]


def broken(path, text):
    """The links of a page that lead nowhere; what the build makes (`_generated`) is checked there."""
    for address in [*_LINK.findall(text), *_DIRECTIVE.findall(text)]:
        file, _, anchor = address.partition("#")
        if re.match(r"[a-z]+:", address) or "_generated/" in address:
            continue
        target = path.parent / file if file else path
        if not target.is_file() or (anchor and anchor not in anchors(text_of(target))):
            yield address
    for name in [*_ROLE.findall(text), *(n for n in contents(text) if n not in MAYBE)]:
        if not (path.parent / f"{name}.md").is_file():
            yield name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_links(path):
    assert not list(broken(path, text_of(path)))


def test_every_page_is_in_the_contents():
    """One can come to every page from the first one."""
    reached, waiting = set(), ["index"]
    while waiting:
        page = waiting.pop()
        file = DOCS / f"{page}.md"
        if page in reached or (page in MAYBE and not file.is_file()):
            continue
        reached.add(page)
        for name in contents(text_of(file)):
            waiting.append((file.parent / name).resolve().relative_to(DOCS.resolve()).as_posix())
    assert {p.relative_to(DOCS).with_suffix("").as_posix() for p in PAGES} == reached


def test_generated_pictures_have_a_command():
    """What pages show from `_generated` is drawn by make_pictures.py or by make_scaling.py."""
    shown = {name for path in PAGES for name in re.findall(r"_generated/([\w-]+)\.png", text_of(path))}
    drawn = set(re.findall(r"^def (\w+)\(\) -> Figure:", text_of(DOCS / "make_pictures.py"), re.MULTILINE))
    assert shown and shown <= drawn
    makers = [*DOCS.glob("make_*.py"), DOCS.parent / "benchmarks" / "explorer.py"]
    scripts = "".join(text_of(path) for path in makers)
    assert all(path.name in scripts for path in (DOCS / "images").glob("*.png"))


def test_notebooks():
    """Four, which the build runs; every cell is Python that can be read."""
    books = [path for path in PAGES if path.parent.name == "notebooks" and path.stem != "index"]
    assert len(books) == 4
    for path in books:
        text = text_of(path)
        cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert text.startswith("---\nfile_format: mystnb\n") and len(cells) >= 5, path
        assert all(ast.parse(cell).body for cell in cells)
    settings = text_of(DOCS / "conf.py")
    assert 'nb_execution_mode = "force"' in settings and "nb_execution_raise_on_error = True" in settings


# ---------------------------------------------------------------- messages


@cache
def templates():
    """Every text of the package, with … where something is put in."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return [" ".join(text.split()) for text in found]


def is_said(message):
    """Whether the parts of a message between its … stand in one text of the package, in their order."""
    parts = [part.strip() for part in message.split("…") if part.strip(" ,:")]
    return bool(parts) and any(
        re.search(".*".join(map(re.escape, parts)), text) for text in templates() if parts[0] in text
    )


@pytest.mark.slow
def test_messages():
    """Each message that the page on troubles quotes is still one of the package's."""
    quoted = re.findall(r"^`(.+)`\n: ", text_of(DOCS / "troubleshooting.md"), re.MULTILINE)
    assert len(quoted) > 30
    assert not [message for message in quoted if not is_said(message)]
    assert is_said("alpha - beta = …, not 1: the map does not conserve the logit.")
    assert not is_said("alpha - beta = …, not 2") and not is_said("…")


# ---------------------------------------------------------------- what is read off the source


def test_api_names_every_public_call():
    """What `__all__` lists stands in the pages of the API, and their directives name what exists."""
    shown = {id(found) for path in (DOCS / "api").glob("*.md") for found in documented(text_of(path))}
    for module in ("backplay", *(f"backplay.{m}" for m in ("text", "view", "zoo", "sanity", "models", "bench"))):
        public = importlib.import_module(module)
        for name in public.__all__:
            found = getattr(public, name)
            assert not callable(found) or id(found) in shown, f"{module}.{name} is in no page of docs/api"
    assert {id(bp.bounds), id(bp.lrp), id(bp.transforms)} <= shown


def documented(text):
    """The objects that the directives of a page name, with those that a module's directive brings along."""
    for name, members in re.findall(r"^\.\. auto\w+:: ([\w.]+)(?:\n +:members:([^\n]*))?", text, re.MULTILINE):
        found = resolved(name)
        yield found
        if isinstance(found, type(bp)):
            listed = members.replace(",", " ").split() or getattr(found, "__all__", [])
            yield from (getattr(found, each) for each in listed)


def resolved(name):
    """What a dotted name means, as Python reads it; a module only where there is no attribute of that name."""
    owner, _, last = name.rpartition(".")
    try:
        return getattr(resolved(owner), last) if owner else importlib.import_module(name)
    except AttributeError:
        return importlib.import_module(name)


def test_tables(tmp_path):
    """A row for each keyword, preset and method."""
    make_tables.write(tmp_path)
    routing = text_of(tmp_path / "keywords-routing.md")
    assert all(f"| `{name}` |" in routing for name in bp.RoutingGame.modes_type.accepts())
    assert "| `tau` | `1.0` | number > 0 | temperature of the policies |" in routing
    assert all(f"| `{name}` |" in text_of(tmp_path / "presets.md") for name in bp.presets)
    methods = text_of(tmp_path / "methods.md")
    assert all(f"| `{name}` |" in methods for name in bp.methods())
    assert {line.count("|") - line.count("\\|") for line in methods.splitlines()} == {6}


def test_scaling_prints_what_was_measured():
    """A figure of the page is one of the results, and changes with them."""
    held = json.loads(text_of(make_scaling.RESULTS))
    page = "\n".join(make_scaling.page(held["machine"], held["cases"]))
    grown = [c for c in held["cases"] if c["section"] == "growth" and c["axis"] == "batch"]
    stopping = [next(r for r in c["rows"] if r["what"] == "Stopping map")["ratio"] for c in grown]
    assert f"Stopping map {min(stopping):.2f} to {max(stopping):.2f}" in page
    next(r for r in grown[0]["rows"] if r["what"] == "Stopping map")["ratio"] = 77.123
    assert "to 77.12" in "\n".join(make_scaling.page(held["machine"], held["cases"]))


def test_fields_of_dataclasses():
    source = "class A:\n    # a pair\n    # of numbers\n    x: tuple  \n    y: int = 3  # (B,) how many\n    z: str\n"
    assert fields.comments(source) == {"x": "a pair of numbers", "y": "(B,) how many", "z": ""}
    lines = ["What it is."]
    fields.add(None, "class", "Batch", bp.methods.__globals__["MethodInfo"], None, lines)
    assert "- `title`: as the paper's tables write it" in lines


# ---------------------------------------------------------------- built pages


def test_built_pages():
    """Where pages have been built, nothing in them is asked for from elsewhere and every link holds."""
    built = ROOT / "out" / "docs"
    if not (built / "index.html").is_file():
        pytest.skip("no pages are built: make docs")
    assert not list(check_pages.faults(built))


GOOD = '<html><a href="b.html#here">b</a><a href="https://example.org">x</a><img src="p.png"></html>'


@pytest.mark.parametrize(
    "text, fault",
    [
        (GOOD, None),
        ('<script src="https://cdn.example.org/a.js"></script>', "asks for https://cdn.example.org/a.js"),
        ('<script src="//cdn.example.org/a.js"></script>', "asks for //cdn.example.org/a.js"),
        ('<link rel="stylesheet" href="https://fonts.example.org/f.css">', "asks for https://fonts.example.org/f.css"),
        ("<style>@import 'https://f.example.org/x.css';</style>", "asks for https://f.example.org/x.css"),
        ('<p style="background: url(http://e.example.org/i.png)">', "asks for http://e.example.org/i.png"),
        ('<img src="absent.png">', "shows absent.png, which is not there"),
        ('<a href="absent.html">', "links to absent.html, which is not there"),
        ('<a href="b.html#nowhere">', "links to b.html#nowhere: no such anchor"),
        ('<a href="#nowhere">', "links to #nowhere: no such anchor"),
    ],
)
def test_faults_of_pages_are_found(tmp_path, text, fault):
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text(text)
    assert list(check_pages.faults(tmp_path)) == ([] if fault is None else [f"a.html {fault}"])


def test_faults_of_style_sheets_are_found(tmp_path):
    (tmp_path / "a.html").write_text("")
    (tmp_path / "a.css").write_text("@font-face { src: url('https://fonts.example.org/f.woff2'); }")
    assert list(check_pages.faults(tmp_path)) == ["a.css asks for https://fonts.example.org/f.woff2"]
    assert list(check_pages.faults(tmp_path / "absent")) == [f"{(tmp_path / 'absent').resolve()} holds no pages"]


def test_broken_links_are_found():
    page = DOCS / "text.md"
    assert list(broken(page, "[a](absent.md) [b](layers.md#no) {doc}`guide/absent`")) == [
        "absent.md",
        "layers.md#no",
        "guide/absent",
    ]
    assert not list(broken(page, "[a](layers.md#modes-by-layer) [c](https://example.org)"))
