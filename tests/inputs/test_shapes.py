"""One game plays every input shape, and any batch size in one call."""

import io
import time

import pytest
import torch
from torch import nn

import backplay as bp
from backplay import progress
from backplay.games import batches
from backplay.network import captures
from closeness import assert_near

pytestmark = pytest.mark.capture

F64 = torch.float64


class Pool(nn.Module):
    """Images of any size and texts of any length: convolution, mean, head."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


@pytest.fixture
def counted(monkeypatch):
    """How many captures were made."""
    found = []

    def counting(model, given):
        found.append(tuple(given.x.shape[1:]))
        return bp.capture(model, given)

    monkeypatch.setattr(captures, "capture", counting)
    return found


def image(side, batch=2):
    return torch.randn(batch, 3, side, side + 1, generator=torch.Generator().manual_seed(side), dtype=F64)


def gradient(model, x, target=0):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x)[:, target].sum(), x)[0]


def test_one_game_plays_every_shape(counted):
    """A new shape is captured once; those that were played before are at hand, the last few of them."""
    model = Pool().double().eval()
    game = bp.StoppingGame(model)
    for side in (5, 6, 7, 6, 5, 7):
        assert_near(game.attribute(image(side), 0), gradient(model, image(side)))
    assert len(counted) == 3
    assert game.replace(entropy_bias=0.0).attribute(image(6), 0).shape == (2, 3, 6, 7)
    assert len(counted) == 3, "games that come of one another share their captures"
    for side in range(5, 5 + captures.KEPT + 1):
        game.attribute(image(side), 0)
    assert len(counted) == captures.KEPT + 1
    game.attribute(image(5 + captures.KEPT), 0)
    assert len(counted) == captures.KEPT + 1
    game.attribute(image(5), 0)
    assert len(counted) == captures.KEPT + 2, "the one that was used longest ago has gone"


def test_methods_play_every_shape(counted):
    """`explain` in a loop over shapes captures each once, for every method."""
    model = Pool().double().eval()
    for method in ("sg", "lrp_epsilon", "gradient", "gradcam"):
        for side in (5, 6, 5):
            assert bp.explain(model, image(side), 0, method=method).shape[2:] == (side, side + 1)
    assert counted == [(3, 5, 6), (3, 6, 7)]


def test_only_the_latest_capture_holds_prepared_weights():
    """What is derived from the weights is as large as they are."""
    game = bp.RoutingGame(Pool().double().eval(), tau=0.7)
    first, second = (game.play(image(side), 0).network for side in (5, 6))
    assert first is not second
    assert first._weights is None and second.weights().nbytes() > 0
    play = game.play(image(5), 0)
    game.play(image(6), 0)
    assert play.marginal("input").shape == (2, 3, 5, 6), "a play keeps what it was solved with"


def test_unbatched_input_is_still_refused():
    """One sample without its batch dimension is no new shape; what the model cannot take is said by it."""
    model = Pool().double().eval()
    for game in (bp.StoppingGame(model), bp.Explainer(model, "gradient")):
        game.attribute(image(5), 0)
        with pytest.raises(ValueError, match=r"x\[None\]"):
            game.attribute(image(5)[0], 0)
    with pytest.raises(bp.BackplayError, match="itself fails"):
        bp.StoppingGame(model).attribute(torch.randn(2, 4, 5, 5, dtype=F64), 0)


# batches --------------------------------------------------------------------------------------------
METHODS = "gradient smoothgrad integrated_gradients deeplift sg rg rg_eq lrp_epsilon gradcam lime kernel_shap"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.split())
def test_parts_of_a_batch_are_the_batch(method):
    """Results do not depend on how a batch is split; targets go with their samples."""
    model, x = Pool().double().eval(), image(6, batch=5)
    params = {"lime": {"n": 8}, "kernel_shap": {"n": 8}, "rg_eq": {"n": 2}, "smoothgrad": {"n": 3}}.get(method, {})
    targets = [
        [0, 1, 2, 1, 0],
        torch.tensor([2, 1, 0, 0, 1]),
        None,
        1,
        torch.randn(5, 3, dtype=F64),
        torch.randn(3, dtype=F64),
    ]
    for target in targets[:2] if method in params else targets:
        whole = bp.explain(model, x, target, method=method, internal_batch_size=5, **params)
        for size in (1, 2):
            parts = bp.explain(model, x, target, method=method, internal_batch_size=size, **params)
            assert_near(parts, whole, 1e-9, what=f"{method}, {size} at a time")


def test_games_split_batches():
    """Maps and convergence deltas, in any parts; a play is whole."""
    model, x = Pool().double().eval(), image(6, batch=5)
    for game in (bp.StoppingGame(model), bp.RoutingGame(model, tau=0.7), bp.Reynolds(bp.RoutingGame(model), n=3)):
        whole = game.attribute(x, [0, 1, 2, 1, 0], internal_batch_size=5)
        assert_near(game.attribute(x, [0, 1, 2, 1, 0], internal_batch_size=2), whole)
        assert_near(game.attribute(x, [0, 1, 2, 1, 0]), whole)
    maps, delta = bp.RoutingGame(model).attribute(x, 1, return_convergence_delta=True, internal_batch_size=2)
    assert_near(delta, maps.flatten(1).sum(1) - model(x)[:, 1])


def test_samples_at_once_are_as_many_as_memory_likes(monkeypatch):
    """None leaves it to the network; small networks take large batches whole."""
    seen = []
    plain = batches._parts
    monkeypatch.setattr(batches, "_parts", lambda n, g, size: seen.append(size) or plain(n, g, size))
    model = Pool().eval()
    bp.StoppingGame(model).attribute(torch.randn(40, 3, 6, 6), 0)
    assert not seen
    monkeypatch.setattr("backplay.network.graph._LARGE", 3 * 4 * 4 * 36)  # three samples of the largest value
    bp.StoppingGame(model).attribute(torch.randn(8, 3, 6, 6), 0)
    assert bp.explain(model, torch.randn(8, 3, 6, 6), 0, method="gradient").shape == (8, 3, 6, 6)
    assert seen == [3, 3]


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "4"])
def test_bad_sizes(size):
    """A number of samples, or None."""
    model = Pool().eval()
    for game in (bp.StoppingGame(model), bp.Explainer(model, "gradient"), bp.Reynolds(bp.StoppingGame(model))):
        with pytest.raises(ValueError, match="internal_batch_size"):
            game.attribute(torch.randn(2, 3, 6, 6), 0, internal_batch_size=size)


def test_targets_of_another_number_than_the_samples():
    """The whole batch is what targets are counted against, not its parts."""
    model, x = Pool().double().eval(), image(6, batch=4)
    for target in ([0, 1], torch.tensor([0, 1, 2])):
        with pytest.raises(ValueError, match=f"{len(target)} targets for 4 samples"):
            bp.StoppingGame(model).attribute(x, target, internal_batch_size=2)


def test_progress_after_two_seconds(monkeypatch, capsys):
    """One line on a terminal, for those who wait; nothing else."""
    model, x = Pool().double().eval(), image(6, batch=4)
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    bp.StoppingGame(model).attribute(x, 0, internal_batch_size=1)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    bp.StoppingGame(model).attribute(x, 0, internal_batch_size=1)
    assert terminal.getvalue() == "", "no terminal, then too short for anybody to ask"
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_TICK", 0.01)
    parts, played = iter(range(4)), bp.StoppingGame.values

    def slowly(*args):  # until a person could have read how far it is
        told, until = f"playing {next(parts)}/4", time.monotonic() + 10
        while told not in terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        return played(*args)

    monkeypatch.setattr(bp.StoppingGame, "values", slowly)
    bp.StoppingGame(model).attribute(x, 0, internal_batch_size=1)
    found = terminal.getvalue()
    assert all(f"\r\x1b[Kplaying {k}/4 … " in found for k in range(4)) and found.endswith("\r\x1b[K")
    assert capsys.readouterr().out == ""
