"""Games as values: sweeps, presets, replacement, dicts and reprs."""

import itertools
import json
import weakref

import pytest
import torch
from torch import nn

import backplay as bp
import hand
from backplay import zoo
from backplay.kernels import prepared
from backplay.values.forward import Values
from backplay.values.moments import Moments
from closeness import assert_near

pytestmark = pytest.mark.usefixtures("without_gradients")


def images(batch=2, size=16, dtype=torch.float64):
    return torch.randn(batch, 3, size, size, dtype=dtype)


def convnet():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip
    return model.double().eval()


class Tokens(nn.Module):
    """Patches of an image into one attention."""

    def __init__(self):
        super().__init__()
        self.patch, self.inner = nn.Conv2d(3, 3, 8, stride=8), hand.Attention(True, tokens=4)

    def forward(self, x):
        return self.inner(self.patch(x).flatten(2).transpose(1, 2))


class TestSweep:
    """`bp.sweep` plays a grid on one capture."""

    @pytest.mark.parametrize(
        "grid",
        [
            {"tau": [0.5, 1.0, 2.0], "risk": [0.0, -1.0]},
            {"input_variance": [0.1, 0.5], "risk": [-1.0, 0.5], "risk_forward": [False, True]},
            {"tau_forward": [False, True], "tau": [0.5, 1.0], "entropy_bias": [0.0, 0.2]},
            {"gate": ["exact", "noisy"], "epsilon": [0.0, 0.5]},
        ],
    )
    def test_equals_game_by_game(self, grid):
        """Issue 4: sharing passes changes no number; keys are (keyword, value) in the grid's order."""
        model, x = convnet(), images()
        game = bp.RoutingGame(model, input_variance=0.3)
        found = bp.sweep(game, x, [1, 2], **grid)
        points = [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        assert list(found) == points
        for point in points:
            torch.testing.assert_close(
                found[point], game.replace(**dict(point)).attribute(x, [1, 2]), rtol=1e-12, atol=1e-14
            )
        first, last = found[points[0]], found[points[-1]]
        assert (first - last).abs().max() > 1e-6

    def test_attention_and_stopping(self):
        """The same on a transformer and in the Stopping Game."""
        model, x = Tokens().double().eval(), images()
        game = bp.RoutingGame(model, input_variance=0.5)
        for point, found in bp.sweep(game, x, 0, attention_risk=[0.0, -5.0], attention_score=["key", "logit"]).items():
            torch.testing.assert_close(found, game.replace(**dict(point)).attribute(x, 0), rtol=1e-12, atol=1e-14)
        game = bp.StoppingGame(convnet(), input_variance=0.5)
        for point, found in bp.sweep(game, x, 0, risk=[0.0, -1.0], multiply_by_input=[False, True]).items():
            torch.testing.assert_close(found, game.replace(**dict(point)).attribute(x, 0), rtol=1e-12, atol=1e-14)
        soft = bp.sweep(game, x, 0, softplus=[None, 0.5])
        torch.testing.assert_close(soft[(("softplus", None),)], game.attribute(x, 0), rtol=1e-12, atol=1e-14)
        assert (soft[(("softplus", None),)] - soft[(("softplus", 0.5),)]).abs().max() > 1e-6

    def test_own_target(self):
        """Without a target each point explains the argmax."""
        model, x = convnet(), images()
        game = bp.RoutingGame(model)
        (found,) = bp.sweep(game, x, tau=[0.5]).values()
        torch.testing.assert_close(found, game.replace(tau=0.5).attribute(x, model(x).argmax(1)), rtol=1e-12, atol=0)

    def test_one_class_over_the_grid(self):
        """api.md: the target is the model's largest logit, also where a mode changes the game's own forward pass."""
        model, x = convnet(), images(6)
        game, chosen = bp.StoppingGame(model, input_variance=4.0), model(x).argmax(1)
        found = bp.sweep(game, x, risk=[-3.0, 0.0, 3.0])
        for point, heat in found.items():
            changed = game.replace(**dict(point))
            torch.testing.assert_close(heat, changed.attribute(x, chosen), rtol=1e-12, atol=0)
        deformed = [game.replace(risk=risk).play(x, 0).solved.logits.argmax(1) for risk in (-3.0, 3.0)]
        assert any((own != chosen).any() for own in deformed), "a game would have answered otherwise"

    @pytest.mark.parametrize(
        "game, modes, grid, passes, filtered",
        [
            (bp.RoutingGame, {"risk": -1.0, "risk_forward": True}, {"tau": [0.3, 0.5, 0.7, 1.0, 2.0, 5.0]}, 1, 1),
            (bp.StoppingGame, {"risk": -1.0}, {"gate": ["exact", "noisy"], "multiply_by_input": [False, True]}, 1, 1),
            (bp.StoppingGame, {}, {"softplus": [None, 0.5], "multiply_by_input": [False, True]}, 2, 0),
            (bp.RoutingGame, {"risk": -1.0}, {"tau": [0.5, 1.0], "input_variance": [0.1, 0.2]}, 1, 2),
            (bp.RoutingGame, {"tau_forward": True}, {"alpha": [1.0, 2.0], "tau": [0.5, 0.7, 1.0]}, 3, 0),
            (bp.RoutingGame, {"tau": 0.5, "risk": -1.0}, {"input_variance": [0.1, 0.2], "tau_forward": [False, True],
                                                         "gate": ["exact", "noisy"]}, 2, 4),
        ],
    )  # fmt: skip
    @pytest.mark.filterwarnings("ignore:alpha - beta")
    def test_passes_are_shared(self, monkeypatch, game, modes, grid, passes, filtered):
        """Issue 4: a sweep makes every forward pass and moment pass that differs once, and keeps one of each."""
        made, alive = [], []
        for kind in (Values, Moments):
            begin = kind.__init__

            def count(self, *given, begin=begin, **more):
                made.append(type(self))
                if isinstance(self, Values):
                    assert all(last() is None for last in alive), "the last pass is gone before the next begins"
                    alive.append(weakref.ref(self))
                begin(self, *given, **more)

            monkeypatch.setattr(kind, "__init__", count)
        model, x = convnet(), images()
        start = game(model, **{"input_variance": 0.3, **modes})
        found = bp.sweep(start, x, 0, **grid)
        assert (made.count(Values), made.count(Moments)) == (passes, filtered)
        monkeypatch.undo()
        for point, heat in found.items():
            torch.testing.assert_close(heat, start.replace(**dict(point)).attribute(x, 0), rtol=1e-12, atol=1e-14)

    def test_powers_are_written_over(self, monkeypatch):
        """One pair of buffers serves all temperatures of a sweep; what other plays hold is left as it is."""
        model, x = convnet(), images()
        game = bp.RoutingGame(model, tau=0.7)
        play = game.play(x, 0)
        apart, buffers, made = game.replace(tau=0.3).attribute(x, 0), [], prepared._tempered
        game.attribute(x, 0)  # its own temperature is the latest again

        def watch(weight, rows, tau, first, second, parts):
            buffers.append((weight.shape, tau, first.data_ptr(), second.data_ptr()))
            made(weight, rows, tau, first, second, parts)

        monkeypatch.setattr(prepared, "_tempered", watch)
        found = bp.sweep(game, x, 0, tau=[0.7, 0.3, 2.0, 5.0])
        assert {tau for _, tau, _, _ in buffers} == {0.3, 2.0, 5.0}, "what the game has prepared is used"
        assert len({(shape, first, second) for shape, _, first, second in buffers}) == 3 == len(buffers) / 3
        buffers.clear()
        torch.testing.assert_close(play.marginal(), game.play(x, 0).marginal())
        assert not buffers, "the game's own powers are still at hand"
        bp.sweep(game, x, 0, epsilon=[0.1, 0.5], tau=[0.3, 2.0])
        assert len(buffers) == 2 * 3, "each temperature's once, in whatever order the grid names it"
        torch.testing.assert_close(found[(("tau", 0.3),)], apart)

    @pytest.mark.parametrize("grid", [{}, {"tau": 0.5}, {"tau": []}, {"gate": "noisy"}, {"heat": [1]}, {"tau": [0.0]}])
    def test_refusals(self, grid):
        """A grid is lists of allowed values of known keywords."""
        with pytest.raises(ValueError, match=next(iter(grid), "keyword")):
            bp.sweep(bp.RoutingGame(convnet()), images(), 0, **grid)


class TestOwnAnswer:
    """api.md: `target=None` is the class that the model itself names, by every door and in every mode."""

    @pytest.mark.parametrize(
        "game, keywords",
        [
            (bp.StoppingGame, {"risk": -2.0, "input_variance": 1.0}),
            (bp.StoppingGame, {"softplus": 5.0}),
            (bp.RoutingGame, {"risk": -2.0, "input_variance": 1.0, "risk_forward": True}),
            (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}),
        ],
    )
    def test_modes_that_change_the_forward_pass(self, game, keywords):
        """Each of them names another class than the network for most of these pictures."""
        model, x = zoo.load("vgg"), zoo.images(4).x
        changed, chosen = game(model, **keywords), model(x).argmax(1)
        play = changed.play(x)
        assert (play.solved.logits.argmax(1) != chosen).any()
        assert torch.equal(play.target, chosen) and torch.equal(changed.targets(x)[:, 0], chosen)
        assert torch.equal(play.value, play.solved.logits.gather(1, chosen[:, None])[:, 0])
        assert_near(changed.attribute(x), changed.attribute(x, chosen), 1e-5)

    def test_presets(self):
        """A preset explains the class that `bp.explain` explains."""
        model, x = zoo.load("vgg"), zoo.images(2).x
        preset = bp.preset("sg-vgg-localise")
        assert_near(preset(model).attribute(x), bp.explain(model, x, method="sg", **preset.keywords), 1e-5)

    def test_no_second_forward_pass(self, monkeypatch):
        """Where nothing is deformed the pass at hand knows the answer."""
        game, x = bp.RoutingGame(convnet()), images()
        game.network(x)
        monkeypatch.setattr(bp.Network, "model_logits", None)
        assert game.attribute(x).any()


