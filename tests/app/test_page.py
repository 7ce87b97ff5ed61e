"""What the page answers to events, without a browser: scripts in a process that has Gradio imported."""

import textwrap
from importlib.util import find_spec

import pytest

import beside

pytestmark = pytest.mark.skipif(
    find_spec("gradio") is None, reason="the explorer needs Gradio: pip install 'backplay[app]'"
)

START = textwrap.dedent("""
    import tempfile, threading, time
    from pathlib import Path
    from types import SimpleNamespace
    import gradio as gr
    from PIL import Image
    from backplay.app import comparison, explore, page as pages
    from backplay.app.library import Library
    from backplay.app.page import Page
    from backplay.app.scene import Scene, changed
    from backplay.app.uploads import Uploads

    folder = Path(tempfile.mkdtemp())

    def make(*names):
        return Page(Library(names), Uploads(folder / "uploads", folder))

    def values(side, scene):
        shown = dict(zip(map(id, side.outputs), side.show(scene), strict=True))
        found = [shown[id(component)] for component in side.inputs]
        return [getattr(value, "value", value) for value in found]

    def tau(value):
        return Scene("zoo:vgg", modes=changed("rg", {"tau": value}))

    def told(solved):
        return f"tau={dict(solved.scene.modes)['tau']}"

    def slow(seconds, words):
        def work(*given):
            time.sleep(seconds)
            return words(*given)
        return work

    def sent(answers):
        '''What a generator sends, each in its turn, as Gradio sends it.'''
        for answer in answers:
            with lock:
                received.append(list(answer))

    def at_once(*calls, apart=0.1):
        threads = [threading.Thread(target=lambda call=call: sent(call())) for call in calls]
        for thread in threads:
            thread.start()
            time.sleep(apart)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def last(place):
        '''What stands in a panel after all that was sent.'''
        return [answer[place] for answer in received if isinstance(answer[place], str)][-1]

    def notes():
        return " ".join(answer[0] for answer in received if isinstance(answer[0], str))

    lock, received, visitor = threading.Lock(), [], SimpleNamespace(session_hash="somebody")
""")


def check(lines):
    """Run lines after those above."""
    beside.check(f"{START}\n{textwrap.dedent(lines)}")


@pytest.mark.slow
def test_the_last_of_overlapping_draws_is_shown():
    """Whichever stage an older draw is in, map and details are those of the newest, and nobody reads “Stopped.”."""
    check("""
        page = make("zoo:vgg")
        for k in (5, 6, 7):
            page.table.solve(tau(k / 10))
        given = [[*values(page.a, tau(k / 10)), None, ""] for k in (5, 6, 7)]
        for first, more in ((0.25, 0.25), (0.02, 0.25), (0.0, 0.0), (0.9, 0.05)):
            received.clear()
            explore.first_look = slow(first, lambda s, at: told(s))
            explore.details = slow(more, lambda s, at, layer: told(s))
            at_once(*(lambda now=now: page.draw(visitor, *now) for now in given))
            assert last(1) == "tau=0.7" and last(2).startswith("tau=0.7"), received
            assert "Stopped" not in notes() and 'role="alert"' not in notes() and last(0) == "", received
            assert last(4) == "" and "bp-behind" in last(5) and "bp-behind" in last(6), received
    """)


def test_a_choice_while_the_map_is_drawn():
    """A pixel that is chosen before the map is there takes the place of that draw, and brings the map itself."""
    check("""
        page = make("zoo:vgg")
        page.table.solve(tau(0.5))
        explore.first_look, explore.details = slow(0.3, lambda s, at: told(s)), slow(0, lambda s, at, layer: told(s))
        given = [*values(page.a, tau(0.5)), (3, 4), ""]
        at_once(lambda: page.draw(visitor, *given), lambda: page.redraw(visitor, *given))
        assert last(1) == "tau=0.5" and last(2).startswith("tau=0.5")
        received.clear()
        sent(page.redraw(visitor, *given))
        assert not any(isinstance(answer[1], str) for answer in received) and last(2).startswith("tau=0.5")
        marks = [answer[4] for answer in received if isinstance(answer[4], str)]
        assert [mark.count('data-what="rest"') for mark in marks] == [1, 1, 0] and marks[-1] == "", marks
    """)


