"""The README: its tables are those of the results, its picture is small, its links lead somewhere."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def module(path):
    """A script of the clone, imported without being run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def make_readme():
    return module(ROOT / "docs" / "make_readme.py")


@pytest.fixture
def peers_table():
    return module(ROOT / "benchmarks" / "peers_table.py")


def test_tables_are_up_to_date(make_readme):
    """`python docs/make_readme.py` after new results."""
    assert make_readme.written(README) == README, "run: python docs/make_readme.py"


def test_ratios_are_those_of_the_results(make_readme, tmp_path, monkeypatch):
    """A cell follows its figure; what does not run is a dash."""
    kept = json.loads((make_readme.RESULTS / "results.json").read_text(encoding="utf-8"))
    case = next(c for c in kept["cases"] if c["key"] == "games: ResNet-50, batch 1")
    next(row for row in case["rows"] if row["what"] == "Stopping map")["ratio"] = 77.77
    case["rows"] = [row for row in case["rows"] if row["what"] != "Routing anchor"]
    (tmp_path / "results.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(make_readme, "RESULTS", tmp_path)
    stopping, routing = make_readme.speed().splitlines()[2:4]
    assert [cell.strip() for cell in stopping.split("|")][3] == "77.8"
    assert [cell.strip() for cell in routing.split("|")][3] == "–"


def test_a_table_of_answers(peers_table):
    kept = {"one": {"version": "1.0", "answers": {"plain": {"holds": True, "said": ""}}}}
    kept["other"] = {"version": "2", "answers": {"plain": {"holds": False, "said": "refused"}}}
    head, _, first, second, *_ = peers_table.table(kept).splitlines()
    assert head == "|  | one 1.0 | other 2 |"
    assert first.endswith("| yes | no: refused |") and second.endswith("| – | – |")


@pytest.mark.slow
@pytest.mark.parametrize("library", ["backplay", "captum", "zennit", "LXT", "grad-cam", "Quantus"])
def test_answers_of_the_peers(peers_table, library):
    """What the table says is what the installed libraries do now; numbers may differ between processors."""
    kept, found = peers_table.read()[library], peers_table.ask(library)
    if found is None and library in ("LXT", "grad-cam"):  # no extra brings these
        pytest.skip(f"{library} cannot be imported here; its answers were given by version {kept['version']}")
    assert found["version"] == kept["version"]
    assert {q: a["holds"] for q, a in found["answers"].items()} == {q: a["holds"] for q, a in kept["answers"].items()}


def test_length_and_picture():
    assert len(README.splitlines()) <= 122
    picture = ROOT / "docs" / "images" / "readme.png"
    assert "(docs/images/readme.png)" in README and 10_000 < picture.stat().st_size < 300_000
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Those to files of the clone."""
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    missing = [t for t in targets if ":" not in t and not (path.parent / t.partition("#")[0]).exists()]
    assert not missing


def test_links_have_words():
    """Sphinx gives a link without words the title of its page; whoever reads the file in a clone sees nothing."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert not [str(page) for page in pages if "[](" in page.read_text(encoding="utf-8")]


def test_one_citation():
    """The README's entry has the title, the authors and the address of CITATION.cff, which the package names too."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and {"message", "title", "authors", "license"} <= cited.keys()
    paper = cited["preferred-citation"]
    authors = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    assert len(authors) == 5 and re.findall(r"author = {(.+)},", README) == [" and ".join(authors)]
    assert [t.replace("{", "").replace("}", "") for t in re.findall(r"title  = {(.+)},", README)] == [paper["title"]]
    number = re.findall(r"eprint = {([^}]+)}", README)
    assert [f"arXiv:{n}" for n in number] == [i["value"] for i in paper["identifiers"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Paper"] == paper["url"] == f"https://arxiv.org/abs/{number[0]}"


def test_faults_are_found(make_readme):
    """A block that is missing, and a table that is not the one of the results."""
    with pytest.raises(AssertionError, match="0 blocks"):
        make_readme.written("a page without blocks")
    changed = re.sub(r"^\| Stopping Game \|.*$", "| Stopping Game | 0.1 | 0.1 | 0.1 |", README, flags=re.MULTILINE)
    assert changed != README and make_readme.written(changed) == README


def test_scripts_are_not_left_behind(make_readme):
    """`peers` borrows the folder of the benchmarks and gives it back."""
    before = list(sys.path)
    make_readme.peers()
    assert sys.path == before
