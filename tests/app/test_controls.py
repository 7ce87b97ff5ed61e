"""Controls: every mode of both games has one, and what they show is what they say.

A script in a process that has Gradio imported.
"""

import textwrap
from importlib.util import find_spec

import pytest

import beside

CHECKS = textwrap.dedent("""
    import tempfile
    from pathlib import Path
    import gradio
    import backplay as bp
    from backplay.app.controls import Controls, read_class
    from backplay.app.library import Library
    from backplay.app.scene import Scene, accepts, by_layer, changed
    from backplay.app.uploads import Uploads
    from backplay.keywords import Number

    def shown(scene):
        return dict(zip(map(id, controls.outputs), controls.show(scene), strict=True))

    def sent_back(scene):
        found = [shown(scene)[id(component)] for component in controls.inputs]
        return [getattr(value, "value", value) for value in found]

    def refused(call, words):
        try:
            call()
        except bp.BackplayError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"not refused: {words}")

    with gradio.Blocks():
        library, folder = Library(("zoo:vgg", "zoo:text")), Path(tempfile.mkdtemp())
        controls = Controls(library, Uploads(folder, folder), Scene("zoo:vgg"), "a")

    assert set(controls.modes) == {*accepts("rg"), *accepts("sg")}
    for scene in (
        Scene("zoo:vgg"),
        Scene("zoo:vgg", "cue:1", target=3, modes=changed("rg", {"tau": 0.35, "bias": "absorb", "tau_forward": True})),
        Scene("zoo:vgg", game="sg", modes=changed("sg", {"softplus": 0.5, "residual": "proportional"})),
        Scene("zoo:text", text="so great", layers="blocks.*: tau=2"),
    ):
        assert controls.scene(sent_back(scene)) == scene, scene
    for game in ("rg", "sg"):
        found = shown(Scene("zoo:vgg", game=game))
        assert {n for n, c in controls.modes.items() if found[id(c)].visible} == set(accepts(game))
    names = ["ball", "ring"]
    assert [read_class(given, names) for given in ("", None, "3", "ring")] == [None, None, 3, 1]
    refused(lambda: read_class("1" * 5000, names), "no class is called '111")
    refused(lambda: read_class("dog", names), "no class is called 'dog'")
    refused(lambda: controls.show(Scene("zoo:vgg", modes=(("tau", 9.0),))), "τ = 9.0 is beyond its slider; give")

    given = sent_back(Scene("zoo:vgg", modes=changed("rg", {"epsilon": 0.1}), layers="head.*: tau=2"))
    place = controls.inputs.index(controls.modes["tau"])
    for wrong in (None, "", 0.0, 9, "1"):
        broken = [*given[:place], controls.modes["tau"].preprocess(wrong), *given[place + 1:]]
        refused(lambda: controls.scene(broken), "Temperature τ")
        assert controls.plain(broken) == Scene("zoo:vgg")
    hidden = controls.inputs.index(controls.modes["softplus"])  # of the other game: nobody sees that it is empty
    assert controls.scene([*given[:hidden], None, *given[hidden + 1:]]).modes == (("epsilon", 0.1),)

    found = shown(Scene("zoo:vgg"))
    assert {"features", "head", "features.0"} <= {name for name, _ in found[id(controls.where)].choices}
    for game in ("rg", "sg"):
        offered = {name for _, name in shown(Scene("zoo:vgg", game=game))[id(controls.what)].choices}
        assert offered == {name for name, accept in by_layer(game).items() if isinstance(accept, Number)}, offered
    text = controls.with_mode("", "rg", "features.*", "tau", 0.5)
    text = controls.with_mode(text, "rg", "head", "epsilon", 0)
    text = controls.with_mode(text, "rg", "features.*", "tau", 0.7)
    assert text == "features.*: tau=0.7; head: epsilon=0.0"
    assert controls.with_mode("", "sg", "head", "softplus", 0.0) == "head: softplus=None"
    refused(lambda: controls.with_mode("", "rg", " ", "tau", 0.5), "names no layers")
    refused(lambda: controls.with_mode("", "rg", "head", "tau", None), "Temperature τ is empty")
    assert not list(Path(bp.__file__).parent.rglob("*.pyi")), "Gradio writes one for a class of its own kind"
""")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gradio") is None, reason="the explorer needs Gradio: pip install 'backplay[app]'")
def test_controls():
    beside.check(CHECKS)