def test_the_stop_button_is_answered_at_once():
    check("""
        page = make("zoo:vgg")
        page.table.solve(tau(0.5))
        explore.first_look = slow(60, lambda s, at: told(s))
        given, begin = [*values(page.a, tau(0.5)), None, ""], time.monotonic()
        thread = threading.Thread(target=lambda: sent(page.draw(visitor, *given)))
        thread.start()
        time.sleep(0.1)
        page.stop(visitor)
        thread.join(30)
        assert time.monotonic() - begin < 30 and "Stopped." in notes()
        assert not any(isinstance(answer[1], str) for answer in received)
        assert 'data-what="all"' in last(4)
    """)


def test_superseded_pairs_and_exports_say_nothing():
    check("""
        page = make("zoo:vgg")
        def work(*given):
            name = next(names)
            time.sleep(0.3)
            return name
        page._look_at_pair = work
        both = [*values(page.a, tau(0.5)), *values(page.b, tau(0.6))]
        shown = lambda job: SimpleNamespace(look=lambda name=work(): name)
        for call in (lambda: page.draw_pair(visitor, *both), lambda: page._exporting(visitor, shown)):
            received.clear()
            names = iter(("older", "newest"))
            at_once(call, call)
            assert [answer[1] for answer in received][-1] == "newest" and "Stopped" not in notes(), received
            assert "older" not in [answer[1] for answer in received], received
    """)


def test_wrong_controls_are_one_line():
    """Whatever stands in a control or the address, each event answers with a line and leaves the controls alone."""
    check("""
        page = make("zoo:vgg")
        answers = {}
        for listener in page.blocks.fns.values():
            answers.setdefault(listener.name, []).append(listener)
        given = values(page.a, tau(0.5))
        target, model = page.a.inputs.index(page.a.target), page.a.inputs.index(page.a.model)
        unknown = [*given[:target], "no such class", *given[target + 1:]]
        long = [*given[:target], "1" * 5000, *given[target + 1:]]
        gone = ["zoo:gone", *given[1:]]
        fine = values(page.b, tau(0.6))
        reset = answers["reset"][0].fn
        choose, adapt = answers["choose"][0].fn, answers["adapt"][0].fn
        key = lambda text: SimpleNamespace(_data={"key": text})

        def refused(answer, count, words):
            assert words in answer[0] and 'role="alert"' in answer[0], answer
            assert len(answer) == count + 2 and answer[-1] == answer[0], answer
            assert not any(isinstance(value, str) for value in answer[1:-1]), answer

        for wrong in (unknown, long):
            refused(page.follow(*wrong, *fine), len(page.b.outputs), "no class is called")
            refused(page.copy(*wrong), len(page.b.outputs), "no class is called")
            refused(reset(*wrong), len(page.a.outputs), "no class is called")
            older, drawn = page.draw(visitor, *wrong, None, "")
            assert all('class="bp-behind"' in line for line in older[4:]) and "no class is called" in drawn[0]
            assert not any(isinstance(value, str) for value in [*older[:4], *drawn[1:]]), (older, drawn)
        refused(adapt(*gone), len(page.a.outputs), "no model named")
        refused(choose(key("example:1"), "zoo:gone"), 3, "no model named")
        assert choose(key("sentence:" + "9" * 5000), "zoo:vgg")[3]
        for answer in (page.follow(*given, *fine), page.copy(*given), reset(*given)):
            assert answer[0] == answer[-1] == "" and len(answer) == len(page.b.outputs) + 2
        for query in ("?target=" + "1" * 5000, "?b.target=" + "1" * 5000, "?at=" + "1" * 5000 + ",1"):
            assert ("The address was not understood" in page.restore(query)[0]) == ("target" in query), query
    """)


def test_an_upload_beside_a_text_model():
    """The small pictures stay, whichever model comes first on the command line."""
    check("""
        page = make("zoo:text", "zoo:vgg")
        Image.new("RGB", (20, 10), "red").save(folder / "cat.png")
        upload = next(listener for listener in page.blocks.fns.values() if listener.name == "upload")
        assert upload.inputs == [page.a.upload, page.a.model]
        note, picture, choices, line = upload.fn(str(folder / "cat.png"), "zoo:vgg")
        assert note == line == "" and picture.startswith("upload:")
        assert "your picture" in choices and "sentence" not in choices
        note, *rest, line = upload.fn(str(folder / "gone.png"), "zoo:vgg")
        assert "did not arrive" in note and line == note and not any(isinstance(value, str) for value in rest)
    """)
