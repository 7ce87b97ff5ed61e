"""Corners where a map could be wrong without a word: each of these once was, or would be."""

import copy
import importlib
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

import backplay as bp

pytestmark = pytest.mark.capture


class Function(nn.Module):
    """A module from a function of itself and its inputs, with parts as attributes."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def gradient(model, x, *rest, target=0, **keywords):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x, *rest, **keywords)[:, target].sum(), x)[0]


def test_batch_norm_behind_tokens():
    """S4: behind a linear layer on (B, T, F) the channels of BatchNorm1d are the tokens, not the features."""
    model = Function(
        lambda s, x: s.o(functional.relu(s.bn(s.l(x))).flatten(1)),
        l=nn.Linear(3, 4), bn=nn.BatchNorm1d(4), o=nn.Linear(16, 2),
    ).eval()  # fmt: skip
    model.bn.running_mean.normal_()
    model.bn.running_var.uniform_(0.5, 2)
    x = torch.randn(3, 4, 3)
    torch.testing.assert_close(bp.StoppingGame(model).attribute(x, 0), gradient(model, x), rtol=1e-10, atol=1e-12)


def test_weights_from_a_fixed_input():
    """S1: what is derived from a fixed input is not kept for the next play."""
    model = Function(
        lambda s, x, adj: s.o((adj.double() @ functional.relu(s.l(x))).flatten(1)), l=nn.Linear(3, 3), o=nn.Linear(9, 2)
    ).eval()
    game, x = bp.StoppingGame(model), torch.randn(2, 3, 3)
    for _ in range(2):
        adj = torch.randint(0, 3, (2, 3, 3))
        found = game.attribute({"x": x, "adj": adj}, 0)
        torch.testing.assert_close(found, gradient(model, x, adj=adj), rtol=1e-10, atol=1e-12)


def test_infinite_weights_of_a_frozen_model():
    """S38: frozen weights are weights."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    model[0].weight[0, 0] = float("inf")
    with pytest.raises(bp.BackplayError, match=r"0\.weight"):
        bp.RoutingGame(model).attribute(torch.rand(2, 3), 0)


def test_tensor_attribute_changed_in_place():
    """S1: a tensor that is no buffer is watched too."""
    model = Function(lambda s, x: s.l(functional.relu(x @ s.w)), l=nn.Linear(3, 2)).eval()
    model.w = torch.randn(4, 3)
    game, x = bp.StoppingGame(model), torch.randn(2, 4)
    game.attribute(x, 0)
    model.w.mul_(2)
    torch.testing.assert_close(game.attribute(x, 0), gradient(model, x), rtol=1e-10, atol=1e-12)


def test_small_edit_behind_the_version_counter():
    """S1: an edit below the last digit of the row's sum is seen."""
    torch.set_default_dtype(torch.float32)
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    model[0].weight.data = torch.tensor([[1e6, 1e-3, 1.0], [1.0, 1.0, 1.0]])
    game, x = bp.StoppingGame(model), torch.ones(1, 3)
    game.attribute(x, 0)
    model[0].weight.data[0, 1] = 1e-2
    assert game.attribute(x, 0)[0, 1] == pytest.approx(1e-2)


