"""Every family of the catalogue plays both games, or is refused for a reason that lies in the mathematics.

Health (S38), the gradient of S9, maps, distances, walks drawn from the kernels (S32) and other batch sizes.
"""

import warnings

import pytest
import torch

import backplay as bp
from architectures.catalogue import CATALOGUE
from architectures.detached import gradient
from closeness import array, assert_near
from families import prepared
from networks import calibrate
from series import series

pytestmark = pytest.mark.capture

# convolutions, gates that multiply, attention beside convolutions, texts, and samples that do not lie first
FEW = ("starnet", "convmixer", "gmlp", "botnet", "pit", "qwen3", "gpt2 classifier", "modernbert", "sequence first")
PLAYED = series(
    [name for name, a in CATALOGUE.items() if not a.refused], FEW, [name for name, a in CATALOGUE.items() if a.slow]
)
REFUSED = [name for name, a in CATALOGUE.items() if a.refused]


def built(name):
    """Model and input, two samples."""
    torch.manual_seed(1)
    architecture = CATALOGUE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries have to say about small settings
        model = prepared(architecture.build())
    x = architecture.inputs(2)
    if isinstance(x, torch.Tensor):
        calibrate(model, architecture.inputs(8))
    return model, x


def captured(model, x):
    """The network and the program that it was made from."""
    programs, export = [], torch.export.export

    def keep(*args, **kwargs):
        programs.append(export(*args, **kwargs))
        return programs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.export, "export", keep)
        network = bp.capture(model, x)
    return network, programs[-1]


def without_mutations(program):
    """The same program, functional."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions({})


def explained(x):
    """The position of the input that is explained, and that input."""
    if isinstance(x, torch.Tensor):
        return 0, x
    position = next(k for k, v in enumerate(x.values()) if v.is_floating_point())
    return position, list(x.values())[position]


def one(x):
    """The first sample alone; what is not the batch's stays."""
    if isinstance(x, torch.Tensor):
        return x[:1]
    return {k: v[:1] if len(v) == 2 else v for k, v in x.items()}


def picked(target):
    """The target's logit of each sample."""

    def pick(logits):
        if isinstance(target, tuple):
            return logits[(slice(None), *target)]
        last = logits[:, -1] if logits.ndim == 3 else logits
        return last[torch.arange(len(last)), torch.tensor(target)]

    return pick


@pytest.mark.parametrize("name", PLAYED)
def test_plays(name):
    """Both games are sound, maps are alive, samples stand alone, and the Stopping map is the gradient of S9."""
    architecture, (model, x) = CATALOGUE[name], built(name)
    network, program = captured(model, x)
    position, source = explained(x)
    for game in (bp.StoppingGame(network), bp.RoutingGame(network)):
        examine(game, x, source, architecture)
    if architecture.gradient:
        inputs = [x] if isinstance(x, torch.Tensor) else list(x.values())
        program = without_mutations(program) if architecture.rewrites else program
        expected = gradient(program, inputs, position, picked(architecture.target))
        assert_near(
            bp.StoppingGame(network).attribute(x, architecture.target), expected, architecture.relative, what="gradient"
        )


def examine(game, x, source, architecture):
    """What holds for every play."""
    target = architecture.target
    first = target[:1] if isinstance(target, list) else target
    play = game.play(x, target)
    health = play.health()
    assert health.ok and health.mass_error < 1e-6, health
    found = play.attribution()
    assert found.shape == source.shape and bool(found.isfinite().all()) and bool(found.any())
    mass = array(play.marginal("input")).reshape(2, -1).sum(1) + array(play.constant) + array(play.cemetery)
    assert_near(mass, [1.0, 1.0], 1e-6, what="mass of the walk")
    assert_near(game.attribute(one(x), first), found[:1], 1e-6, what="one sample")
    distance = bp.hellinger(play, game.play(other(x), target)).distance
    assert bool(distance.isfinite().all()) and bool((distance > 0).all()), distance
    walks = play.sample(50)
    assert walks.frequencies("input").shape == source.shape


def other(x):
    """Another input of the same shapes."""
    if isinstance(x, torch.Tensor):
        return x.flip(0) * 0.5 + 0.1
    return {k: v.flip(0) * 0.5 + 0.1 if v.is_floating_point() else v for k, v in x.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name):
    """What no game can play says so, in a sentence that names the reason."""
    model, x = built(name)
    with pytest.raises(bp.BackplayError, match=CATALOGUE[name].refused):
        bp.RoutingGame(model).attribute(x, CATALOGUE[name].target)
