"""How maps look: colours, HTML, the terminal, the figure."""

import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import backplay as bp
from backplay.text import colours, terminal
from backplay.text.html import page
from backplay.text.maps import TokenMap
from backplay.text.targets import Goal
from backplay.text.tokens import Tokens
from closeness import assert_near

PIECES = ("[CLS]", "a", "<b>", "dull", "er", "film", "$&$", "[MASK]")
SCORES = (9.0, 0.0, -1.0, 0.5, -0.25, 1.0, 0.75, 0.1)


@pytest.fixture
def found():
    """A map that was made by hand."""
    special = tuple(piece.startswith("[") for piece in PIECES)
    spaced = tuple(piece != "er" for piece in PIECES)
    source = Tokens(
        "a <b> duller film $&$", tuple(range(8)), PIECES, PIECES, special, spaced, (0, 1, 2, 3, 3, 4, 5, 6), {}
    )
    goal = Goal(1, 'good & "new"', 7, 2.5)
    return TokenMap(source, torch.tensor(SCORES, dtype=torch.float64), goal, "rg", {"tau": 0.5}, 0.125)


class Seen(HTMLParser):
    """The tags that were opened, with their attributes, and the text outside of them."""

    def __init__(self):
        super().__init__()
        self.tags, self.text, self.open = [], "", []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(html):
    seen = Seen()
    seen.feed(html)
    assert not seen.open, "every tag is closed"
    return seen


def test_colours():
    """White at zero, blue against red, darker with size, alike on both sides; the text on them can be read."""
    assert colours.css(colours.colour(0)) == "#f7f7f7"
    shares = [k / 50 for k in range(51)]
    for sign in (-1, 1):
        light = [colours._luminance(colours.colour(sign * share)) for share in shares]
        assert all(a >= b for a, b in pairwise(light)) and light[-1] < 0.1 * light[0]
    for share in shares[5:]:
        red, blue = colours.colour(share), colours.colour(-share)
        assert red[0] - red[2] > 10 and blue[2] - blue[0] > 10  # apart on the axis that red-green blindness leaves
    for share in (*shares, *(-s for s in shares), 7, -7):
        back = colours.colour(share)
        assert colours.contrast(colours.ink(back), back) >= 4.5
    assert colours.contrast(colours.BLACK, colours.WHITE) == pytest.approx(21)


def test_colours_are_those_of_figures():
    from matplotlib import colormaps

    for share in (-1, -0.6, -0.2, 0, 0.2, 0.6, 1):
        theirs = [round(255 * part) for part in colormaps["RdBu_r"]((share + 1) / 2)[:3]]
        assert max(abs(a - b) for a, b in zip(colours.colour(share), theirs, strict=True)) <= 4


def test_html(found):
    """Escaped, closed, nothing fetched or run; each token on its colour; special ones told apart with their number."""
    html = found.html()
    seen = parsed(html)
    assert {tag for tag, _ in seen.tags} == {"div", "span"}
    assert not any(key.startswith("on") or key in ("src", "href") for _, given in seen.tags for key in given)
    assert "url(" not in html and "http" not in html and "<b>" not in html
    assert 'good & "new" at token 7 ([MASK]) · logit 2.5 · rg tau=0.5 · 12 % of the walk arrives' in seen.text
    assert "duller film $&$" in seen.text and "[CLS] +9" in seen.text
    titled = [given for _, given in seen.tags if "title" in given]
    assert [given["title"].split(": ")[0] for given in titled] == list(PIECES)
    for given, score, piece in zip(titled, SCORES, PIECES, strict=True):
        style = given["style"]
        if piece.startswith("["):
            assert "dashed" in style
        else:
            assert f"background:{colours.css(colours.colour(score))}" in style, "the largest plain score is 1"
        assert ("outline" in style) == (piece == "[MASK]"), "where the logit stands"
    assert "−1" in seen.text and "+1 for" in seen.text
    assert found._repr_html_() == html


def test_maps_of_nothing(found):
    """All scores 0: no division by the scale."""
    from dataclasses import replace

    empty = replace(found, scores=torch.zeros(8))
    assert empty.scale == 1.0 and parsed(empty.html()) and str(empty) and empty.plot()


def test_terminal(found, capsys, monkeypatch):
    """Numbers where nobody sees colours, colours on a terminal, HTML in a notebook."""
    found.show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == found.caption() and lines[4].split() == ["dull", "+0.5"] and lines[1].endswith("(special)")
    monkeypatch.setattr(terminal, "colourful", lambda: True)
    found.show()
    out = capsys.readouterr().out
    red, green, blue = colours.colour(1.0)
    assert f"\x1b[48;2;{red};{green};{blue};38;2;255;255;255mfilm\x1b[0m" in out and "\x1b[2m[CLS]" in out

    class ZMQInteractiveShell:
        pass

    shown = []
    display = SimpleNamespace(display=shown.append, HTML=lambda text: text)
    monkeypatch.setitem(terminal.sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    monkeypatch.setitem(terminal.sys.modules, "IPython.display", display)
    found.show()
    bp.text.TokenMaps([found, found]).show()
    assert shown[0] == found.html() and shown[1] == found.html() + "\n" + found.html()
    assert capsys.readouterr().out == ""


def test_bars(found):
    """The numbers that are drawn, and what they are called; a long special bar ends at the edge with its number."""
    figure = found.plot()
    axes = figure.axes[0]
    assert_near([bar.get_width() for bar in axes.patches], SCORES)
    assert [label.get_text() for label in axes.get_yticklabels()] == [p.replace("$", r"\$") for p in PIECES]
    low, high = axes.get_xlim()
    assert high == pytest.approx(-low) == pytest.approx(1.3), "the scale of tokens that are not special"
    assert [text.get_text() for text in axes.texts] == ["+9"]
    assert [bool(bar.get_hatch()) for bar in axes.patches] == found.special
    for bar, score, special in zip(axes.patches, SCORES, found.special, strict=True):
        if not special:
            expected = [part / 255 for part in colours.colour(score)]
            assert_near(bar.get_facecolor()[:3], expected, 0.02, scale=1)
    figure.savefig("/dev/null", format="png")
    assert bp.view.tokens(found).axes[0].get_title(loc="left") == axes.get_title(loc="left")
    with pytest.raises(bp.BackplayError, match=r"got list; draw one of a list: t\[0\]"):
        bp.view.tokens([found])


def test_in_a_browser(found, tmp_path):
    """A real browser shows the tokens side by side, on the colours that were asked for."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium here (Debian: apt-get install chromium)")
    path = tmp_path / "page.html"
    told = (
        "<script>document.title = [...document.querySelectorAll('span[title]')]"
        ".map(s => getComputedStyle(s).backgroundColor).join(';')</script>"
    )
    path.write_text(page("maps", [found.html()]) + told)
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = done.stdout.partition("<title>")[2].partition("</title>")[0].split(";")
    for shown, score, special in zip(title, SCORES, found.special, strict=True):
        red, green, blue = (255, 255, 255) if special else colours.colour(score)
        assert shown == f"rgb({red}, {green}, {blue})"
