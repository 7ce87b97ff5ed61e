"""The page: its three tabs, and what happens when a control is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from backplay.app import html, rivals
from backplay.app.answers import Answers, or_error
from backplay.app.controls import Controls
from backplay.app.explore import At
from backplay.app.grounds import PICTURES, sentences
from backplay.app.library import Library
from backplay.app.panel import panel
from backplay.app.scene import Scene, from_query, is_number
from backplay.app.uploads import Uploads
from backplay.app.work import one_line
from backplay.errors import BackplayError

TABS = ("explore", "compare", "methods")
_TITLE = "<h1>backplay</h1><p>Which parts of the input made the network decide? Play it backward and look.</p>"
_ABOUT_COMPARE = "A is what Explore shows. Give B another picture, another model or other modes."
_ABOUT_METHODS = "Other methods on what Explore shows. Its game has its modes, the others have their defaults."
# a tab that is opened stands in the address too; Gradio opens the first one while it makes the page, which says nothing
_SET = "const url = new URL(location.href); url.searchParams.set(%s); history.replaceState(history.state, '', url);"
_OPENED = "() => { if ('%s' === 'explore' && !window.backplayRestored) return; " + _SET % "'tab', '%s'" + " }"
_RESTORED = "(wrong) => { window.backplayRestored = true; if (!wrong) return; " + _SET % "'tab', 'explore'" + " }"
_CHOSEN = "(names) => { " + _SET % "'m.methods', names.join(',')" + " }"


class Page(Answers):
    """What there is to see and to move in three tabs, and which answer each change asks for."""

    def __init__(self, library: Library, uploads: Uploads) -> None:
        super().__init__(library, uploads)
        self.default = Scene(library.names[0])
        self.blocks = gr.Blocks(title="backplay", analytics_enabled=False, delete_cache=(600, 3600))
        with self.blocks:
            gr.HTML(_TITLE, elem_classes="bp-title", js_on_load=None)
            self.address = gr.Textbox(visible=False)
            self.at, self.layer = gr.State(None), gr.State("")
            # drawn in their tabs, and told of by the first one
            self.pair_older = panel(elem_id="pair-older", elem_classes="bp-told", render=False)
            self.rivals_older = panel(elem_id="rivals-older", elem_classes="bp-told", render=False)
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
                self.older = panel(elem_id="older", elem_classes="bp-late bp-told")
                self.details = panel(elem_id="details", elem_classes="bp-late")
                self.export = gr.Button("Export", size="sm", elem_id="export", elem_classes="bp-late bp-small")
                self.exported = panel(elem_id="exported", elem_classes="bp-late")
        tab.select(None, js=_OPENED % ("explore", "explore"))
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
        here = [self.note, self.look, self.details, self.exported, self.older]
        return [*here, self.pair_older, self.rivals_older]

    def _compare(self) -> None:
        with gr.Tab("Compare", id="compare") as tab, gr.Row(elem_classes="bp-row"):
            with gr.Column(scale=1, min_width=290, elem_classes="bp-controls"):
                gr.HTML(f'<p class="bp-hint">{_ABOUT_COMPARE}</p>', js_on_load=None)
                self.same = gr.Button("B as A", size="sm", elem_id="same")
                self.b = Controls(self.library, self.uploads, self._other(self.default), "b", full=False)
            with gr.Column(scale=3, min_width=320, elem_classes="bp-stage"):
                self.pair_note = panel(elem_id="pair-note", elem_classes="bp-told")
                self.pair_older.render()
                self.pair = panel(elem_id="pair")
                self.pair_export = gr.Button("Export", size="sm", elem_id="pair-export", elem_classes="bp-small")
                self.pair_exported = panel(elem_id="pair-exported")
        inputs, drawn = (
            [*self.a.inputs, *self.b.inputs],
            [self.pair_note, self.pair, self.pair_exported, self.pair_older],
        )
        tab.select(None, js=_OPENED % ("compare", "compare")).then(
            self.follow, [*self.a.inputs, *self.b.inputs], [self.pair_note, *self.b.outputs, self.b.told], **_QUIET
        ).then(self.draw_pair, inputs, drawn, **_LAST)
        self.same.click(self.copy, [*self.a.inputs], [self.pair_note, *self.b.outputs, self.b.told], **_QUIET).then(
            self.draw_pair, inputs, drawn, **_LAST
        )
        self._wire_controls(self.b, self.draw_pair, inputs, drawn)
        self.pair_note.stop(self.stop, **_QUIET)
        self.pair_export.click(self.export_pair, inputs, [self.pair_note, self.pair_exported], **_LAST)

    def _methods(self) -> None:
        with gr.Tab("Methods", id="methods") as tab:
            gr.HTML(f'<p class="bp-hint">{_ABOUT_METHODS}</p>', js_on_load=None)
            self.chosen = gr.CheckboxGroup(
                rivals.every(), label="Methods that fit this model", elem_id="chosen"
            )  # those that do not fit go when the tab is opened
            with gr.Row():
                self.run = gr.Button("Run", variant="primary", size="sm", elem_id="run", elem_classes="bp-small")
                self.rival_export = gr.Button("Export", size="sm", elem_id="rival-export", elem_classes="bp-small")
            with gr.Column(elem_classes="bp-stage"):
                self.rival_note = panel(elem_id="rival-note", elem_classes="bp-told")
                self.rivals_older.render()
                self.rivals = panel(elem_id="rivals")
                self.rival_exported = panel(elem_id="rival-exported")
            self.found, self.asked = (
                gr.State(None),
                gr.State(False),
            )  # of the last run; whether the address asks for one
        inputs = [*self.a.inputs, self.chosen]
        outputs = [self.rival_note, self.rivals, self.rival_exported, self.found, self.rivals_older]
        tab.select(None, js=_OPENED % ("methods", "methods")).then(
            self.offer_methods, inputs, [self.rival_note, self.chosen], **_QUIET
        ).then(self.run_again, [self.asked, *inputs], [*outputs, self.asked], **_LAST)
        self.chosen.input(None, self.chosen, js=_CHOSEN)
        self.run.click(self.run_methods, inputs, outputs, **_LAST)
        self.rival_note.stop(self.stop, **_QUIET)
        self.rival_export.click(self.export_methods, self.found, [self.rival_note, self.rival_exported], **_LAST)

    def _wire_controls(self, side: Controls, draw: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
        """What a scene follows at once, and what changes the controls themselves first."""
        side.listen(lambda trigger: trigger(draw, inputs, outputs, **_LAST))
        note = outputs[0]

        def choose(data: gr.EventData, model: str) -> list[Any]:
            return or_error(lambda: self._choose(side, str(data._data.get("key", "")), model), 3)

        def upload(path: str, model: str) -> list[Any]:
            return or_error(lambda: self._upload(side, path, model), 2)

        def adapt(*values: Any) -> list[Any]:
            fresh = [*values[:3], "", *values[4:]]
            return or_error(lambda: side.show(self._complete(side.scene(fresh))), len(side.outputs))

        def reset(*values: Any) -> list[Any]:
            return or_error(lambda: side.show(side.plain(values)), len(side.outputs))

        def slide(game: str, what: str) -> Any:
            return side.slide(game, what)

        def by_layer(text: str, *slider: Any) -> list[Any]:
            return or_error(lambda: [side.with_mode(text, *slider)], 1)

        def follow(request: gr.Request, told: str, *values: Any) -> Iterator[list[Any]]:
            """The scene that follows from a change of controls; where that failed, its line stays."""
            if told:
                yield [gr.skip()] * len(outputs)
            else:
                yield from draw(request, *values)

        side.what.input(slide, [side.game, side.what], side.much, **_QUIET)
        slider = [side.layers, side.game, side.where, side.what, side.much]
        shown = [note, *side.outputs, side.told]
        for changed in (
            side.choices.choose(choose, side.model, [note, side.picture, side.choices, side.text, side.told], **_QUIET),
            side.upload.upload(
                upload, [side.upload, side.model], [note, side.picture, side.choices, side.told], **_QUIET
            ),
            side.much.input(by_layer, slider, [note, side.layers, side.told], **_LAST),
            side.model.input(adapt, side.inputs, shown, **_QUIET),
            side.game.input(adapt, side.inputs, shown, **_QUIET),
            side.reset.click(reset, side.inputs, shown, **_QUIET),
        ):
            changed.then(follow, [side.told, *inputs], outputs, **_LAST)

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
        chosen = [self.at, self.layer, self.chosen, self.asked, self.tabs, self.address, self.a.told]
        outputs = [self.note, *self.a.outputs, *self.b.outputs, *chosen]
        restored = self.blocks.load(self.restore, self.address, outputs, js="() => [window.location.search]", **_QUIET)
        restored.then(None, self.address, js=_RESTORED).then(
            self.draw_first, [self.a.told, *self.a.inputs, self.at, self.layer], self._drawn, **_LAST
        )

    # ---------------------------------------------------------------- the address

    def restore(self, address: str) -> list[Any]:
        """The controls as the address says; where it is wrong a line says so, and everything is at its default."""
        given = dict(parse_qsl(str(address or "").removeprefix("?")))
        words, asked = "", given.get("tab", TABS[0])
        try:
            a, b, at = self._scenes(given)
            shown = [*self.a.show(a), *self.b.show(b)]
            if at is not None:
                self.table.ground(a).mask(at)
        except BackplayError as error:
            words, given = html.error(f"The address was not understood: {one_line(error)}"), {}
            a, b, at = self._scenes({})
            shown = [*self.a.show(a), *self.b.show(b)]
        tab = given["tab"] if given.get("tab") in TABS else TABS[0]
        tabs = gr.skip() if tab == TABS[0] else gr.Tabs(selected=tab)  # whoever has opened one by now stays there
        known = rivals.every()
        chosen = [name for name in given.get("m.methods", "").split(",") if name in known]
        methods = gr.CheckboxGroup(value=chosen) if chosen else gr.skip()
        return [words, *shown, at, given.get("layer", ""), methods, bool(chosen), tabs, asked * (tab != asked), words]

    def _scenes(self, given: dict[str, str]) -> tuple[Scene, Scene, At]:
        a = self._complete(from_query(given, self.default))
        at = tuple(int(part) for part in given["at"].split(",")) if _is_place(given.get("at", "")) else None
        return a, self._complete(from_query(given, self._other(a), "b.")), at

    def _other(self, a: Scene) -> Scene:
        """What A is compared with at first: the next picture."""
        places = {key: k for k, key in enumerate(PICTURES)}
        return replace(a, picture=PICTURES[(places.get(a.picture, -1) + 1) % len(PICTURES)], target=None)


# events that only change controls, and events that draw: of the latter, the last one counts while one is drawn
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
_LAST: dict[str, Any] = _QUIET | {"trigger_mode": "always_last"}


def _is_place(text: str) -> bool:
    return bool(text) and all(part.isascii() and part.isdecimal() and len(part) < 6 for part in text.split(","))