# Rows of the paper's tables under their labels: the architecture, and each game with the modes printed beside it.
# RG at its defaults is the anchor that heads every block; two random copies are compared under both games as they are.
PAPER = {
    "tab:eval-vit": ("vit", [
        (bp.RoutingGame, {}),
        (bp.RoutingGame, {"tau": 0.5, "attention_risk": -10.0, "input_variance": 2.0}),
        (bp.RoutingGame, {"n": 50}),
        (bp.RoutingGame, {"tau": 0.5, "n": 50}),
    ]),
    "tab:eval-vgg16": ("vgg", [
        (bp.StoppingGame, {"risk": -2.0, "input_variance": 1.0, "gate": "noisy"}),
        (bp.RoutingGame, {}),
        (bp.RoutingGame, {"risk": -1.0, "input_variance": 10.0}),
    ]),
    "tab:vit-duals": ("vit", [
        (bp.RoutingGame, {"tau": 1.0}), (bp.RoutingGame, {"tau": 0.7}), (bp.RoutingGame, {"tau": 0.5}),  # (a)
    ]),
    "tab:vgg-lent-tau08": ("vgg", [
        (bp.RoutingGame, {"tau": 0.8, "entropy_bias": 0.2}), (bp.RoutingGame, {"tau": 0.8, "entropy_bias": 0.3}),
    ]),
    "tab:eval-vit-voc": ("vit", [
        (bp.RoutingGame, {}),
        (bp.RoutingGame, {"tau": 0.5, "risk": -1.0, "attention_risk": -10.0, "input_variance": 2.0}),  # σ²: the text's
    ]),
    "tab:baselines-resnet50": ("resnet", [
        (bp.RoutingGame, {}), (bp.RoutingGame, {"tau": 0.5, "epsilon": 1.0}),
        (bp.RoutingGame, {"tau": 0.7, "epsilon": 1.0}), (bp.RoutingGame, {"epsilon": 1.0}),
    ]),
    "tab:sweeps-resnet-rg": ("resnet", [(bp.RoutingGame, {"risk": -1.0, "input_variance": 10.0})]),  # (b)
    "tab:double-random-hellinger": ("any", [(bp.StoppingGame, {}), (bp.RoutingGame, {})]),
}  # fmt: skip


