"""What commands write: whole files or none, JSON that is JSON, progress for people alone."""

import json
import os
import pty
import re
import sys
import threading
import time

import pytest

from backplay import progress
from backplay.cli.bar import Bar, aside
from backplay.cli.output import check_folder, end, folder, print_json, wants_json, whole
from backplay.progress import Progress


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("old")

    def interrupted():
        with whole(path) as unfinished:
            unfinished.write_text("half of the n")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["result.txt"]
    with whole(path) as unfinished:
        unfinished.write_text("new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["result.txt"]


def test_folders(tmp_path):
    assert folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for taken in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="cannot make the folder"):
            folder(taken)


def test_json_without_nan(capsys):
    print_json({"a": [float("nan"), 1.5, {"b": float("-inf")}], "σ": (True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, {"b": None}], "σ": [True, None]}


@pytest.mark.parametrize("seconds, terminal, told", [(0.3, True, True), (0.0, True, False), (0.3, False, False)])
def test_progress_for_people_who_wait(monkeypatch, seconds, terminal, told):
    """A real terminal, and less patience than people have."""
    assert progress.PATIENCE == 2
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    reader, writer = pty.openpty() if terminal else os.pipe()
    with open(writer, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        with Progress("thinking") as thinking:
            time.sleep(seconds)
            thinking.say("still thinking")
            time.sleep(2 * seconds)
        screen.write("end")
        screen.flush()
        heard = ""
        while not heard.endswith("end"):
            heard += os.read(reader, 10_000).decode()
    os.close(reader)
    assert bool(re.search(r"\x1b\[Kthinking … \d s.*still thinking … \d s", heard)) == told, heard
    assert heard.endswith("\r\x1b[Kend") if told else heard == "end", "the line is cleared"


def test_one_writer_on_the_line(monkeypatch):
    """A bar of the library inside a command speaks through the command's own line."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    reader, writer = pty.openpty()
    with open(writer, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        with Progress("explaining cat.jpg"), Progress("averaging", 20) as bar:
            bar.advance(8)
            time.sleep(0.7)
        screen.write("end")
        screen.flush()
        heard = ""
        while not heard.endswith("end"):
            heard += os.read(reader, 10_000).decode()
    os.close(reader)
    assert "\r\x1b[Kexplaining cat.jpg: averaging 8/20 … " in heard
    assert all(line.startswith(("\x1b[Kexplaining", "\x1b[Kend")) for line in heard.split("\r")[1:]), heard


def test_progress_ends_with_an_error(monkeypatch):
    reader, writer = pty.openpty()
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with open(writer, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        before = threading.active_count()
        with pytest.raises(KeyError), Progress("thinking"):
            raise KeyError
        assert threading.active_count() == before
    os.close(reader)


# ---------------------------------------------------------------- the bar of a command


def screen(monkeypatch):
    """A terminal in place of standard error, and a function that tells all that came to it."""
    reader, writer = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = open(writer, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", stream)

    def heard():
        stream.write("end")
        stream.flush()
        told = ""
        while not told.endswith("end"):
            told += os.read(reader, 10_000).decode()
        stream.close()
        os.close(reader)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told)

    return heard


def test_a_bar_for_people(monkeypatch):
    """What goes on, how far; a line that is printed meanwhile stands alone."""
    heard = screen(monkeypatch)
    with Bar("explaining", 20) as bar, Progress("averaging", 50) as inner:
        bar.advance(8)
        inner.advance(3)
        time.sleep(0.5)
        with aside():
            print("a line", file=sys.stderr)
    told = heard()
    assert "explaining 8/20: averaging 3/50" in told
    assert re.search(r"(^|[\r\n ])a line\r\n", told), told
    assert Progress._open == []


def test_no_bar_without_a_terminal(monkeypatch, capsys):
    with Bar("explaining", 20) as bar:
        bar.advance(20)
        with aside():
            print("a line")
    out, err = capsys.readouterr()
    assert out == "a line\n" and err == ""


def test_how_it_ends(capsys):
    assert end(["a"], "backplay a", ValueError("one\n two"), 4) == 4
    assert capsys.readouterr() == ("", "backplay a: one two\n")
    assert end(["a", "--json"], "backplay a", "one", 2) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == {"type": "UsageError", "message": "one", "command": "backplay a", "code": 2}
    assert err == "backplay a: one\n"
    assert not wants_json(["explain", "--", "--json"])


def test_folders_that_could_be_made(tmp_path):
    assert check_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b" and not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="is a file"):
        check_folder(tmp_path / "file" / "below")
