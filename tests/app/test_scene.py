"""Scenes: their addresses, and what controls and addresses may say."""

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backplay as bp
from backplay.app.scene import Scene, accepts, changed, from_query, read_layers

DEFAULT = Scene("zoo:vgg")
SCENES = [
    DEFAULT,
    Scene("zoo:vit", "cue:3", "", 4, "rg", changed("rg", {"tau": 0.35, "gate": "noisy", "gate_noise": 0.7})),
    Scene("zoo:resnet", "upload:0123456789abcdef", "", None, "sg", changed("sg", {"softplus": 0.5})),
    Scene(
        "zoo:text", text="not great & 100 % ${awful} <b>", game="sg", modes=changed("sg", {"multiply_by_input": True})
    ),
    Scene("zoo:vgg", layers="features.*: tau=0.5, epsilon=0; head.*: alpha=1", modes=(("risk", -1.0),)),
]


def through_an_address(scene, prefix=""):
    query = dict(parse_qsl(urlencode(scene.query(prefix))))
    return from_query(query, DEFAULT, prefix)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("prefix", ["", "b."])
def test_round_trip(scene, prefix):
    assert through_an_address(scene, prefix) == scene


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    tau=st.floats(1e-3, 1e3),
    risk=st.floats(-1e6, 1e6),
    bias=st.sampled_from(["ignore", "absorb"]),
    forward=st.booleans(),
    text=st.text(max_size=40),
)
def test_every_number_comes_back(tau, risk, bias, forward, text):
    """To the last digit."""
    given = {"tau": tau, "risk": risk, "bias": bias, "tau_forward": forward}
    scene = Scene("zoo:text", text=text.strip(), modes=changed("rg", given))
    assert through_an_address(scene) == scene


def test_defaults_say_nothing():
    assert DEFAULT.query() == {"model": "zoo:vgg", "picture": "example:0", "game": "rg"}
    assert changed("rg", {name: accept.default for name, accept in accepts("rg").items()}) == ()
    assert changed("rg", {"gate_noise": 3.0, "softplus": 1.0}) == ()  # idle, and of the other game
    assert dict(changed("rg", {"gate_noise": 3.0, "gate": "noisy"})) == {"gate": "noisy", "gate_noise": 3.0}


@pytest.mark.parametrize(
    "query, words",
    [
        ({"tau": "0"}, "tau=0.0 is out of range"),
        ({"tau": "warm"}, "tau='warm' is no number"),
        ({"gate": "open"}, "one of 'exact', 'noisy'"),
        ({"game": "chess"}, "rg, the Routing Game"),
        ({"target": "-1"}, "no number of a class"),
        ({"target": "²"}, "no number of a class"),
        ({"layers": "features.*"}, "write features.*: tau=0.5"),
        ({"layers": "features.*: tau"}, "sets no mode"),
        ({"layers": "features.*: tua=1"}, "did you mean"),
        ({"layers": "features.*: tau=-1"}, "out of range"),
        ({"layers": "features.*: input_variance=1"}, "no mode 'input_variance'"),
    ],
)
def test_what_an_address_may_not_say(query, words):
    with pytest.raises(bp.BackplayError, match=words.replace("*", r"\*").replace("(", r"\(")) as told:
        from_query(query, DEFAULT)
    assert len(str(told.value)) < 300


def test_what_is_unknown_is_left_alone():
    """Addresses are decorated on their way; what means nothing changes nothing."""
    assert from_query({"__theme": "dark", "utm_source": "mail", "b.tau": "0.5"}, DEFAULT) == DEFAULT


def test_layers_are_the_keyword():
    found = read_layers("features.*: tau=0.5, gate=noisy;\nhead.2: epsilon = 0 ;", "rg")
    assert found == {"features.*": {"tau": 0.5, "gate": "noisy"}, "head.2": {"epsilon": 0.0}}
    assert list(found) == ["features.*", "head.2"] and read_layers(" ; ", "rg") == {}
    assert Scene("m", layers="head.2: tau=2").keywords() == {"layers": {"head.2": {"tau": 2.0}}}
