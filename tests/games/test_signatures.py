"""What help and completion show: every keyword with its default and its meaning."""

import inspect
import re
from dataclasses import fields

import pytest
from torch import nn

import backplay as bp

GAMES = [bp.RoutingGame, bp.StoppingGame]


def keywords(game):
    shown = inspect.signature(game).parameters.values()
    return {p.name: p.default for p in shown if p.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("game", GAMES)
def test_signature_and_modes_agree(game):
    """One keyword for each mode, with the same default."""
    assert keywords(game) == {f.name: f.default for f in fields(game.modes_type)}
    assert game(nn.Linear(2, 2)).to_dict() | {"layers": None} == keywords(game)  # no layers, no entry


@pytest.mark.parametrize("game", GAMES)
def test_every_keyword_reaches_the_game(game):
    """None is dropped between the signature and the modes."""
    other = {bool: lambda v: not v, float: lambda v: v + 0.25, type(None): lambda v: 0.5}
    for name, default in keywords(game).items():
        accepts = game.modes_type.accepts()[name]
        value = accepts.choices[-1] if hasattr(accepts, "choices") else other[type(default)](default)
        value = {"*": {"risk": 0.0}} if name == "layers" else value
        made = game(
            nn.Linear(2, 2), **{name: value} | ({"beta": 1.25} if name == "alpha" else {}) | BESIDE.get(name, {})
        )
        assert getattr(made, name) == value != default


BESIDE = {  # what a keyword asks for, so that it is not idle
    "beta": {"alpha": 2.25},
    "risk": {"input_variance": 1.0},
    "attention_risk": {"input_variance": 1.0},
    "attention_score": {"attention_risk": -1.0, "input_variance": 1.0},
    "gate_noise": {"gate": "noisy"},
    "risk_forward": {"risk": -1.0, "input_variance": 1.0},
}


@pytest.mark.parametrize("game", GAMES)
def test_every_keyword_is_explained(game):
    """In the help of the class, in the command line's list, and never by a number of the specification alone."""
    for name in keywords(game):
        assert f"`{name}`" in game.__doc__, name
        assert len(game.modes_type.accepts()[name].note) > 2, name
    assert not re.search(r"\b(of|in|see|variants?|as) S\d", game.__doc__)


@pytest.mark.parametrize("game", GAMES)
def test_unknown_keyword(game):
    """A keyword that is none gets the nearest that is one."""
    with pytest.raises(ValueError, match=r"unknown keyword 'gat_noise'.*did you mean gate_noise") as caught:
        game(nn.Linear(2, 2), gat_noise=1.0)
    assert isinstance(caught.value, bp.BackplayError)


def test_help_never_cites_a_number_alone():
    """A number of the specification stands beside what it means, nowhere in its place."""
    for name in bp.__all__:
        thing = getattr(bp, name)
        members = [m for n, m in vars(thing).items() if not n.startswith("_")] if inspect.isclass(thing) else []
        for text in filter(None, (inspect.getdoc(each) for each in [thing, *members])):
            assert not re.search(r"\b(of|in|by|see|from|as|with|and) S\d", text), f"{name}: {text}"
