"""What commands write: whole files or none, JSON that is JSON, progress for people alone."""

import json
import os
import pty
import re
import sys
import threading
import time

import numpy as np
import pytest
import torch

from backplay import progress
from backplay.cli.output import colours, folder, print_json, whole
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


def test_colours():
    """Red for, blue against, white for nothing; the scale is the same on both sides."""
    heat = torch.zeros(2, 4, 4)
    heat[:, 0, 0], heat[0, 1, 1], heat[1, 2, 2] = 1.0, -2.0, 1.0
    picture = colours(heat).astype(int)
    assert picture.shape == (4, 4, 3) and (picture[3, 3] == 247).all()
    assert tuple(picture[0, 0]) == (103, 0, 31) and tuple(picture[1, 1]) == (5, 48, 97)
    assert tuple(picture[2, 2]) == (214, 96, 77), "half of the largest"
    assert (colours(torch.zeros(3, 4, 4)) == 247).all()
    assert colours(torch.full((1, 4, 4), float("nan"))).dtype == np.uint8


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