class TestPresets:
    """The paper's selected modes by name."""

    @pytest.mark.parametrize("build", [convnet, Tokens])
    def test_build_and_play(self, build):
        """Issue 4: each preset builds and plays, and names the table it comes from."""
        model, x = build().double().eval(), images(1)
        network = bp.capture(model, torch.cat([x, x]))
        assert {"rg-anchor", "rg-vit-localise", "rg-vgg-localise", "sg-vgg-localise", "rg-eq"} <= set(bp.presets)
        seen = {}
        for name in bp.presets:
            preset = bp.preset(name)
            if preset.architecture in ("any", "vgg" if build is convnet else "vit"):
                found = preset(network).attribute(x, 0)
            else:
                game = preset(network)
                with pytest.warns(UserWarning, match=f"selected on {preset.architecture}") as said:
                    found = game.attribute(x, 0)
                assert len(said) == 1 and preset.purpose in str(said[0].message) and str(said[0].message).isprintable()
                assert torch.equal(game.attribute(x, 0), found), "it warns once"
            assert found.shape == x.shape and torch.isfinite(found).all() and found.any()
            assert bp.presets[name].table.startswith("tab:")
            seen[name] = found
        torch.testing.assert_close(seen["rg-anchor"], bp.RoutingGame(network).attribute(x, 0))
        torch.testing.assert_close(seen["sg"], bp.StoppingGame(network).attribute(x, 0))

    @pytest.mark.parametrize("name", bp.presets)
    def test_the_paper_s_rows(self, name):
        """Each preset is a row of the table that it names, for the architecture it names."""
        preset = bp.preset(name)
        printed = {**preset.keywords, **({"n": preset.reynolds["n"]} if preset.reynolds else {})}
        architecture, rows = PAPER[preset.table]
        assert (preset.game, printed) in rows
        assert preset.architecture in (architecture, "any")

    def test_unknown(self):
        """An unknown name is refused, and the known ones are named."""
        with pytest.raises(bp.BackplayError, match="did you mean rg-anchor"):
            bp.preset("rg-achor")
        for name in (["rg-anchor"], None):
            with pytest.raises(bp.BackplayError, match="no preset named"):
                bp.preset(name)


