"""What every method keeps: a batch is its samples, seeds fix draws, the model stays as it was."""

import copy

import pytest
import torch

import backplay as bp
from backplay import zoo
from closeness import assert_near
from nets import TARGETS, build
from portraits import mixed_modes, portrait, same

pytestmark = pytest.mark.capture

# fewer draws than by default, for speed
QUICK = {
    "smoothgrad": {"n": 5},
    "integrated_gradients": {"steps": 6},
    "dave": {"n": 3},
    "rg_eq": {"n": 3},
    "lime": {"n": 30, "segments": 8},
    "kernel_shap": {"n": 30, "segments": 8},
}
FITTING = [
    (name, net)
    for name, info in bp.methods().items()
    for net, kind in (("residual", "cnn"), ("vit", "transformer"))
    if kind in info.architectures
]
RANDOM = [name for name, info in bp.methods().items() if "seed" in info.params and name != "rg_eq"]


def ask(network, x, targets, name, **params):
    return bp.explain(network, x, targets, method=name, **QUICK.get(name, {}), **params)


@pytest.mark.parametrize("name, net", FITTING)
def test_batch_equals_one_by_one(name, net):
    """In any order and company; the map has the input's shape, or one channel."""
    case = build(net)
    together = ask(case.network, case.x, TARGETS, name)
    assert together.shape in (case.x.shape, (3, 1, *case.x.shape[2:]))
    assert together.abs().amax((1, 2, 3)).min() > 0
    assert not together.requires_grad and together.dtype == case.x.dtype
    order = [2, 0]
    moved = ask(case.network, case.x[order], [TARGETS[k] for k in order], name)
    assert_near(moved, together[order], 1e-9)
    assert_near(ask(case.network, case.x[1:2], TARGETS[1], name), together[1:2], 1e-9)


@pytest.mark.parametrize("name", RANDOM)
def test_seeds(name):
    """The same seed gives the same map, another one another; torch's own generator is left alone."""
    case = build("vit")
    state = torch.get_rng_state()
    maps = [ask(case.network, case.x[:1], TARGETS[0], name, seed=seed) for seed in (5, 5, 6)]
    assert_near(maps[1], maps[0], 1e-9)
    assert (maps[2] - maps[0]).abs().max() > 1e-6 * maps[0].abs().max()
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("arrange", [lambda m: m, mixed_modes], ids=["eval", "half in train mode"])
def test_model_untouched(arrange):
    """State, modes, hooks, gradients and attributes are what they were, and maps are those of eval mode."""
    case = build("residual")
    model = arrange(copy.deepcopy(case.model))
    before, x = portrait(model), case.x.clone().requires_grad_()
    network = bp.capture(model, x)
    for name, net in FITTING:
        if net == "residual":
            found = ask(network, x, TARGETS, name)
            assert_near(found, ask(case.network, case.x, TARGETS, name), 1e-9, what=name)
    same(before, portrait(model))
    assert x.grad is None and torch.equal(x.detach(), case.x)


class Named(torch.nn.Module):
    """A model that takes its image by name, beside a factor of the logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, factor):
        return self.model(pixel_values) * factor


@pytest.mark.slow
@pytest.mark.parametrize("net", ["residual", "vit"])
def test_images_by_name(net):
    """A dict of forward keywords gives every method the map of its image; what stands beside is each sample's own."""
    case = build(net)
    network = case.network
    factor = torch.tensor([[1], [1], [2]]).expand(3, network.output.shape[1])
    named = bp.capture(Named(case.model), {"pixel_values": case.x, "factor": factor})
    for name, kind in FITTING:
        if kind == net:
            found = ask(named, {"pixel_values": case.x, "factor": factor}, TARGETS, name)
            expected = ask(network, case.x, TARGETS, name)
            assert_near(found[:2], expected[:2], 1e-9, what=name)


def test_inference_mode():
    case = build("residual")
    with torch.inference_mode():
        maps = {name: ask(case.network, case.x.clone(), TARGETS, name) for name, net in FITTING if net == "residual"}
    for name, found in maps.items():
        assert_near(found, ask(case.network, case.x, TARGETS, name), 1e-9, what=name)


def test_fits():
    """Methods of one architecture refuse the other, the others take both."""
    for name, info in bp.methods().items():
        fits = {kind: info.fits(build(net).network) for net, kind in (("residual", "cnn"), ("vit", "transformer"))}
        assert {kind for kind, well in fits.items() if well} == set(info.architectures) & set(fits), name


