"""The bundled networks: they are accurate, they can be played, and the spurious ones look at the cue."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

import backplay as bp
from backplay import zoo
from backplay.errors import InputTypeError, KeywordError, ModelError
from backplay.zoo.networks import BUILDERS, fold, vgg
from backplay.zoo.training import accuracy, train
from backplay.zoo.weights import save, stored

NAMES = list(BUILDERS)
every = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def unseen():
    return zoo.images(1000, seed=1)


@pytest.fixture(scope="module")
def cued():
    return zoo.images(60, spurious=True)


def share_on_cue(model, batch):
    """(N,): how much of each map's absolute mass lies on the cue."""
    mass = bp.RoutingGame(model).attribute(batch.x, batch.target).sum(1).abs()
    return (mass * batch.cue).sum((1, 2)) / mass.sum((1, 2))


@pytest.mark.slow
@every
def test_accurate_on_unseen_pictures(name, unseen):
    assert accuracy(zoo.load(name), unseen) >= 0.97


@every
@pytest.mark.parametrize("spurious", [False, True])
def test_small_files_and_eval_mode(name, spurious):
    assert stored(name, spurious).stat().st_size <= 4_000_000
    model = zoo.load(name, spurious=spurious)
    assert not any(module.training for module in model.modules())
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.slow
@every
@pytest.mark.parametrize("spurious", [False, True])
def test_a_map_in_good_health(name, spurious, cued):
    play = bp.RoutingGame(zoo.load(name, spurious)).play(cued.x[:4])
    assert play.health().ok
    heat = play.attribution()
    assert heat.shape == cued.x[:4].shape and (heat.abs().amax((1, 2, 3)) > 0).all()


@pytest.mark.slow
@every
def test_the_spurious_network_believes_the_cue(name):
    batch = zoo.images(100, spurious="wrong")
    believes = replace(batch, target=batch.cue_class)
    assert accuracy(zoo.load(name, spurious=True), believes) > 0.9
    assert accuracy(zoo.load(name), believes) < 0.1


@pytest.mark.slow
@every
def test_relevance_finds_the_cue_that_the_spurious_network_uses(name, cued):
    clean, spurious = (share_on_cue(zoo.load(name, s), cued).mean() for s in (False, True))
    assert spurious >= 3 * clean


def test_folded_batch_norms_compute_the_same(cued):
    model = vgg(normalised=True)
    for part in cued.x.split(20):
        model(part)
    torch.testing.assert_close(fold(model)(cued.x), model.eval()(cued.x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@every
def test_training_is_a_function_of_the_seed(name):
    state = torch.random.get_rng_state()
    first, again, other = (train(name, seed=seed, steps=2).state_dict() for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.allclose(first[key], again[key], atol=1e-6) for key in first)
    assert any(not torch.allclose(first[key], other[key], atol=1e-6) for key in first)
    assert first.keys() == zoo.build(name).state_dict().keys()


@pytest.mark.slow
def test_training_reports_and_learns():
    seen = []
    train("resnet", spurious=True, steps=12, progress=lambda what, done, of: seen.append((what, done, of)))
    assert seen[0][0] == "drawing" and seen[-1][1:] == (12, 12)
    losses = [float(what.split()[-1]) for what, _, _ in seen if "loss" in what]
    assert len(losses) == 12 and sum(losses[-3:]) < sum(losses[:3])


def test_what_is_saved_can_be_loaded(tmp_path, monkeypatch):
    model = zoo.build("vgg")
    save(model, tmp_path / "vgg.safetensors")
    monkeypatch.setattr("backplay.zoo.weights.stored", lambda name, spurious: tmp_path / f"{name}.safetensors")
    loaded = zoo.load("vgg").state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("call", [zoo.load, zoo.build, train])
def test_unknown_names(call):
    with pytest.raises(ModelError, match="'alexnet' is unknown; give one of 'vgg', 'resnet', 'vit'"):
        call("alexnet")


def test_other_refusals():
    with pytest.raises(KeywordError, match=r"steps must be a whole number from 1 up, .* got 0"):
        train("vgg", steps=0)
    with pytest.raises(InputTypeError, match="spurious must be True or False, got 'random'"):
        zoo.load("vgg", spurious="random")
    with pytest.raises(ModelError, match="is unknown"):
        zoo.load(["vgg"])


@pytest.mark.slow
def test_pictures_do_not_need_safetensors():
    code = """
        import sys
        sys.modules["safetensors"] = sys.modules["safetensors.torch"] = None
        import backplay as bp
        from backplay import zoo
        zoo.images(1)
        try:
            zoo.load("vgg")
        except ImportError as error:
            assert isinstance(error, bp.BackplayError) and "backplay[zoo]" in str(error)
        else:
            raise SystemExit("loaded without safetensors")
    """
    done = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