CHANGED = {
    bp.RoutingGame: {
        "alpha": 1.5, "beta": 0.5, "epsilon": 0.1, "tau": 0.5, "risk": -1.0, "input_variance": 0.2,
        "attention_risk": -2.0, "attention_score": "logit", "entropy_bias": 0.1, "gate": "noisy", "gate_noise": 0.7,
        "residual": "proportional", "bias": "absorb", "empty_stream": "reroute",
        "tau_forward": True, "risk_forward": False, "output": "one",
    },
    bp.StoppingGame: {
        "risk": 0.5, "input_variance": 0.2, "entropy_bias": 0.1, "gate": "noisy", "gate_noise": 0.7,
        "residual": "proportional", "multiply_by_input": True,
    },
}  # fmt: skip


class TestKeywords:
    """`replace`, `to_dict`, `repr`."""

    @pytest.mark.parametrize("game", CHANGED)
    def test_round_trip(self, game):
        """api.md: every keyword goes through a plain dict, and through JSON."""
        model = convnet()
        one = game(model, **CHANGED[game])
        plain = json.loads(json.dumps(one.to_dict()))
        assert {k: plain[k] for k in CHANGED[game]} == CHANGED[game]
        assert set(plain) - set(CHANGED[game]) <= {"softplus", "attention"}
        again = game(model, **plain)
        assert again.to_dict() == one.to_dict() and repr(again) == repr(one)
        assert game(model).to_dict() != plain

    @pytest.mark.parametrize(
        "game, keywords, words",
        [
            (
                bp.RoutingGame,
                {"attention": "gradient", "attention_risk": -1.0, "input_variance": 1.0},
                "attention_risk",
            ),
            (bp.RoutingGame, {"attention": "gradient", "attention_score": "logit"}, "attention_score"),
            (bp.RoutingGame, {"gate_noise": 0.5}, "gate_noise"),
            (bp.StoppingGame, {"gate_noise": 0.5}, "gate_noise"),
        ],
    )
    def test_idle_keywords_are_refused(self, game, keywords, words):
        """A keyword that cannot act beside the others is refused in one line, by `replace` and in grids too."""
        for make in (lambda **k: game(convnet(), **k), game(convnet()).replace):
            with pytest.raises(ValueError, match=f"{words}=.* is idle with") as caught:
                make(**keywords)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["risk", "attention_risk"])
    def test_risk_without_noise_warns_once(self, name):
        """λ at σ² = 0 is the plain game (S20): a point of grids, and a slip of who forgot the variance."""
        model, x = convnet(), images()
        with pytest.warns(UserWarning, match=f"{name}=-1.0 is idle while input_variance is 0"):
            game = bp.RoutingGame(model, **{name: -1.0})
        assert_near(game.replace(tau=0.9).attribute(x, 0), bp.RoutingGame(model, tau=0.9).attribute(x, 0))

    def test_attention_keyword_goes_through_a_dict(self):
        """api.md: the one that stands alone."""
        assert bp.RoutingGame(convnet(), attention="gradient").to_dict()["attention"] == "gradient"

    def test_documented_defaults(self):
        """api.md: the defaults are those written there."""
        assert bp.RoutingGame(convnet()).to_dict() == {
            "alpha": 2.0, "beta": 1.0, "epsilon": 0.5, "tau": 1.0, "risk": 0.0, "input_variance": 0.0,
            "attention_risk": 0.0, "attention_score": "key", "entropy_bias": 0.0, "gate": "exact", "gate_noise": 1.0,
            "residual": "uniform", "bias": "ignore", "empty_stream": "cemetery", "attention": "value",
            "tau_forward": False, "risk_forward": False, "output": "logit",
        }  # fmt: skip
        assert bp.StoppingGame(convnet()).to_dict() == {
            "risk": 0.0, "input_variance": 0.0, "entropy_bias": 0.0, "gate": "exact", "gate_noise": 1.0,
            "softplus": None, "residual": "uniform", "multiply_by_input": False,
        }  # fmt: skip

    def test_replace_keeps_the_capture(self):
        """api.md: a new game on the same capture, before and after the first play; the old game is as it was."""
        x = images()
        game = bp.RoutingGame(convnet())
        early = game.replace(tau=0.5)
        assert early.tau == 0.5 and game.tau == 1.0
        before, network = game.attribute(x, 0), game.play(x, 0).network
        assert early.play(x, 0).network is network
        assert game.replace(risk=-1.0, input_variance=0.1).play(x, 0).network is network
        fresh = bp.RoutingGame(network.model, tau=0.5).attribute(x, 0)
        torch.testing.assert_close(early.attribute(x, 0), fresh)
        torch.testing.assert_close(game.attribute(x, 0), before)
        assert (fresh - before).abs().max() > 1e-6

    def test_frozen(self):
        """api.md: all keywords are frozen in the game."""
        game = bp.RoutingGame(convnet())
        with pytest.raises(AttributeError, match="replace"):
            game.tau = 0.5
        assert game.tau == 1.0
        with pytest.raises(ValueError, match="heat"):
            game.replace(heat=1)

    def test_repr_reads_like_the_call(self):
        """Issue 4: class, model and the keywords that differ; evaluated with the model in scope it is the same game."""
        game = bp.RoutingGame(convnet(), tau=0.5, gate="noisy", attention_risk=-10.0, input_variance=2.0)
        words = repr(game)
        assert words.startswith("RoutingGame(Sequential, ") and words.endswith(")")
        again = eval(words, {"RoutingGame": bp.RoutingGame, "Sequential": game.network(images()).model})
        assert again.to_dict() == game.to_dict()
        assert repr(bp.StoppingGame(convnet(), softplus=0.5)) == "StoppingGame(Sequential, softplus=0.5)"
        assert repr(bp.RoutingGame(convnet())) == "RoutingGame(Sequential)"