@pytest.mark.parametrize("strided", [False, True])
def test_edits_behind_the_version_counter(strided):
    """S1: seen at once if they touch a sampled entry, by `refresh` whatever they touch; numpy's are such edits too."""
    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 2)).eval()
    if strided:
        model[0].weight = nn.Parameter(torch.randn(200, 300).T)
    game, x = bp.StoppingGame(model), torch.randn(1, 200)
    game.attribute(x, 0)
    model[0].weight.detach().numpy()[:] *= 2
    torch.testing.assert_close(game.attribute(x, 0), gradient(model, x), rtol=1e-10, atol=1e-12)
    alive = int(model[0](x)[0].argmax())
    model[0].weight.data[alive, 1] += 1
    torch.testing.assert_close(game.refresh().attribute(x, 0), gradient(model, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_transposed_in_place(kind):
    """S1: another view of the same memory is another weight, though pointer, version and shape stay."""
    layer = nn.Linear(3, 3, bias=False) if kind == "linear" else nn.Conv2d(1, 2, 2, bias=False)
    x = torch.randn(1, 3) if kind == "linear" else torch.randn(1, 1, 4, 4)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(3 if kind == "linear" else 18, 2)).eval()
    game = bp.StoppingGame(model)
    game.attribute(x, 0)
    layer.weight.data = layer.weight.data.transpose(-1, -2)
    torch.testing.assert_close(game.attribute(x, 0), gradient(model, x), rtol=1e-10, atol=1e-12)


def test_pruned_after_capture():
    """S1: where a parameter has become something that a hook makes, the capture is told so, and no map is stale."""
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(1, 3)
    network = bp.capture(model, x)
    prune.l1_unstructured(model[0], "weight", amount=1)
    with pytest.raises(bp.BackplayError, match=r"'0\.weight' is gone"):
        bp.StoppingGame(network).attribute(x, 0)


def test_totals_of_a_changed_model():
    """S1: what a play works out later is of the weights that it was solved with, those of a call included."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.bn = nn.Parameter(torch.randn(2, 3)), nn.BatchNorm1d(2)

        def forward(self, x, k):
            return self.bn(functional.linear(x, self.w * k))

    model = Scaled().eval()
    play = bp.StoppingGame(model).play(torch.randn(2, 3), 0, torch.tensor(1.0))
    with torch.no_grad():
        model.bn.weight.mul_(4)
    torch.testing.assert_close(play.marginal().sum(1), torch.ones(2))


@pytest.mark.parametrize("kind", ["gain", "weight"])
def test_parameters_within_a_larger_block(kind):
    """S1: a parameter that is a slice of a block of memory is copied as any other."""
    block = nn.Parameter(torch.arange(9.0)[3:].view(2, 3) if kind == "weight" else torch.arange(6.0)[3:])
    model = Function(
        lambda s, x: functional.linear(x, s.p) if kind == "weight" else s.l(x * s.p), l=nn.Linear(3, 2), p=block
    ).eval()
    play = bp.StoppingGame(model).play(torch.randn(2, 3), 0)
    expected = play.attribution().clone()
    with torch.no_grad():
        block.mul_(10)
    kernel = play.kernel(next(n for n in play.network.nodes if n.kind in ("diagonal", "affine")))
    held = kernel.scale if kind == "gain" else kernel.weight
    torch.testing.assert_close(held * 10, block.detach().expand_as(held))
    torch.testing.assert_close(play.attribution(), expected)


def test_play_keeps_its_scales():
    """S1: a play is read with what it was solved with, LayerScale included."""
    model = Function(
        lambda s, x: s.l(functional.relu(s.i(x)) * s.g),
        i=nn.Linear(3, 4),
        l=nn.Linear(4, 2),
        g=nn.Parameter(torch.ones(4)),
    ).eval()
    x = torch.randn(2, 3)
    play = bp.StoppingGame(model).play(x, 0)
    expected = bp.StoppingGame(model).play(x, 0).occupation("input")
    with torch.no_grad():
        model.g.mul_(10)
        model.i.weight.mul_(3)
    found = play.occupation("input")
    torch.testing.assert_close(found.plus, expected.plus)
    torch.testing.assert_close(found.minus, expected.minus)


def test_masks_do_not_make_a_game_stale():
    """S1: a buffer with -inf is the same buffer at the next play."""
    model = Function(lambda s, x: s.l(x), l=nn.Linear(3, 2)).eval()
    model.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))
    network = bp.capture(model, torch.randn(2, 3))
    assert network.weights() is network.weights()
    assert bp.RoutingGame(network).play(torch.randn(2, 3), 0).health().ok


@pytest.mark.parametrize(
    "function",
    [lambda s, x: s.l(functional.relu(x + s.k(x).mean(0))), lambda s, x: s.l(functional.relu(x - x.max()))],
    ids=["mean over the batch", "maximum of all"],
)
def test_samples_that_interact(function):
    """Samples never interact: a reduction over the batch is refused."""
    with pytest.raises(bp.BackplayError, match="samples"):
        bp.capture(Function(function, l=nn.Linear(3, 2), k=nn.Linear(3, 3)).eval(), torch.randn(4, 3))


def test_operator_without_a_kind_as_a_factor():
    """S1: an unknown operator is refused in a product as anywhere else."""
    model = Function(lambda s, x: s.a(x) * torch.cumprod(s.b(x), 1), a=nn.Linear(3, 2), b=nn.Linear(3, 2)).eval()
    with pytest.raises(bp.BackplayError, match="cumprod"):
        bp.capture(model, torch.randn(2, 3))


def test_spelled_out_gate_is_a_factor():
    """S3a, S17: `u·sigmoid(u)` detaches as SiLU does."""
    parts = {"a": nn.Linear(3, 4), "b": nn.Linear(3, 4), "l": nn.Linear(4, 2)}
    fused = Function(lambda s, x: s.l(functional.silu(s.a(x)) * s.b(x)), **parts).eval()
    spelled = Function(lambda s, x: s.l((u := s.a(x)) * torch.sigmoid(u) * s.b(x)), **parts).eval()
    x = torch.randn(2, 3)
    torch.testing.assert_close(bp.RoutingGame(spelled).attribute(x, 0), bp.RoutingGame(fused).attribute(x, 0))


def test_clamp_is_relu():
    """S8: `clamp(min=0)` is a ReLU in the modes that know ReLU alone."""
    parts = {"a": nn.Linear(3, 4), "l": nn.Linear(4, 2)}
    relu = Function(lambda s, x: s.l(functional.relu(s.a(x))), **parts).eval()
    clamp = Function(lambda s, x: s.l(s.a(x).clamp(min=0)), **parts).eval()
    x = torch.randn(2, 3)
    for keywords in ({"softplus": 0.3}, {"gate": "noisy"}):
        one, two = (bp.StoppingGame(m, **keywords).attribute(x, 0) for m in (relu, clamp))
        torch.testing.assert_close(one, two)


def test_large_bias_swallows_no_digits():
    """S37: contributions are not read off a pre-activation that the bias dominates."""
    model = nn.Sequential(nn.Linear(60, 5))
    model[0].bias.data.fill_(1e12)
    x = torch.randn(2, 60)
    found = bp.RoutingGame(model, epsilon=0.0, output="one").attribute(x, 1)
    parts = x * model[0].weight[1].detach()
    up, down = parts.clamp(min=0), (-parts).clamp(min=0)
    expected = 2 * up / up.sum(1, keepdim=True) - down / down.sum(1, keepdim=True)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_adaptive_max_pool_and_max_over_an_axis():
    """Operators with a second result that nobody reads."""
    for function in (
        lambda s, x: s.l(functional.adaptive_max_pool2d(functional.relu(s.c(x)), 2).flatten(1)),
        lambda s, x: s.l(functional.relu(s.c(x)).flatten(2).max(2).values.repeat(1, 4)),
    ):
        model = Function(function, c=nn.Conv2d(1, 3, 2), l=nn.Linear(12, 2)).eval()
        x = torch.randn(2, 1, 5, 5)
        torch.testing.assert_close(bp.StoppingGame(model).attribute(x, 0), gradient(model, x), rtol=1e-10, atol=1e-12)


def test_first_captures_of_one_model_in_threads():
    """Two threads may meet a model in train mode for the first time at once."""
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)).train(), torch.randn(2, 3)
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(bp.StoppingGame(model).attribute(x, 0))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(torch.allclose(f, found[0]) for f in found)
    assert all(m.training for m in model.modules())


def test_long_chains_of_residual_gates_are_captured_quickly():
    """S3a: looking for a composite gate is linear in the depth of the chain."""

    def forward(s, x):
        h = s.a(x)
        for _ in range(40):
            h = h + functional.relu(h)
        return s.l(h * torch.sigmoid(h))

    assert bp.capture(Function(forward, a=nn.Linear(3, 4), l=nn.Linear(4, 2)).eval(), torch.randn(2, 3)).nodes


def test_constants_in_the_shape_of_live_values():
    """S2: `c.expand_as(live)` is a constant, and `live.view_as(other)` a wire from one operand."""
    model = Function(
        lambda s, x: s.o(torch.cat([s.l(x)[:, :2], s.c.expand_as(x)[:, :2]], 1)) + s.l(x).view(-1, 2, 2).view_as(x),
        l=nn.Linear(4, 4), o=nn.Linear(4, 4), c=nn.Parameter(torch.randn(4)),
    ).eval()  # fmt: skip
    x = torch.randn(3, 4)
    play = bp.StoppingGame(model).play(x, 0)
    torch.testing.assert_close(play.attribution(), gradient(model, x), rtol=1e-10, atol=1e-12)
    assert play.health().ok and bool((play.constant > 0).all())


def test_statistics_that_are_broadcast_by_name():
    """S3b: `functional.normalize` writes its broadcast out; its length is a detached statistic all the same."""
    model = Function(
        lambda s, x: s.o(functional.normalize(s.l(x), dim=-1)), l=nn.Linear(4, 4), o=nn.Linear(4, 2)
    ).eval()
    kinds = {n.operator: n.kind for n in bp.capture(model, torch.randn(2, 4)).nodes}
    assert kinds["div"] == "norm"


def test_length_of_a_batch():
    """S1: `len(x)` in a forward is the batch size, whatever it is."""
    model = Function(
        lambda s, x: s.o(torch.cat([s.token.expand(len(x), -1), functional.relu(s.l(x))], 1)),
        l=nn.Linear(3, 4), o=nn.Linear(6, 2), token=nn.Parameter(torch.randn(1, 2)),
    ).eval()  # fmt: skip
    x = torch.randn(5, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    play = bp.StoppingGame(bp.capture(model, x[:1])).play(x, 0)
    torch.testing.assert_close(play.attribution(), gradient(model, x), rtol=1e-10, atol=1e-12)
    assert play.health().ok and bool((play.constant > 0).all())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_sum_of_signed_values():
    """The adjoint of a plain sum is a view of few numbers: no kernel may write into it."""
    model = Function(lambda m, x: m.head(x.sum(1)), head=nn.Linear(6, 2))
    x = torch.randn(2, 40, 6)  # so many that no sum has one sign alone
    twin = Function(lambda m, x: m.head(x.mean(1) * 40), head=model.head)
    found, expected = (bp.RoutingGame(m, epsilon=1e-12).attribute(x, 0) for m in (model, twin))
    torch.testing.assert_close(found, expected)


def test_in_place_dropout_on_a_view(monkeypatch):
    """S3: in eval mode it changes nothing, so that the slow way around mutations of views is not taken."""
    module = importlib.import_module("backplay.network.capture")
    monkeypatch.setattr(module, "functionalised", None)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5, inplace=True), nn.Linear(64, 2))
    assert bp.StoppingGame(model).play(torch.randn(2, 3, 6, 6), 0).health().ok


@pytest.mark.parametrize("fill", [0.0, 1.0, 2.0, float("-inf")])
def test_padding_is_no_sample(fill):
    """Whatever number a border is filled with, white as well, it is not taken for the number of a sample."""

    def padded(self, x):
        wide = functional.pad(x, (1, 1, 1, 1), value=fill)
        return self.head(functional.max_pool2d(wide, 2).clamp(min=-9).flatten(1))

    model, x = Function(padded, head=nn.Linear(9, 3)), torch.randn(2, 1, 4, 4)
    found = bp.StoppingGame(bp.capture(model, x)).attribute(x, 0)
    torch.testing.assert_close(found, gradient(model, x), rtol=1e-10, atol=0)


def test_nothing_left():
    """A slice of no elements beside others is nothing; alone it is refused by name."""
    model = Function(lambda self, x: self.head(torch.cat([x[:, :0], x], 1)), head=nn.Linear(4, 2))
    x = torch.randn(2, 4)
    torch.testing.assert_close(bp.StoppingGame(model).attribute(x, 1), model.head.weight[1].expand(2, 4).detach())
    model = Function(lambda self, x: self.head(x) + x[:, :0].sum(1, keepdim=True), head=nn.Linear(4, 2))
    with pytest.raises(bp.BackplayError, match=r"slice.* leaves nothing .*\(2, 0\)"):
        bp.capture(model, torch.randn(2, 4))


def test_totals_of_other_batch_sizes():
    """What is summed up for a product with a constant on one batch serves batches of any size."""
    model = Function(
        lambda self, x: self.head(torch.einsum("bti,tij->btj", x, self.weight).relu().flatten(1)),
        weight=nn.Parameter(torch.randn(3, 4, 5)),
        head=nn.Linear(15, 2),
    )
    game, x = bp.StoppingGame(model), torch.randn(3, 3, 4)
    several = [game.play(x[:batch], 0).marginal("input") for batch in (2, 3, 1)]
    single = torch.cat([bp.StoppingGame(model).play(one[None], 0).marginal("input") for one in x])
    for found in several:
        torch.testing.assert_close(found, single[: len(found)])


@pytest.mark.parametrize("groups", [1, 3])
def test_batch_norm_behind_a_transposed_convolution(groups):
    """S4: folded, with groups too; contributions and ε refer to the folded weights."""
    model = nn.Sequential(
        nn.ConvTranspose1d(3, 6, 2, groups=groups), nn.BatchNorm1d(6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 2)
    )
    model, x = model.double().eval(), torch.randn(2, 3, 4, dtype=torch.float64)
    conv, norm = model[0], model[1]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    by_hand = copy.deepcopy(model)
    by_hand[1] = nn.Identity()
    with torch.no_grad():
        norm.weight.normal_()
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        for channel in range(6):  # an output channel is one column of its group's inputs
            group, column = divmod(channel, 6 // groups)
            rows = slice(group * (3 // groups), (group + 1) * (3 // groups))
            by_hand[0].weight[rows, column] = conv.weight[rows, column] * scale[channel]
        by_hand[0].bias.copy_((conv.bias - norm.running_mean) * scale + norm.bias)
    torch.testing.assert_close(model(x), by_hand(x))
    options = {"epsilon": 0.1, "bias": "absorb"}
    found, expected = (bp.RoutingGame(m, **options).attribute(x, 0) for m in (model, by_hand))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
