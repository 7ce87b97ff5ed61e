"""Every family of transformers by capture alone (S1, S23, S26, S38): healthy, batch = one by one, fused = unfused."""

import warnings

import pytest
import torch

import backplay as bp
from closeness import array, assert_near, l1_relative
from families import NAMED, REDUCED, Family, prepared
from networks import photo, twin
from series import series

F64 = torch.float64


def images(size, batch=2):
    return torch.randn(batch, 3, size, size, dtype=F64)


def play_reduced(name):
    """A reduced family, its input and its play."""
    torch.manual_seed(1)
    family = REDUCED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries have to say about small settings
        model = prepared(family.build())
    x = images(family.size)
    return model, x, bp.RoutingGame(model).play(x, [1, 3])


# one of each kind of attention takes no more than seconds: torch's own, windows, class token, distillation, relative
# positions with spelled-out bias, talking heads, channels, registers, none at all, and transformers'
FAST = (
    "torchvision vit",
    "torchvision swin v2",
    "timm deit distilled",
    "timm beit",
    "timm cait",
    "timm xcit",
    "timm convnextv2",
    "timm registers",
    "hub vit",
)
FEW = ("torchvision vit", "timm beit", "timm cait", "hub vit")


@pytest.fixture(scope="module", params=series(REDUCED, FEW, set(REDUCED) - set(FAST)))
def solved(request):
    """Name, model, input and play of each family in turn, captured once for all the tests."""
    return request.param, *play_reduced(request.param)


def composites(play, x):
    """Affine nodes that the Routing walk passes by while the Stopping walk stands there: V projections (S23)."""
    stopping = bp.StoppingGame(play.network).play(x, play.target.tolist())
    assert stopping.health().ok and stopping.health().mass_error < 1e-6
    affine = [n for n in play.network.nodes if n.kind == "affine"]
    return sum(n not in play.visited() and play.marginal(n).any() and bool(stopping.marginal(n).any()) for n in affine)


def examine(family: Family, play, x):
    """What holds for every family that is captured."""
    health = play.health()
    assert health.ok and health.mass_error < 1e-6, health
    walk = array(play.marginal("input")).reshape(len(x), -1).sum(1) + array(play.constant) + array(play.cemetery)
    assert_near(walk, [1.0] * len(x), 1e-6, what="walk mass")
    assert (array(play.constant) > 0).all() == family.constant, play.constant
    assert play.attribution().shape == x.shape and play.attribution().abs().sum() > 0
    assert composites(play, x) == family.composites


def test_family(solved):
    """Health, walk mass, constant rows (S26) and composites (S23) of both games."""
    name, _, x, play = solved
    examine(REDUCED[name], play, x)


def test_options(solved):
    """tau, epsilon, residual, bias and empty_stream act inside attention as everywhere else; no walk is lost."""
    _, _, x, play = solved
    other = bp.RoutingGame(
        play.network, tau=0.5, epsilon=1e-3, residual="proportional", bias="absorb", empty_stream="reroute"
    ).play(x, [1, 3])
    assert other.health().ok and other.health().mass_error < 1e-6, other.health()
    assert (other.attribution() - play.attribution()).abs().max() > 1e-3 * play.attribution().abs().max()


def test_batch(solved):
    """Samples never interact: a batch is its samples one by one."""
    _, _, x, play = solved
    game = bp.RoutingGame(play.network)
    alone = torch.cat([game.attribute(x[:1], 1), game.attribute(x[1:], 3)])
    assert_near(alone, play.attribution(), what="one by one")
    twice = game.attribute(torch.cat([x, x.flip(0), x[:1]]), [1, 3, 3, 1, 1])
    assert_near(twice[:2], play.attribution(), what="in a larger batch")
    assert_near(twice[2:4], play.attribution().flip(0), what="in another order")


@pytest.mark.slow
def test_fused_and_unfused(solved):
    """S23: the fused operator and softmax → matmul are the same game.

    transformers takes its spelled-out softmax in float32 whatever the model's precision.
    """
    name, model, x, play = solved
    family, relative = REDUCED[name], 1e-6 if name.startswith("hub") else 1e-10
    if not family.switch:
        pytest.skip("one spelling only")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = prepared(family.build(fused=False))
    state = {k.replace("self_attention.", "self_attention.layer."): v for k, v in model.state_dict().items()}
    other.load_state_dict(state if name == "torchvision vit" else model.state_dict())
    unfused = bp.capture(other, x)
    told = [sum(n.kind == "oracle" for n in net.nodes) for net in (unfused, play.network)]
    assert told[0] > told[1], "the weights are spelled out"
    for game in (bp.RoutingGame, bp.StoppingGame):
        expected = game(play.network).play(x, [1, 3])
        found = game(unfused).play(x, [1, 3])
        assert_near(found.value, expected.value, relative, what="value")
        assert_near(found.attribution(), expected.attribution(), relative, what="map")
        assert_near(found.cemetery, expected.cemetery, relative, scale=1.0, what="cemetery")
        assert_near(found.constant, expected.constant, relative, scale=1.0, what="constant")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_named_family(name):
    """The names of the issue as they stand, with random weights: captured and healthy."""
    family = NAMED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = prepared(family.build(), torch.float32)
    x = images(family.size, 1).float()
    examine(family, bp.RoutingGame(model).play(x, 1), x)


def test_names_lead_back_to_their_nodes():
    """api: names are unique, and a node or the name of a leaf module leads to that node's own output."""
    _, x, play = play_reduced("timm beit")
    names = [n.name for n in play.network.nodes]
    assert len(set(names)) == len(names)
    paths = {path for n in play.network.nodes for path, _ in n.calls}
    for node in play.network.nodes:
        shape = tuple(len(x) if s == -1 else s for s in node.shape)
        assert tuple(play.marginal(node).shape) == shape, node.name
        if node.name not in paths:  # a module's name means the output of the module, whatever its first operation
            assert tuple(play.marginal(node.name).shape) == shape, node.name


@pytest.mark.slow
@pytest.mark.large
def test_vit_b_16_precision():
    """S37: float32 against float64 on ViT-B/16 at full size, L1 relative below 1e-4."""
    import torchvision.models

    single = prepared(torchvision.models.vit_b_16(), torch.float32)
    x = photo(1, 224, torch.float32)
    low, high = bp.capture(single, x), bp.capture(twin(single, F64), x.double())
    for epsilon, taus in ((0.5, [1.0, 2.0]), (0.0, [0.3, 5.0]), (1e-6, [0.5])):  # each on one forward pass
        given = (low, x), (high, x.double())
        found, exact = (bp.sweep(bp.RoutingGame(net, epsilon=epsilon), image, 1, tau=taus) for net, image in given)
        for tau in taus:
            single_map, double_map = found[("tau", tau),], exact[("tau", tau),]
            assert single_map.dtype == torch.float32 and double_map.dtype == F64
            assert l1_relative(single_map, double_map) < 1e-4, (epsilon, tau)