class Words(torch.nn.Module):
    """Two inputs by name: no input can be guessed."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)

    def forward(self, inputs_embeds, attention_mask):
        return self.layer((inputs_embeds * attention_mask[..., None]).sum(1))


def test_fits_cannot_tell():
    """No answer is better than a wrong one: without an input there is no graph to look at."""
    info = bp.methods()["rg"]
    model = Words().eval()
    strange = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 38 * 38, 3))
    for unknown in (model, strange):
        with pytest.raises(ValueError, match=r"no input was found .* takes; capture it with an example"):
            info.fits(unknown)
    words = {"inputs_embeds": torch.randn(2, 5, 6), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    assert info.fits(bp.capture(model, words))
    bp.explain(model, words, 0)
    assert info.fits(model)  # it is known by now
    for nothing in (None, "vgg", torch.nn.Linear):
        with pytest.raises(TypeError, match=r"takes a torch.nn.Module, a backplay.Network or a loaded model, got"):
            info.fits(nothing)


class Branching(torch.nn.Module):
    """What torch.export cannot follow."""

    def forward(self, x):
        return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))


def test_fits_no_graph():
    assert not bp.methods()["rg"].fits(Branching())


@pytest.mark.parametrize("name, kind", [("vgg", "cnn"), ("resnet", "cnn"), ("vit", "transformer")])
def test_architectures_of_the_zoo(name, kind):
    """What a method is said to be for is what it fits: the zoo's transformer has a stem of convolutions."""
    network = bp.capture(zoo.load(name), zoo.images(2).x)
    for info in bp.methods().values():
        said = any(word in (kind, f"{kind} with feature maps") for word in info.architectures)
        assert info.fits(network) == said, info.name


def test_families():
    """In the order of the families, which are those of the paper's tables."""
    families = [info.family for info in bp.methods().values()]
    assert list(dict.fromkeys(families)) == ["gradient", "relevance", "cam and attention", "perturbation"]
    assert families == sorted(families, key=list(dict.fromkeys(families)).index)
    members = {name for name, info in bp.methods().items() if info.family == "cam and attention"}
    assert members == {"gradcam", "gradcam_pp", "layercam", "hirescam", "raw_attention", "rollout"}
    assert {bp.methods()[name].family for name in ("gae", "tibav", "rg", "rg_eq")} == {"relevance"}


def test_residual_sums_conserve_if_proportional():
    """As the README has it: the uniform split loses relevance even at ε = 0."""
    batch = zoo.images(2)
    game = bp.RoutingGame(zoo.load("resnet"), epsilon=0.0)
    for residual, conserved in (("uniform", False), ("proportional", True)):
        play = game.replace(residual=residual, empty_stream="reroute").play(batch.x, batch.target)
        share = play.attribution().sum((1, 2, 3)) / play.value
        assert torch.allclose(share, torch.ones(2), atol=1e-4) if conserved else (share < 0.9).all()


def test_repr_is_readable():
    """The grid of `rg` alone has thousands of points."""
    assert len(repr(bp.methods())) < 50_000 and "grid=" not in repr(bp.methods()["rg"])


def test_grids_are_accepted():
    """Every configuration of the paper's grid lies in the ranges of its method."""
    for info in bp.methods().values():
        assert info.title and info.reference and info.function.__doc__
        for params in info.grid:
            info.check(params)
    sizes = {name: len(bp.methods()[name].grid) for name in ("smoothgrad", "integrated_gradients", "deeplift", "dave")}
    assert sizes == {"smoothgrad": 12, "integrated_gradients": 5, "deeplift": 5, "dave": 2}
    routing, image = bp.methods()["rg"], zoo.images(1).x
    assert routing.grid_for(bp.capture(zoo.load("vit"), image)) == routing.grid
    without = routing.grid_for(bp.capture(zoo.load("vgg"), image))  # λ_sm is searched where there is attention
    assert len(without) == 24 * (1 + 4 * 4) and all(point["attention_risk"] == 0 for point in without)


@pytest.mark.parametrize(
    "name, params, message",
    [
        ("smoothgrad", {"n": 0}, "n=0 is out of range"),
        ("smoothgrad", {"sigma": -0.1}, "sigma=-0.1 is out of range"),
        ("smoothgrad", {"aggregate": "max"}, "one of 'mean', 'std'"),
        ("integrated_gradients", {"steps": 2.5}, "an integer >= 1"),
        ("integrated_gradients", {"step": 5}, "did you mean steps"),
        ("deeplift", {"rule": "alpha"}, "one of 'default', 'gamma', 'zplus'"),
        ("deeplift", {"gamma": 0}, "gamma=0 is out of range"),
        ("lime", {"ridge": 0}, "ridge=0 is out of range"),
        ("kernel_shap", {"baseline": "black"}, "one of 'segment', 'mean', 'zero'"),
    ],
)
def test_keywords(name, params, message):
    case = build("plain")
    with pytest.raises(ValueError, match=message):
        case.explain(name, **params)


def test_dave_needs_attention():
    with pytest.raises(RuntimeError, match="attention weights"):
        build("plain").explain("dave")
