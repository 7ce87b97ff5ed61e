"""What notebooks show, with matplotlib and without; figures are files, never windows."""

import base64
import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
import torch

import backplay as bp
from backplay.view import gallery


def run(code):
    """In a process of its own: what is imported here is not imported there."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_everything_shows_itself(play, batch):
    h = bp.hellinger(play, play)
    swept = bp.sweep(play.game, batch.x, batch.target, tau=[0.5, 1.0])
    for shown in (play, play.sample(20), h, bp.certify(play), swept, bp.moments(play.network, batch.x, 0.1)):
        assert isinstance(shown.plot(), matplotlib.figure.Figure)
        assert shown._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
        page = shown._repr_html_()
        assert base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])[:4] == b"\x89PNG"
        ElementTree.fromstring(page.replace("<img", "<img").replace('">', '"/>', 1))  # it is well-formed
    assert "Play(RoutingGame" in play._repr_html_()


def test_figures_show_themselves(play):
    assert bp.view.flow(play)._repr_png_()[:4] == b"\x89PNG"


def test_what_cannot_be_drawn_is_told_as_text(play):
    drawn = bp.RoutingGame(torch.nn.Linear(3, 2).eval()).play(torch.randn(1, 3)).sample(3)
    assert drawn._repr_html_() is None and drawn._repr_png_() is None  # notebooks then show the text
    with pytest.raises(bp.BackplayError, match="draws images"):
        drawn.plot()


@pytest.mark.slow
def test_without_matplotlib():
    said = run(
        """
        import sys
        sys.modules["matplotlib"] = None
        import torch, backplay as bp
        play = bp.RoutingGame(torch.nn.Linear(3, 2).eval()).play(torch.randn(1, 3))
        for shown in (play, play.sample(3), bp.hellinger(play, play), bp.certify(play)):
            assert shown._repr_html_() is None and shown._repr_png_() is None
            assert repr(shown)
        for ask in (play.plot, lambda: bp.view.flow(play)):
            try:
                ask()
            except bp.BackplayError as error:
                print(error)
        """
    )
    assert said.count("pip install 'backplay[view]'") == 2


@pytest.mark.slow
def test_the_package_draws_only_when_asked():
    said = run(
        """
        import sys, torch, backplay as bp
        play = bp.RoutingGame(torch.nn.Linear(3, 2).eval()).play(torch.randn(1, 3))
        print("matplotlib" in sys.modules)
        figure = play.plot()
        figure.savefig("/dev/null", format="png")
        print("matplotlib.pyplot" in sys.modules)
        """
    )
    assert said.split() == ["False", "False"]


def test_settings_of_the_user_stay_and_do_no_harm(play):
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "white", "font.size": 40}):
        figure = bp.view.flow(play)
        assert figure.get_facecolor() == (1, 1, 1, 1)
        assert all(t.get_color() != "white" for t in figure.findobj(matplotlib.text.Text))
        assert max(t.get_fontsize() for t in figure.findobj(matplotlib.text.Text) if t.get_text()) < 15
    assert dict(matplotlib.rcParams) == before


def test_png_and_svg(play):
    for figure in (bp.view.flow(play), play.plot()):
        file = io.StringIO()
        figure.savefig(file, format="svg")
        root = ElementTree.fromstring(file.getvalue())
        assert root.tag.endswith("svg")
        image = pytest.importorskip("PIL.Image")
        for dpi in (50, 300):
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=dpi)
            width, height = image.open(file).size
            assert abs(width - dpi * figure.get_figwidth()) <= 1 and abs(height - dpi * figure.get_figheight()) <= 1


def test_gallery(tmp_path, capsys):
    gallery.main(["stopping-game", "trajectory", "--out", str(tmp_path / "new" / "folder")])
    assert {p.name for p in (tmp_path / "new" / "folder").iterdir()} == {
        "stopping-game.png",
        "stopping-game.svg",
        "trajectory.png",
        "trajectory.svg",
    }
    with pytest.raises(SystemExit):
        gallery.main(["mona-lisa", "--out", str(tmp_path)])
    assert "there is no picture 'mona-lisa'" in capsys.readouterr().err


PAPER = (  # every picture of the paper
    *("game-trajectory-distribution", "hellinger-sanity", "qualitative-sweeps", "Stopping-Game-illustration"),
    *("Routing-Game-illustration", "qualitative", "hellinger-input-noise", "hellinger-variance"),
)


def test_every_picture_of_the_paper_has_a_command():
    """The guide names one for each label, and the gallery draws the picture that bears the label."""
    page = (Path(__file__).parents[2] / "docs" / "pictures.md").read_text()
    rows = dict(re.findall(r"^\| `fig:([\w-]+)` \| `([\w-]+)` \|", page, re.MULTILINE))
    assert sorted(rows) == sorted(PAPER)
    for label, name in rows.items():
        assert f"fig:{label}" in re.findall(r"fig:[\w-]+", gallery.PICTURES[name].__doc__), name


@pytest.mark.slow
def test_whole_gallery():
    """Every picture is drawn, and can be read.

    fig:game-trajectory-distribution, fig:qualitative, fig:qualitative-sweeps, fig:hellinger-input-noise on the zoo.
    """
    from legible import assert_legible

    for name, draw in gallery.PICTURES.items():
        assert_legible(draw(), overlap=0.3 if name.endswith("game") else 0.12)


@pytest.mark.slow
def test_six_methods_on_five_pictures_are_six_lines(tmp_path, monkeypatch):
    """The example of the documentation, as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "pictures.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    assert len(code.strip().splitlines()) <= 6
    monkeypatch.chdir(tmp_path)
    drawn = {}
    real = bp.view.grid
    monkeypatch.setattr(bp.view, "grid", lambda *a, **k: drawn.setdefault("figure", real(*a, **k)))
    names: dict = {}
    exec(code, names)
    assert (tmp_path / "methods.png").stat().st_size > 10_000
    planes = [i for axes in drawn["figure"].axes for i in axes.images if i.get_array().ndim == 2]
    panels = {p.get_array().tobytes() for p in planes}
    for maps in names["maps"].values():
        for heat in maps:
            assert heat.double().sum(0).numpy().tobytes() in panels
    from legible import assert_legible

    assert_legible(drawn["figure"])
