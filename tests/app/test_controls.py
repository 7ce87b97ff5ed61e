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
    from backplay.app.scene import Scene, accepts, changed
    from backplay.app.uploads import Uploads

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
    refused(lambda: controls.show(Scene("zoo:vgg", modes=(("tau", 9.0),))), "tau=9.0 is beyond its slider, 0.1 to 3.0")
""")


@pytest.mark.skipif(find_spec("gradio") is None, reason="the explorer needs Gradio: pip install 'backplay[app]'")
def test_controls():
    beside.check(CHECKS)
