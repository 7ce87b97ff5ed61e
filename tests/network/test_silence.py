"""A capture is silent; what other threads say meanwhile is heard."""

import logging
import sys
import threading
import warnings
from contextlib import suppress

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.network.silence import silence


def speak(word):
    """On every way that a library may take."""
    print(f"{word} prints")
    print(f"{word} prints an error", file=sys.stderr)
    logging.getLogger("torch.export").error("%s logs", word)
    warnings.warn(f"{word} warns", stacklevel=1)


def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def heard(capsys):
    """Everything that was said so far, on all four ways."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("torch.export")
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield lambda: [*capsys.readouterr(), *lines, *(str(one.message) for one in warned)]
    logger.removeHandler(handler)


WAYS = ["prints\n", "prints an error\n", "logs", "warns"]


def test_one_thread_is_silent(heard):
    with silence("torch"):
        speak("mine")
        elsewhere(lambda: speak("theirs"))
    assert heard() == [f"theirs {way}" for way in WAYS]


def test_afterwards_nobody_is(heard):
    """Not through a stream that somebody took meanwhile, either."""
    before = sys.stdout, sys.stderr, list(warnings.filters)
    with suppress(ZeroDivisionError), silence("torch"):
        kept = sys.stdout
        raise ZeroDivisionError
    assert (sys.stdout, sys.stderr, list(warnings.filters)) == before
    speak("mine")
    print("late", file=kept)
    assert heard() == ["mine prints\nlate\n", "mine prints an error\n", "mine logs", "mine warns"]


class Loud(nn.Module):
    """Says something while it is followed, and has another thread say something too."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        if torch.compiler.is_exporting():
            speak("mine")
            elsewhere(lambda: speak("theirs"))
        return self.head(x)


@pytest.mark.capture
def test_a_capture(heard):
    bp.capture(Loud(), torch.zeros(2, 4))
    said = " ".join(heard())
    assert "mine" not in said
    assert [way.strip() for way in WAYS if f"theirs {way}" in said] == [way.strip() for way in WAYS]
