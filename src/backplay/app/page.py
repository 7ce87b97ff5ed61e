"""The page: its three tabs, and what happens when a control is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from backplay.app import comparison, explore, export, html, rivals
from backplay.app.controls import Controls
from backplay.app.explore import At
from backplay.app.grounds import PICTURES, sentences
from backplay.app.library import Library
from backplay.app.panel import panel
from backplay.app.scene import Scene, from_query, is_number
from backplay.app.solved import Solved, Table
from backplay.app.uploads import Uploads
from backplay.app.work import Jobs, SupersededError, one_line
from backplay.errors import BackplayError, InputError

TABS = ("explore", "compare", "methods")
_PATIENCE = 0.7  # seconds before a visitor wants to know what takes so long
_TITLE = "<h1>backplay</h1><p>Which parts of the input made the network decide? Play it backward and look.</p>"
_ABOUT_COMPARE = "A is what Explore shows. Give B another picture, another model or other modes."
_ABOUT_METHODS = "Other methods on what Explore shows. Its game has its modes, the others have their defaults."
# a tab that is opened stands in the address too
_OPENED = (
    "() => { const url = new URL(location.href); url.searchParams.set('tab', '%s'); "
    "history.replaceState(history.state, '', url); }"
)


class Page:
    """All three tabs over one table of solved scenes. What belongs to a visitor is in their own page alone."""

    def __init__(self, library: Library, uploads: Uploads) -> None:
        self.library, self.uploads = library, uploads
        self.table, self.jobs = Table(library, uploads), Jobs()
        self.behind = set[str]()  # visitors whose map is not yet that of their controls
        self.default = Scene(library.names[0])
        self.blocks = gr.Blocks(title="backplay", analytics_enabled=False, delete_cache=(600, 3600))
        with self.blocks:
            gr.HTML(_TITLE, elem_classes="bp-title", js_on_load=None)
            self.address = gr.Textbox(visible=False)
            self.at, self.layer = gr.State(None), gr.State("")
            with gr.Tabs() as self.tabs:
                self._explore()
                self._compare()
                self._methods()
            self._wire_restore()
            self.blocks.unload(self.leave)

    # ---------------------------------------------------------------- what the tabs hold

    def _explore(self) -> None:
        with gr.Tab("Explore", id="explore") as tab, gr.Row(elem_classes="bp-row"):
            with gr.Column(scale=1, min_width=290, elem_classes="bp-controls"):
                self.a = Controls(self.library, self.uploads, self.default, "a")
            with gr.Column(scale=3, min_width=320, elem_classes="bp-stage"):
                self.note = panel(elem_id="note", elem_classes="bp-look bp-told")
                self.look = panel(elem_id="look", elem_classes="bp-look")
                self.details = panel(elem_id="details", elem_classes="bp-late")
                self.export = gr.Button("Export", size="sm", elem_id="export", elem_classes="bp-late bp-small")
                self.exported = panel(elem_id="exported", elem_classes="bp-late")
        tab.select(None, js=_OPENED % "explore")
        self._wire_controls(self.a, self.draw, [*self.a.inputs, self.at, self.layer], self._drawn)
        for source in (self.look, self.details):
            source.pick(self.pick, None, self.at, **_QUIET).then(
                self.redraw, [*self.a.inputs, self.at, self.layer], self._drawn, **_LAST
            )
            source.layer(self.enter, None, self.layer, **_QUIET).then(
                self.redraw, [*self.a.inputs, self.at, self.layer], self._drawn, **_LAST
            )
        self.note.stop(self.stop, **_QUIET)
        inputs = [*self.a.inputs, self.at, self.layer]
        self.export.click(self.export_scene, inputs, [self.note, self.exported], **_LAST)

    @property
    def _drawn(self) -> list[Any]:
        return [self.note, self.look, self.details, self.exported]

    def _compare(self) -> None:
        with gr.Tab("Compare", id="compare") as tab, gr.Row(elem_classes="bp-row"):
            with gr.Column(scale=1, min_width=290, elem_classes="bp-controls"):
                gr.HTML(f'<p class="bp-hint">{_ABOUT_COMPARE}</p>', js_on_load=None)
                self.same = gr.Button("B as A", size="sm", elem_id="same")
                self.b = Controls(self.library, self.uploads, self._other(self.default), "b", full=False)
            with gr.Column(scale=3, min_width=320, elem_classes="bp-stage"):
                self.pair_note = panel(elem_id="pair-note", elem_classes="bp-told")
                self.pair = panel(elem_id="pair")
                self.pair_export = gr.Button("Export", size="sm", elem_id="pair-export", elem_classes="bp-small")
                self.pair_exported = panel(elem_id="pair-exported")
        inputs, drawn = [*self.a.inputs, *self.b.inputs], [self.pair_note, self.pair, self.pair_exported]
        tab.select(None, js=_OPENED % "compare").then(
            self.follow, [*self.a.inputs, *self.b.inputs], [self.pair_note, *self.b.outputs], **_QUIET
        ).then(self.draw_pair, inputs, drawn, **_LAST)
        self.same.click(self.copy, [*self.a.inputs], [self.pair_note, *self.b.outputs], **_QUIET).then(
            self.draw_pair, inputs, drawn, **_LAST
        )
        self._wire_controls(self.b, self.draw_pair, inputs, drawn)
        self.pair_note.stop(self.stop, **_QUIET)
        self.pair_export.click(self.export_pair, inputs, [self.pair_note, self.pair_exported], **_LAST)

    def _methods(self) -> None:
        with gr.Tab("Methods", id="methods") as tab:
            gr.HTML(f'<p class="bp-hint">{_ABOUT_METHODS}</p>', js_on_load=None)
            self.chosen = gr.CheckboxGroup([], label="Methods that fit this model", elem_id="chosen")
            with gr.Row():
                self.run = gr.Button("Run", variant="primary", size="sm", elem_id="run", elem_classes="bp-small")
                self.rival_export = gr.Button("Export", size="sm", elem_id="rival-export", elem_classes="bp-small")
            self.rival_note = panel(elem_id="rival-note", elem_classes="bp-told")
            self.rivals = panel(elem_id="rivals")
            self.rival_exported = panel(elem_id="rival-exported")
            self.found = gr.State(None)  # of this visitor's last run
        inputs = [*self.a.inputs, self.chosen]
        tab.select(None, js=_OPENED % "methods").then(
            self.offer_methods, inputs, [self.rival_note, self.chosen], **_QUIET
        )
        outputs = [self.rival_note, self.rivals, self.rival_exported, self.found]
        self.run.click(self.run_methods, inputs, outputs, **_LAST)
        self.rival_note.stop(self.stop, **_QUIET)
        self.rival_export.click(self.export_methods, self.found, [self.rival_note, self.rival_exported], **_LAST)

    def _wire_controls(self, side: Controls, draw: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
        """What a scene follows at once, and what changes the controls themselves first."""
        side.listen(lambda trigger: trigger(draw, inputs, outputs, **_LAST))
        note = outputs[0]

        def choose(data: gr.EventData, model: str) -> list[Any]:
            return _or_error(lambda: self._choose(side, str(data._data.get("key", "")), model), 3)

        def upload(path: str, model: str) -> list[Any]:
            return _or_error(lambda: self._upload(side, path, model), 2)

        def adapt(*values: Any) -> list[Any]:
            fresh = [*values[:3], "", *values[4:]]
            return _or_error(lambda: side.show(self._complete(side.scene(fresh))), len(side.outputs))

        def reset(*values: Any) -> list[Any]:
            plain = {"modes": (), "layers": ""}
            return _or_error(lambda: side.show(replace(side.scene(values), **plain)), len(side.outputs))

        def follow(request: gr.Request, told: str, *values: Any) -> Iterator[list[Any]]:
            """The scene that follows from a change of controls; where that failed, its line stays."""
            if told:
                yield [gr.skip()] * len(outputs)
            else:
                yield from draw(request, *values)

        for changed in (
            side.choices.choose(choose, side.model, [note, side.picture, side.choices, side.text], **_QUIET),
            side.upload.upload(upload, [side.upload, side.model], [note, side.picture, side.choices], **_QUIET),
            side.model.input(adapt, side.inputs, [note, *side.outputs], **_QUIET),
            side.game.input(adapt, side.inputs, [note, *side.outputs], **_QUIET),
            side.reset.click(reset, side.inputs, [note, *side.outputs], **_QUIET),
        ):
            changed.then(follow, [note, *inputs], outputs, **_LAST)

    def _choose(self, side: Controls, key: str, model: str) -> list[Any]:
        """A small picture or a sentence was chosen: picture, what to choose from, sentence."""
        if not key.startswith("sentence:"):
            return [key, side.offer(self.library.find(model), key), gr.skip()]
        known, number = sentences(), key.removeprefix("sentence:")
        return [gr.skip(), gr.skip(), known[min(int(number) if is_number(number) else 0, len(known) - 1)]]

    def _upload(self, side: Controls, path: str, model: str) -> list[Any]:
        """A picture has arrived: the picture, what to choose from."""
        key = self.uploads.keep(path)
        return [key, side.offer(self.library.find(model), key)]

    def _wire_restore(self) -> None:
        outputs = [self.note, *self.a.outputs, *self.b.outputs, self.at, self.layer, self.chosen, self.tabs]
        restored = self.blocks.load(self.restore, self.address, outputs, js="() => [window.location.search]", **_QUIET)
        restored.then(self.draw_first, [self.note, *self.a.inputs, self.at, self.layer], self._drawn, **_LAST)

    # ---------------------------------------------------------------- the address

    def restore(self, address: str) -> list[Any]:
        """The controls as the address says; where it is wrong a line says so, and everything is at its default."""
        given = dict(parse_qsl(str(address or "").removeprefix("?")))
        words = ""
        try:
            a, b, at = self._scenes(given)
            shown = [*self.a.show(a), *self.b.show(b)]
            if at is not None:
                self.table.ground(a).mask(at)
        except BackplayError as error:
            words, given = html.error(f"The address was not understood: {one_line(error)}"), {}
            a, b, at = self._scenes({})
            shown = [*self.a.show(a), *self.b.show(b)]
        tab = given.get("tab", "explore")
        chosen = [name for name in given.get("m.methods", "").split(",") if name]
        methods = gr.CheckboxGroup(choices=chosen, value=chosen)
        return [words, *shown, at, given.get("layer", ""), methods, gr.Tabs(selected=tab if tab in TABS else "explore")]

    def _scenes(self, given: dict[str, str]) -> tuple[Scene, Scene, At]:
        a = self._complete(from_query(given, self.default))
        at = tuple(int(part) for part in given["at"].split(",")) if _is_place(given.get("at", "")) else None
        return a, self._complete(from_query(given, self._other(a), "b.")), at

    def _complete(self, scene: Scene) -> Scene:
        """With a sentence, where the model reads one and none is given."""
        needs = self.library.find(scene.model).reads_text and not scene.text
        return replace(scene, text=sentences()[0]) if needs else scene

    def _other(self, a: Scene) -> Scene:
        """What A is compared with at first: the next picture."""
        places = {key: k for k, key in enumerate(PICTURES)}
        return replace(a, picture=PICTURES[(places.get(a.picture, -1) + 1) % len(PICTURES)], target=None)

    # ---------------------------------------------------------------- the first tab

    def draw_first(self, request: gr.Request, told: str, *values: Any) -> Iterator[list[Any]]:
        """The first picture of a visit; a line about the address stays."""
        for shown in self.draw(request, *values):
            yield [told or shown[0], *shown[1:]] if shown[0] == "" else shown

    def draw(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """The map first, then everything else."""
        *controls, at, layer = values
        keep, visitor = gr.skip(), _visitor(request)
        try:
            scene = self.a.scene(controls)
            first = self.jobs.start(visitor, "scene", lambda job: self._first(scene, at, layer, job))
            self.behind.add(visitor)
            for words in first.wait(_PATIENCE):
                yield [html.working(words or "playing"), keep, keep, keep]
            solved, place, inner, look = first.result()
            self.behind.discard(visitor)
            yield ["", look, keep, ""]
            more = self.jobs.follow(first, visitor, "scene", lambda job: self._details(solved, place, inner, job))
            for words in more.wait(_PATIENCE):
                yield [html.working(words), keep, keep, keep]
            yield ["", keep, more.result(), keep]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), keep, keep, keep]

    def redraw(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """What was chosen, on the map that is there; the map too where this takes the place of drawing it."""
        behind = _visitor(request) in self.behind
        for note, look, details, exported in self.draw(request, *values):
            yield [note, look if behind else gr.skip(), details, exported]

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

    # ---------------------------------------------------------------- the second tab

    def follow(self, *values: Any) -> list[Any]:
        """B plays the game of A: its sliders are those of that game."""

        def shown() -> list[Any]:
            count = len(self.a.inputs)
            a, b = self.a.scene(values[:count]), values[count:]
            mine = self.b.scene([*b[:4], a.game, *b[5:]])
            return self.b.show(self._complete(mine))

        return _or_error(shown, len(self.b.outputs))

    def copy(self, *values: Any) -> list[Any]:
        """B as A is."""
        return _or_error(lambda: self.b.show(self.a.scene(values)), len(self.b.outputs))

    def draw_pair(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Both scenes and their distance."""
        try:
            a, b = self._both(values)
            job = self.jobs.start(_visitor(request), "pair", lambda job: self._look_at_pair(a, b, job))
            for words in job.wait(_PATIENCE):
                yield [html.working(words or "comparing"), gr.skip(), gr.skip()]
            yield ["", job.result(), ""]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), gr.skip(), gr.skip()]

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
        """Maps as they come."""
        *controls, chosen = values
        try:
            scene = self.a.scene(controls)
            found = rivals.gather(scene, self.table.ground(scene), [str(name) for name in chosen or ()])
            job = self.jobs.start(_visitor(request), "methods", lambda job: rivals.explain(job, found))
            there = -1
            for words in job.wait(_PATIENCE):
                now = len(found.maps) + len(found.failed)
                yield [html.working(words), rivals.look(found) if now != there else gr.skip(), "", gr.skip()]
                there = now
            if job.stopped and not job.superseded:
                yield [html.note("Stopped."), rivals.look(found), "", found]
                return
            job.result()
            query = {"m.methods": ",".join(found.chosen)}
            yield ["", rivals.look(found) + html.state("m.", query), "", found]
        except SupersededError:
            return
        except Exception as error:
            yield [html.error(one_line(error)), gr.skip(), gr.skip(), gr.skip()]

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


# events that only change controls, and events that draw: of the latter, the last one counts while one is drawn
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
_LAST: dict[str, Any] = _QUIET | {"trigger_mode": "always_last"}


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


def _or_error(shown: Callable[[], list[Any]], count: int) -> list[Any]:
    """No note and what `count` components show, or a line about the error and all as it is."""
    try:
        return ["", *shown()]
    except Exception as error:
        return [html.error(one_line(error)), *[gr.skip()] * count]


def _is_place(text: str) -> bool:
    return bool(text) and all(part.isascii() and part.isdecimal() and len(part) < 6 for part in text.split(","))


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
