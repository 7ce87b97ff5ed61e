"""What a visitor is answered: the panels of each tab, as they come, and a line where something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from backplay.app import comparison, explore, export, html, rivals
from backplay.app.controls import Controls
from backplay.app.explore import At
from backplay.app.grounds import sentences
from backplay.app.library import Library
from backplay.app.scene import Scene
from backplay.app.solved import Solved, Table
from backplay.app.uploads import Uploads
from backplay.app.work import Jobs, SupersededError, one_line
from backplay.errors import InputError

_PATIENCE = 0.7  # seconds before a visitor wants to know what takes so long
_ALL = html.behind("all", "Map and panels are as they were before the last change.")
_REST = html.behind("rest", "The panels below are as they were before the last change.")
_PAIR = html.behind("pair", "Both maps are as they were before the last change.")
_RIVALS = html.behind("rivals", "These maps are as they were before the last change in Explore; press Run.")


class Answers:
    """All three tabs over one table of solved scenes. What belongs to a visitor is in their own page alone."""

    a: Controls
    b: Controls

    def __init__(self, library: Library, uploads: Uploads) -> None:
        self.library, self.uploads = library, uploads
        self.table, self.jobs = Table(library, uploads), Jobs()
        self.behind = set[str]()  # visitors whose map is not yet that of their controls

    # ---------------------------------------------------------------- the first tab

    def draw_first(self, request: gr.Request, told: str, *values: Any) -> Iterator[list[Any]]:
        """The first picture of a visit; a line about the address stays, and nothing is older than it."""
        for note, *shown, _, _ in self.draw(request, *values):
            yield [told if note == "" else note, *shown, gr.skip(), gr.skip()]

    def draw(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Note, map, details, export, and what is older than the controls here and in both other tabs.

        The map comes first, then everything else.
        """
        *controls, at, layer = values
        keep, visitor = gr.skip(), _visitor(request)
        try:
            first = self.jobs.start(visitor, "scene", lambda job: self._first(self.a.scene(controls), at, layer, job))
            self.behind.add(visitor)
            yield [keep, keep, keep, keep, _ALL, _PAIR, _RIVALS]
            for words in first.wait(_PATIENCE):
                yield [html.working(words or "playing"), keep, keep, keep, keep, keep, keep]
            solved, place, inner, look = first.result()
            self.behind.discard(visitor)
            yield ["", look, keep, "", _REST, keep, keep]
            more = self.jobs.follow(first, visitor, "scene", lambda job: self._details(solved, place, inner, job))
            for words in more.wait(_PATIENCE):
                yield [html.working(words), keep, keep, keep, keep, keep, keep]
            yield ["", keep, more.result(), keep, "", keep, keep]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), keep, keep, keep, keep, keep, keep]

    def redraw(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """What was chosen, on the map that is there; the map too where this takes the place of drawing it."""
        behind = _visitor(request) in self.behind
        for note, look, details, exported, older, *_ in self.draw(request, *values):
            mark = older if behind or older != _ALL else _REST
            yield [note, look if behind else gr.skip(), details, exported, mark, gr.skip(), gr.skip()]

    def _solve(self, scene: Scene, job: Any) -> Solved:
        job.say(f"playing {scene.model}; the first time it is captured, which takes some seconds")
        return self.table.solve(scene)

    def _first(self, scene: Scene, at: Any, layer: Any, job: Any) -> tuple[Solved, At, str, str]:
        """The solved scene, what is chosen in it, and its map."""
        solved = self._solve(scene, job)
        with solved.ground.model.lock:
            place, inner = _fitting(solved, at, layer)
            return solved, place, inner, explore.first_look(solved, place)

    def _details(self, solved: Solved, at: At, layer: str, job: Any) -> str:
        job.say("following walks")
        chosen = {"at": ",".join(map(str, at))} if at is not None else {}
        query = solved.scene.query() | chosen | ({"layer": layer} if layer else {})
        with solved.ground.model.lock:
            return explore.details(solved, at, layer) + html.state("", query)

    def pick(self, data: gr.EventData) -> tuple[int, ...]:
        """A pixel or token was chosen."""
        return tuple(int(part) for part in data._data["at"])

    def enter(self, data: gr.EventData) -> str:
        """A layer was chosen."""
        return str(data._data["name"])

    def export_scene(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Files of the first tab."""
        *controls, at, layer = values

        def work(job: Any) -> export.Exported:
            solved = self._solve(self.a.scene(controls), job)
            job.say("drawing the figure")
            with solved.ground.model.lock:
                return export.of_scene(solved, *_fitting(solved, at, layer))

        yield from self._exporting(request, work)

    def _exporting(self, request: gr.Request, work: Callable[[Any], export.Exported]) -> Iterator[list[Any]]:
        try:
            job = self.jobs.start(_visitor(request), "export", work)
            for words in job.wait(_PATIENCE):
                yield [html.working(words or "drawing the figure"), gr.skip()]
            yield ["", job.result().look()]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), gr.skip()]

    def _complete(self, scene: Scene) -> Scene:
        """With a sentence, where the model reads one and none is given."""
        needs = self.library.find(scene.model).reads_text and not scene.text
        return replace(scene, text=sentences()[0]) if needs else scene

    # ---------------------------------------------------------------- the second tab

    def follow(self, *values: Any) -> list[Any]:
        """B plays the game of A: its sliders are those of that game."""

        def shown() -> list[Any]:
            count = len(self.a.inputs)
            a, b = self.a.scene(values[:count]), values[count:]
            mine = self.b.scene([*b[:4], a.game, *b[5:]])
            return self.b.show(self._complete(mine))

        return or_error(shown, len(self.b.outputs))

    def copy(self, *values: Any) -> list[Any]:
        """B as A is."""
        return or_error(lambda: self.b.show(self.a.scene(values)), len(self.b.outputs))

    def draw_pair(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Note, both scenes with their distance, export, and what is older than the controls."""
        keep = gr.skip()
        try:
            job = self.jobs.start(_visitor(request), "pair", lambda job: self._look_at_pair(*self._both(values), job))
            yield [keep, keep, keep, _PAIR]
            for words in job.wait(_PATIENCE):
                yield [html.working(words or "comparing"), keep, keep, keep]
            yield ["", job.result(), "", ""]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), keep, keep, keep]

    def _both(self, values: tuple[Any, ...]) -> tuple[Scene, Scene]:
        count = len(self.a.inputs)
        return self.a.scene(values[:count]), self.b.scene(values[count:])

    def _pair(self, a: Scene, b: Scene, job: Any) -> comparison.Compared:
        job.say(f"playing {a.model} and {b.model}")
        return comparison.compare(self.table, a, b)

    def _look_at_pair(self, a: Scene, b: Scene, job: Any) -> str:
        pair = self._pair(a, b, job)
        with pair.held():
            return comparison.look(pair) + html.state("b.", b.query("b."))

    def export_pair(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Files of the second tab."""

        def work(job: Any) -> export.Exported:
            pair = self._pair(*self._both(values), job)
            with pair.held():
                return export.of_pair(pair)

        yield from self._exporting(request, work)

    # ---------------------------------------------------------------- the third tab

    def offer_methods(self, *values: Any) -> list[Any]:
        """The methods that fit the model; those that were chosen stay chosen."""
        *controls, chosen = values
        try:
            fits = rivals.fitting(self.table.ground(self.a.scene(controls)))
        except Exception as error:
            return [html.error(one_line(error)), gr.skip()]
        stay = [name for name in chosen or () if name in fits] or rivals.preferred(fits)
        return ["", gr.CheckboxGroup(choices=fits, value=stay)]

    def run_methods(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Note, maps as they come, export, what was found, and what is older than Explore."""
        *controls, chosen = values
        keep = gr.skip()
        try:
            scene = self.a.scene(controls)
            found = rivals.gather(scene, self.table.ground(scene), [str(name) for name in chosen or ()])
            job = self.jobs.start(_visitor(request), "methods", lambda job: rivals.explain(job, found))
            yield [keep, rivals.look(found), "", keep, ""]
            there = 0
            for words in job.wait(_PATIENCE):
                now = len(found.maps) + len(found.failed)
                yield [html.working(words), rivals.look(found) if now != there else keep, keep, keep, keep]
                there = now
            if job.stopped and not job.superseded:
                yield [html.note("Stopped."), rivals.look(found), keep, found, keep]
                return
            job.result()
            query = {"m.methods": ",".join(found.chosen)}
            yield ["", rivals.look(found) + html.state("m.", query), keep, found, keep]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), keep, keep, keep, keep]

    def run_again(self, request: gr.Request, asked: bool, *values: Any) -> Iterator[list[Any]]:
        """The maps that an address asks for, once; the last part is whether they are still to come."""
        if asked:
            for shown in self.run_methods(request, *values):
                yield [*shown, False]
        else:
            yield [gr.skip()] * 6

    def export_methods(self, request: gr.Request, found: rivals.Rivals | None) -> Iterator[list[Any]]:
        """Files of the third tab."""
        if found is None or not found.maps:
            yield [html.error("There is no map to export; press Run first."), gr.skip()]
            return
        yield from self._exporting(request, lambda _: export.of_rivals(found))

    # ---------------------------------------------------------------- visitors

    def stop(self, request: gr.Request) -> None:
        """End what this visitor waits for."""
        self.jobs.stop(_visitor(request))

    def leave(self, request: gr.Request) -> None:
        """Nobody waits any more."""
        self.jobs.stop(_visitor(request))
        self.behind.discard(_visitor(request))


def or_error(shown: Callable[[], list[Any]], count: int) -> list[Any]:
    """No note and what `count` components show, or a line about the error and all as it is; the note once more."""
    try:
        return ["", *shown(), ""]
    except Exception as error:
        line = html.error(one_line(error))
        return [line, *[gr.skip()] * count, line]


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


def _fitting(solved: Solved, at: Any, layer: Any) -> tuple[At, str]:
    """What was chosen, as far as this scene has it: another model has other layers and pixels."""
    place: At = None
    if at is not None:
        try:
            solved.ground.mask(tuple(at))
            place = tuple(int(part) for part in at)
        except InputError:
            place = None
    return place, str(layer) if layer in solved.layer_names() else ""
