"""Work in the background: what it tells, how it is stopped, whose it is."""

import gc
import threading
import weakref

import pytest

import backplay as bp
from backplay.app.work import Job, Jobs, StoppedError, SupersededError, one_line
from backplay.entry import entry
from backplay.progress import Progress


def test_what_is_done_is_silent():
    job = Job(lambda job: 7)
    assert list(job.wait(30)) == [] and job.result() == 7


def test_progress_is_told_and_work_can_be_stopped():
    """Work that counts its steps tells them, and ends at the next one once it is stopped."""
    told, go = [], threading.Event()

    def work(job):
        with Progress("averaging", 1000) as progress:
            for _ in range(1000):
                progress.advance(1)
                go.wait(0.01)

    job = Job(work)
    for words in job.wait(0.05):
        told.append(words)
        if words.startswith("averaging"):
            job.stop()
    go.set()
    assert told[-1].startswith("averaging ") and told[-1].endswith("/1000")
    job._thread.join(30)
    assert not job._thread.is_alive()
    with pytest.raises(StoppedError):
        job.result()


def test_errors_come_out():
    def work(job):
        raise bp.errors.InputError("one\nclear line")

    job = Job(work)
    assert list(job.wait(30)) == []
    with pytest.raises(bp.BackplayError) as told:
        job.result()
    assert one_line(told.value) == "one clear line" and one_line(StoppedError()) == "Stopped."


def test_what_nobody_foresaw(capsys):
    """One line for the visitor, the whole for whoever runs the server."""
    assert one_line(ZeroDivisionError("by zero\nand more")) == "This failed: ZeroDivisionError: by zero"
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_visitors_have_their_own():
    """A new piece of work stops the visitor's own one of that kind, and nobody else's."""
    jobs, wait = Jobs(), threading.Event()
    mine, other, theirs = (jobs.start(*who, lambda job: wait.wait(30)) for who in (("a", "x"), ("a", "y"), ("b", "x")))
    again = jobs.start("a", "x", lambda job: wait.wait(30))
    assert mine.stopped and not any(job.stopped for job in (other, theirs, again))
    jobs.stop("a")
    assert other.stopped and again.stopped and not theirs.stopped
    wait.set()


def test_a_stop_passes_public_calls():
    """It comes out of a public call as itself, by which the tabs know it from an error of a method or a panel."""
    met, go = [], threading.Event()

    @entry
    def public():
        with Progress("averaging", 1000) as progress:
            for _ in range(1000):
                progress.advance(1)
                go.wait(0.01)

    def work(job):
        try:
            public()
        except StoppedError as error:
            met.append(error)

    job = Job(work)
    job.stop()
    job._thread.join(30)
    assert len(met) == 1


def test_what_was_stopped_has_no_result():
    """Whoever waits goes on at once, even in the silent seconds, and gets nothing of work that is done by then."""
    go = threading.Event()
    job = Job(lambda job: go.wait(30))
    threading.Timer(0.1, job.stop).start()
    assert list(job.wait(30)) == [] and job.stopped
    go.set()
    job._thread.join(30)
    with pytest.raises(StoppedError):
        job.result()


def test_what_follows_never_stops_what_is_newer():
    jobs = Jobs()
    first = jobs.start("a", "x", lambda job: 1)
    list(first.wait(30))
    more = jobs.follow(first, "a", "x", lambda job: 2)
    list(more.wait(30))
    assert (first.result(), more.result()) == (1, 2)
    newest = jobs.start("a", "x", lambda job: 3)
    with pytest.raises(SupersededError):
        jobs.follow(more, "a", "x", lambda job: 4)
    with pytest.raises(SupersededError):
        more.result()
    list(newest.wait(30))
    assert newest.result() == 3


@pytest.mark.slow
def test_results_are_handed_over_once():
    """What the last work of a visitor gave is not kept until they leave."""
    jobs = Jobs()
    given = jobs.start("a", "x", lambda job: Large())
    list(given.wait(30))
    kept = weakref.ref(given.result())
    gc.collect()
    assert kept() is None


class Large:
    """Something that can be seen to be gone."""
