"""Order statistics and mixtures of experts: values follow their elements, indices and routers are told (S3, S17)."""

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near

pytestmark = pytest.mark.capture

F64 = torch.float64
CHOICES = {
    "topk": lambda t: t.topk(3, dim=-1)[0],
    "topk along tokens": lambda t: t.topk(2, dim=1)[0],
    "sort": lambda t: t.sort(dim=-1)[0],
    "kth": lambda t: t.kthvalue(2, dim=-1)[0],
    "median": lambda t: t.median(dim=1)[0],
    "gather": lambda t: t.gather(2, t.abs().argsort(-1)[..., :3]),
}


class Chosen(nn.Module):
    def __init__(self, choice):
        super().__init__()
        self.inner, self.choice = nn.Linear(6, 6), choice
        self.head = nn.Linear(choice(torch.randn(2, 4, 6)).flatten(1).shape[1], 3)
        self.double().eval()

    def forward(self, x):
        return self.head(self.choice(self.inner(x)).flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES)
def test_values_follow_their_elements(name):
    """The Stopping map is the gradient; walks end with mass 1 in both games, and samples follow them."""
    model = Chosen(CHOICES[name])
    for batch in (3, 1):
        x = torch.randn(batch, 4, 6, dtype=F64, requires_grad=True)
        (expected,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
        x = x.detach()
        assert_near(bp.StoppingGame(model).attribute(x, 1), expected)
        for game in (bp.StoppingGame(model), bp.RoutingGame(model)):
            play = game.play(x, 1)
            assert play.health().mass_error < 1e-12
            assert (play.sample(500, seed=1).check() > 1e-4).all()
            assert bp.certify(play, states=30) < 1e-9


class Experts(nn.Module):
    """Two of four experts for each token, weighed by a router; `hold` detaches the router in the twin."""

    def __init__(self, router, hold=lambda t: t):
        super().__init__()
        torch.manual_seed(0)
        self.router, self.hold = router, hold
        self.gate, self.head = nn.Linear(6, 4), nn.Linear(24, 3)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 6)), nn.Parameter(torch.randn(4, 6, 8))
        self.double().eval()

    def forward(self, x):
        flat = x.reshape(-1, 6)
        weights, index = self.router(self.gate(flat)).topk(2, dim=-1)
        weights = self.hold(weights / weights.sum(-1, keepdim=True)).reshape(-1, 1)
        chosen, tokens = index.reshape(-1), flat.repeat_interleave(2, 0)
        hidden = torch.bmm(self.up[chosen], tokens[..., None]).relu()
        out = torch.bmm(self.down[chosen], hidden).squeeze(-1) * weights
        return self.head(out.view(-1, 4, 2, 6).sum(2).flatten(1))


@pytest.mark.parametrize("router", [lambda z: z.softmax(-1), torch.sigmoid], ids=["softmax", "sigmoid"])
def test_router_is_told(router):
    model, twin = Experts(router), Experts(router, torch.Tensor.detach)
    for batch in (3, 1):
        x = torch.randn(batch, 4, 6, dtype=F64)
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(twin(leaf)[:, 2].sum(), leaf)
        network = bp.capture(model, x)
        assert_near(bp.StoppingGame(network).attribute(x, 2), expected)
        for game in (bp.StoppingGame(network), bp.RoutingGame(network, epsilon=0.01)):
            play = game.play(x, 2)
            assert play.health().mass_error < 1e-12
            assert (play.sample(500, seed=1).check() > 1e-4).all()
    one, two = (bp.RoutingGame(network).play(torch.randn(1, 4, 6, dtype=F64), 2) for _ in range(2))
    found = bp.hellinger(one, two)
    assert 0 < float(found.distance) <= 1
    assert_near(found.bc_forward(), found.bc)


def _mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**SIZES, intermediate_size=24, num_local_experts=4))


def _qwen():
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "num_experts": 4}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZES, **sizes, intermediate_size=24, num_experts_per_tok=2))


def _deepseek():
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    experts = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    heads = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    sizes = SIZES | {"num_key_value_heads": 4}
    config = DeepseekV3Config(
        **sizes, **experts, **heads, intermediate_size=24, moe_intermediate_size=12, first_k_dense_replace=1
    )
    return DeepseekV3ForCausalLM(config)


SIZES = {
    "vocab_size": 11,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [_mixtral, _qwen, _deepseek])
def test_transformers(make):
    """Mixtures of experts as they come."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02)
    before = getattr(model.config, "_experts_implementation", None)
    x = {"inputs_embeds": torch.randn(2, 5, 16)}
    for game in (bp.StoppingGame(model), bp.RoutingGame(model, epsilon=0.0)):
        play = game.play(x, (4, 3))
        assert play.health().ok and play.health().mass_error < 1e-5
        assert play.attribution().abs().sum() > 0
    assert getattr(model.config, "_experts_implementation", None) == before


@pytest.mark.slow
@pytest.mark.parametrize("make", [_mixtral, _qwen, _deepseek])
def test_transformers_in_float64(make):
    """torch's grouped product knows no float64: experts are computed one by one, and agree with float32.

    The oracle is the model in float32, which torch runs as it is configured.
    """
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02)
    before = model.config._experts_implementation
    assert before == "grouped_mm"
    x = {"inputs_embeds": torch.randn(2, 5, 16)}
    single = model(**x).logits
    twice = {k: v.double() for k, v in x.items()}
    model.double()
    for game in (bp.StoppingGame(model), bp.RoutingGame(model, epsilon=0.0)):
        play = game.play(twice, (4, 3))
        assert play.health().ok and play.health().mass_error < 1e-12
        assert_near(play.value, single[:, 4, 3], 1e-4)
    gradient = bp.explain(model, twice, (4, 3), method="gradient")
    assert gradient.dtype == F64 and float(gradient.abs().max()) > 0
    assert model.config._experts_implementation == before
