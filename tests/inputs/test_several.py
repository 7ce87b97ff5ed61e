"""Several explained inputs, and fixed ones beside them (api: inputs)."""

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near

pytestmark = pytest.mark.capture

F64 = torch.float64


class Pair(nn.Module):
    """Two inputs through one encoder, and a third that only adds."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.head = nn.Linear(12, 3)

    def forward(self, left, right, scale=None, mask=None, *, shift=0.0):
        joined = torch.cat([self.encoder(left), self.encoder(right)], 1)
        joined = joined if scale is None else joined * scale
        joined = joined if mask is None else joined * mask
        return self.head(joined) + shift


class Ignores(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, used, unused):
        return self.head(used)


def pair():
    torch.manual_seed(0)
    return Pair().double().eval()


def inputs(n=3):
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(n, 4, generator=generator, dtype=F64) for _ in range(2))


def gradients(model, *xs, target=1, **keywords):
    xs = [x.clone().requires_grad_() for x in xs]
    return torch.autograd.grad(model(*xs, **keywords)[:, target].sum(), xs)


def joined(model):
    """The same function of one input, which holds both."""

    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = model

        def forward(self, x):
            return self.pair(x[:, :4], x[:, 4:])

    return Joined().double().eval()


def test_tuple_gives_tuple_and_dict_gives_dict():
    """The Stopping map is the gradient in each; nodes are named after forward's parameters."""
    model, (left, right) = pair(), inputs()
    expected = gradients(model, left, right)
    game = bp.StoppingGame(model)
    found = game.attribute((left, right), 1)
    assert isinstance(found, tuple)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)
    found = game.attribute({"right": right, "left": left}, 1)
    assert list(found) == ["right", "left"]
    assert_near(found["left"], expected[0])
    assert_near(found["right"], expected[1])
    found = game.attribute({"left": left, "right": right}, 1)
    assert_near(found["left"], expected[0], what="keywords in another order")
    play = game.play((left, right), 1)
    assert [n.name for n in play.network.nodes if n.kind == "input"] == ["left", "right"]
    assert_near(play.occupation("right").difference, expected[1])
    with pytest.raises(ValueError, match="left, right"):
        play.marginal("input")


def test_captum_calls():
    """`attribute(a, additional_forward_args=(b,))`: b is held fixed, whatever its dtype; one map, a tensor."""
    model, (left, right) = pair(), inputs()
    expected = gradients(model, left, right)[0]
    for call in (
        bp.StoppingGame(model).attribute,
        bp.Explainer(model, "gradient").attribute,
        lambda x, t, **k: bp.explain(model, x, t, method="sg", **k),
        lambda x, t, **k: bp.StoppingGame(model).play(x, t, **k).attribution(),
    ):
        assert_near(call(left, 1, additional_forward_args=(right,)), expected)
        assert_near(call(left, 1, additional_forward_args=right), expected)
        assert_near(call({"left": left}, 1, additional_forward_args={"right": right}), expected)
    scale = torch.rand(3, 12, dtype=F64)
    both = gradients(model, left, right, scale=scale)
    found, delta = bp.StoppingGame(model).attribute(
        (left, right), 1, additional_forward_args=scale, return_convergence_delta=True
    )
    assert_near(found[1], both[1])
    assert_near(delta, sum(m.sum(1) for m in found) - model(left, right, scale)[:, 1])
    assert bp.sweep(bp.RoutingGame(model), left, 1, additional_forward_args=right, tau=[0.5, 1.0])
    assert bp.moments(model, left, 0.1, additional_forward_args=right)["head"].variance.shape == (3, 3)
    assert bp.decompose(model, left, additional_forward_args=right)["head"].plus.shape == (3, 3)


def test_masks_and_integers_are_fixed():
    """Floating-point masks are held fixed by their name; other dtypes always."""
    model, (left, right) = pair(), inputs()
    mask = (torch.rand(3, 12) > 0.3).double()
    expected = gradients(model, left, right, mask=mask)
    found = bp.StoppingGame(model).attribute({"left": left, "right": right, "mask": mask, "shift": 2.0}, 1)
    assert set(found) == {"left", "right"}
    assert_near(found["right"], expected[1])
    whole = bp.StoppingGame(model).attribute((left, right, torch.full((3, 12), 2), mask), 1)
    assert len(whole) == 2
    assert_near(whole[0], 2 * expected[0])


@pytest.mark.parametrize("make", [bp.StoppingGame, bp.RoutingGame], ids=lambda g: g.__name__)
def test_against_one_input_that_holds_both(make):
    """Maps, marginals, health, survival, distances and samples of the same walk, written as one input."""
    model, (left, right) = pair(), inputs()
    game, other = make(model), make(joined(model))
    a, b = game.play((left, right), 0), game.play((right, left), 2)
    p, q = other.play(torch.cat([left, right], 1), 0), other.play(torch.cat([right, left], 1), 2)
    assert_near(torch.cat(a.attribution(), 1), p.attribution())
    assert_near(torch.cat([a.marginal("left"), a.marginal("right")], 1), p.marginal("input"))
    assert_near(a.cemetery, p.cemetery)
    assert a.health().ok
    assert_near(a.health().arrives, p.health().arrives)
    for conditioning in ("post-hoc", "kernel"):
        h, k = (bp.hellinger(x, y, conditioning=conditioning) for x, y in ((a, b), (p, q)))
        for name in ("distance", "bc", "surviving", "survival_a", "survival_b", "cemetery_overlap"):
            assert_near(getattr(h, name), getattr(k, name), what=name)
        assert isinstance(h.disagreement, tuple)
        assert_near(torch.cat(h.disagreement, 1), k.disagreement)
        for kind in ("trajectory", "marginal", "fraction"):
            for conditioned in (False, True):
                assert_near(torch.cat(h.map(kind, conditioned), 1), k.map(kind, conditioned), what=kind)
        assert_near(h.bc_forward(), k.bc, scale=1.0)
    assert_near(bp.hellinger_matrix([a], [b]).distance, bp.hellinger(p, q).distance)
    walks = a.sample(3000, seed=1)
    for name in ("left", "right"):
        assert (walks.check(name) > 1e-4).all()
    reached = (walks.states["left"] >= 0).long() + (walks.states["right"] >= 0).long()
    assert ((reached > 0) == (walks.ends == 0)).all()
    assert bp.certify(a) < 1e-9


