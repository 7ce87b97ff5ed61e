"""Half-precision models are played in float32, weight by weight, and stay what they are (S38)."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp
from backplay.network.precision import InSingle

pytestmark = pytest.mark.capture

HALVES = [torch.float16, torch.bfloat16]


class Convolutional(nn.Module):
    """Convolution, norm, residual sum, a buffer, a cast to half and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)
        self.register_buffer("scale", torch.rand(8, 1, 1) + 0.5)

    def forward(self, x):
        x = x.to(self.conv.weight.dtype)
        h = functional.relu(self.norm(self.conv(x)))
        h = h + functional.gelu(self.inner(h)) * self.scale
        return self.head(functional.max_pool2d(h, 2).mean((2, 3)))


class Attending(nn.Module):
    """Patches, a class token, position embeddings, attention, a norm."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 5, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        h = self.patch(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(self.norm(self.block(h))[:, 0])


@functools.cache
def models(kind, dtype):
    """The model in half precision, and the same numbers in float32."""
    torch.manual_seed(1)
    half = kind().eval().to(dtype)
    return half, copy.deepcopy(half).float()


@functools.cache
def networks(kind, dtype):
    """Both of them captured, once for all tests."""
    return tuple(bp.capture(model, image()) for model in models(kind, dtype))


def image(batch=2):
    return torch.randn(batch, 3, 8, 8)


def near(found, expected):
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [Convolutional, Attending])
@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_map_is_that_of_float32(kind, dtype, game):
    """With float32 and with half input; the model stays half, and nothing derived from it is kept."""
    model, (half, single) = models(kind, dtype)[0], networks(kind, dtype)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = image().to(dtype).float()  # what both can see
    expected = game(single).attribute(x, 2)
    playing = game(half)
    near(playing.attribute(x, 2), expected)
    near(playing.attribute(x.to(dtype), 2), expected)
    play = playing.play(x, 2)
    near(play.attribution(), expected)
    assert playing.network(x).weights().nbytes() == 0
    assert not play._kernels
    assert all(v.dtype == state[k].dtype and torch.equal(v, state[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [Convolutional, Attending])
def test_every_question(kind, dtype):
    """Occupations, walks, distances and temperatures are those of the float32 copy."""
    half, single = networks(kind, dtype)
    x = image()
    for options in ({"tau": 0.5}, {"risk": -1.0, "input_variance": 0.1}, {"bias": "absorb", "empty_stream": "reroute"}):
        play, other = (bp.RoutingGame(m, epsilon=0.01, **options).play(x, 1) for m in (half, single))
        near(play.marginal("input"), other.marginal("input"))
        near(play.occupation("input").plus, other.occupation("input").plus)
        torch.testing.assert_close(play.cemetery, other.cemetery, rtol=1e-4, atol=1e-6)
    second, fourth = (bp.RoutingGame(m, epsilon=0.01).play(x, 3) for m in (half, single))
    first, third = (bp.RoutingGame(m, epsilon=0.01).play(x, 1) for m in (half, single))
    torch.testing.assert_close(bp.hellinger(first, second).bc, bp.hellinger(third, fourth).bc, rtol=1e-4, atol=1e-6)
    assert len(first.sample(5)) == 5


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["gradient", "lrp_gamma", "integrated_gradients", "deeplift", "gradcam"])
def test_methods(name, dtype):
    """Methods that run or differentiate the model itself do so in float32."""
    half, single = networks(Convolutional, dtype)
    x = image()
    near(bp.explain(half, x, 1, method=name), bp.explain(single, x, 1, method=name))
    near(bp.explain(half, x.to(dtype), 1, method=name), bp.explain(single, x.to(dtype).float(), 1, method=name))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [Convolutional, Attending])
def test_health_compares_with_the_model_in_float32(kind, dtype):
    """And says which precision the model has."""
    half, single = networks(kind, dtype)
    x = image()
    play = bp.RoutingGame(half).play(x, 0)
    health = play.health()
    assert health.ok and health.precision == str(dtype).removeprefix("torch.")
    assert str(dtype).removeprefix("torch.") in str(health)
    torch.testing.assert_close(play.model_logits(), single.model(x), rtol=1e-4, atol=1e-5)
    assert bp.RoutingGame(single).play(x, 0).health().precision == "float32"


def test_no_product_in_half_precision():
    """The mode converts what a call is given, in-place calls and casts too, and gradients pass."""
    ran = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            if any(w in str(func) for w in ("mm", "conv", "attention")):
                ran.append({a.dtype for a in tensors})
            return out

    half, single = models(Attending, torch.bfloat16)
    x = image().requires_grad_()
    with InSingle(), Watch():
        out = half(x.bfloat16())
    assert ran and all(dtypes == {torch.float32} for dtypes in ran)
    torch.testing.assert_close(out, single(x), rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(o[:, 0].sum(), x)[0] for o in (out, single(x)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_play_of_a_changed_model_is_refused():
    """A half-precision play holds no copies: what it has not answered yet needs the model unchanged."""
    half = copy.deepcopy(models(Convolutional, torch.float16)[0])
    play = bp.RoutingGame(half).play(image(), 0)
    with torch.no_grad():
        half.head.weight.mul_(2)
    with pytest.raises(bp.BackplayError, match="has changed"):
        play.marginal("input")


def _head(play):
    return play.network.find("head")


QUESTIONS = {
    "kernel": lambda play: play.kernel(_head(play)),
    "policy": lambda play: play.policy("head", (0, 0)),
    "marginal": lambda play: play.marginal("conv"),
    "occupation": lambda play: play.occupation("conv"),
    "sample": lambda play: play.sample(3),
    "distance": lambda play: bp.hellinger(play, play).distance,
    "map of weights": lambda play: play.attribution(),
}


@pytest.mark.parametrize("behind", [False, True], ids=["seen by the counter", "behind the counter"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_no_question_is_answered_from_a_changed_model(name, behind):
    """S1: whatever a half-precision play has not answered yet it refuses, and never answers from other weights.

    What it has answered stays: the map of a class, and the value.
    """
    half = copy.deepcopy(models(Convolutional, torch.bfloat16)[0])
    game = bp.RoutingGame(half)
    weights = torch.tensor([[1.0, -1.0, 0, 0, 0]]).expand(2, -1)
    x = image()
    play = game.play(x, weights if name == "map of weights" else 0)
    value, found = play.value.clone(), None if name == "map of weights" else play.attribution().clone()
    QUESTIONS[name](game.play(x, weights if name == "map of weights" else 0))  # answered while the model is unchanged
    with torch.no_grad():
        (half.head.weight.data if behind else half.head.weight).mul_(2)
    with pytest.raises(bp.BackplayError, match="has changed"):
        QUESTIONS[name](play)
    assert torch.equal(play.value, value)
    assert found is None or torch.equal(play.attribution(), found)
    again = game.play(x, 0)
    assert not torch.allclose(again.value, value)
    near(again.attribution(), bp.RoutingGame(copy.deepcopy(half).float()).attribute(x, 0))


def test_a_kernel_that_was_never_made_is_not_made_from_a_changed_model():
    """S1 in float32 too: a play holds the kernels of its walk; another node's would be made from the new weights."""
    model = copy.deepcopy(models(Attending, torch.bfloat16)[1])
    play = bp.RoutingGame(model).play(image(), 0)
    node = next(n for n in play.network.nodes if n.kind == "affine" and n not in play.visited() and n.carries)
    held = play.kernel(play.network.find("head"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    with pytest.raises(bp.BackplayError, match="has changed"):
        play.kernel(node)
    assert play.kernel(play.network.find("head")) is held
    assert play.marginal("input").shape == play.x.shape


@pytest.mark.parametrize("given, dtype", [(torch.float64, torch.float16), (torch.float64, torch.float32)])
def test_other_precisions_are_refused(given, dtype):
    """float64 for a model of less, and half for a model of more."""
    model = Convolutional().eval().to(dtype)
    with pytest.raises(TypeError, match=str(given)) as caught:
        bp.RoutingGame(model).attribute(image().to(given), 0)
    assert isinstance(caught.value, bp.BackplayError)
    with pytest.raises(TypeError, match=r"float16.*float32"):
        bp.RoutingGame(Convolutional().eval()).attribute(image().half(), 0)


def test_an_autocast_inside_the_model():
    """A float32 model that switches autocast on for a part is played, and compared, in float32."""

    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.first(x)
            return self.head(torch.relu(h.float()))

    model, x = Casting().eval(), torch.randn(2, 4)
    plain = nn.Sequential(model.first, nn.ReLU(), model.head)
    play = bp.RoutingGame(model).play(x, 0)
    assert play.health().ok
    near(play.attribution(), bp.RoutingGame(plain).attribute(x, 0))


def test_llama_in_bfloat16():
    """A causal language model as people load it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    half = transformers.LlamaForCausalLM(config).eval().bfloat16()
    single = copy.deepcopy(half).float()
    embedded = torch.randn(2, 6, 32).bfloat16().float()
    expected = bp.RoutingGame(single).attribute({"inputs_embeds": embedded}, 3)
    game = bp.RoutingGame(half)
    near(game.attribute({"inputs_embeds": embedded}, 3), expected)
    near(game.attribute({"inputs_embeds": embedded.bfloat16()}, 3), expected)
    play = game.play({"inputs_embeds": embedded}, 3)
    assert play.health().ok and play.network.weights().nbytes() == 0


def test_peak_memory():
    """One layer at a time in float32: a deep stack of equal layers needs a few of them, not all."""
    depth, width = 24, 512
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    half = nn.Sequential(*layers, nn.Linear(width, 4)).eval().bfloat16()
    x = torch.randn(1, width)
    game = bp.RoutingGame(half)
    game.attribute(x, 0)
    held = _most_held(lambda: game.attribute(x, 0))
    assert held < 8 * 4 * width * width, f"{held / (4 * width * width):.1f} layers in float32 at once"


def _most_held(action):
    """Bytes of the largest set of tensors alive at once that `action` allocates."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