METHODS = "gradient gradient_x_input integrated_gradients deeplift sg rg lrp_epsilon lrp_gamma lrp_abs rel_lrp cp_lrp"


@pytest.mark.parametrize("method", METHODS.split())
def test_methods(method):
    """A method sees several inputs as it sees one that holds them all."""
    model, (left, right) = pair(), inputs()
    found = bp.explain(model, (left, right), 1, method=method)
    assert_near(torch.cat(found, 1), bp.explain(joined(model), torch.cat([left, right], 1), 1, method=method))


def test_other_methods():
    """SmoothGrad and LRP-Box take scales and bounds from each input; CAMs and LIME explain one image."""
    model, xs = pair(), inputs()
    for method in ("smoothgrad", "lrp_box"):
        found = bp.explain(model, xs, 1, method=method)
        assert [m.shape for m in found] == [x.shape for x in xs] and all(m.abs().sum() > 0 for m in found)
    for method in ("gradcam", "lime", "kernel_shap", "rg_eq", "rollout"):
        with pytest.raises(bp.BackplayError, match="all attend to each other" if method == "rollout" else "one image"):
            bp.explain(model, xs, 1, method=method)
        assert not bp.methods()[method].fits(bp.capture(model, xs))


@pytest.mark.parametrize("make", [bp.StoppingGame, bp.RoutingGame], ids=lambda g: g.__name__)
def test_input_without_influence_gets_zeros(make):
    """The other input has the map that it has alone."""
    model, xs = Ignores().double().eval(), inputs()
    used, unused = make(model).attribute(xs, 0)
    assert unused.shape == (3, 4) and not unused.any()
    assert_near(used, make(model.head).attribute(xs[0], 0))
    play = make(model).play(xs, 0)
    assert play.health().ok and not play.marginal("unused").any() and play.sample(5).frequencies("unused").sum() == 0
    assert not bp.hellinger(play, make(model).play(xs, 1)).disagreement[1].any()
    for method in ("gradient", "lrp_epsilon", "deeplift", "integrated_gradients"):
        assert not bp.explain(model, xs, 0, method=method)[1].any()


def test_images_and_text_of_other_ranks():
    """Inputs need not look alike."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.words = nn.Conv2d(1, 2, 3), nn.Linear(5, 4)
            self.head = nn.Linear(2 * 16 + 4, 3)

        def forward(self, image, words):
            seen = torch.relu(self.image(image)).flatten(1)
            return self.head(torch.cat([seen, torch.relu(self.words(words)).mean(1)], 1))

    model = Both().double().eval()
    image, words = torch.randn(2, 1, 6, 6, dtype=F64), torch.randn(2, 7, 5, dtype=F64)
    found = bp.StoppingGame(model).attribute({"image": image, "words": words}, 1)
    expected = gradients(model, image, words)
    assert_near(found["image"], expected[0])
    assert_near(found["words"], expected[1])
    play = bp.RoutingGame(model).play({"image": image, "words": words}, 1)
    assert play.marginal("image").shape == image.shape, "an input's name goes before a module's"
    assert play.marginal("image#2").shape == (2, 2, 4, 4)
    assert play.health().ok


@pytest.mark.parametrize(
    "given, word, kind",
    [
        ((torch.randn(3, 4), torch.randn(2, 4)), "different numbers of samples", ValueError),
        ((torch.ones(3, 4, dtype=torch.long), torch.ones(3, 4, dtype=torch.long)), "floating-point", ValueError),
        (torch.ones(3, 4, dtype=torch.long), "int64", TypeError),
        ((torch.randn(3, 4), torch.randn(3, 4).half()), "float16", TypeError),
        ((torch.randn(3, 4), torch.randn(())), "batch dimension", ValueError),
        ((), "floating-point", ValueError),
        ([torch.randn(3, 4)], "list", TypeError),
        ((torch.randn(3, 4), [torch.randn(3, 4)]), "list of tensors", TypeError),
        ((torch.randn(3, 4), torch.full((3, 4), float("nan"))), "right holds 12 NaN", ValueError),
    ],
)
def test_bad_inputs(given, word, kind):
    """What was given and what is accepted."""
    model = pair().float()
    for call in (bp.StoppingGame(model).attribute, lambda x, t: bp.explain(model, x, t, method="gradient")):
        with pytest.raises(bp.BackplayError, match=word) as caught:
            call(given, 0)
        assert isinstance(caught.value, kind)


def test_bad_fixed_arguments():
    """Positions do not go with keywords, and nothing is given twice."""
    model, (left, right) = pair(), inputs()
    for extra, word in (((right,), "dict"), ({"left": right}, "twice")):
        with pytest.raises(ValueError, match=word):
            bp.StoppingGame(model).attribute({"left": left}, 0, additional_forward_args=extra)
    network = bp.capture(model, (left, right))
    with pytest.raises(ValueError, match="capture"):
        bp.StoppingGame(network).attribute(left, 0, additional_forward_args=right)
