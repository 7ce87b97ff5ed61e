"""The Stopping Game through attention: the gradient of the network with its oracles held fixed (S9, thm:deriv-occ)."""

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near, unscaled
from held import gradient, held, held_weights, tanh_gate

F64 = torch.float64


def same(tensor):
    """The network itself: nothing is held."""
    return tensor


def stirred(model):
    """Float64, eval mode, and no parameter that is 0 or 1 throughout."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif not parameter.any():
                nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


def compare(model, twin, x, target, differs=True):
    """attribute and Γ₊ − Γ₋ of the game against autograd on the held twin."""
    value, expected = gradient(lambda t: twin(t)[:, target], x)
    play = bp.StoppingGame(model).play(x, target)
    assert_near(play.value, value, what="value")
    assert_near(play.attribution(), expected, what="gradient")
    occupation = play.occupation("input")
    assert_near(unscaled(occupation.difference, occupation.difference_log_scale), expected, what="Γ₊ − Γ₋")
    assert play.health().ok and play.health().mass_error < 1e-10
    if differs:  # holding does something, or the comparison says nothing
        _, plain = gradient(lambda t: model(t)[:, target], x)
        assert (plain - expected).abs().max() > 1e-3 * expected.abs().max()


def test_torchvision_vit():
    """A tiny torchvision ViT: LayerNorm statistics, GELU and softmax weights held."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=16, patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=12, num_classes=5
    )
    model = stirred(model)
    compare(model, held(model), torch.randn(2, 3, 16, 16, dtype=F64), 3)


def test_torch_encoder_layer():
    """torch's own encoder layer, norm last, ReLU."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    model = stirred(nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)))
    twin = held(model)

    class Twin(nn.Module):
        """The same layer without its fused fast path."""

        def forward(self, x):
            part = twin[0]
            x = part.norm1(x + part.self_attn(x)[0])
            return twin[2](twin[1](part.norm2(x + part.linear2(part.linear1(x).relu()))))

    compare(model, Twin(), torch.randn(2, 3, 8, dtype=F64), 1)


class Spelled(nn.Module):
    """A network on (B, 4, 8) tokens whose layer is spelled out in primitives with a given `hold`."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(32, 3)
        self.hold = same

    def forward(self, x):
        return self.head(self.layer(self.inner(x), self.hold).flatten(1))


class LayerNorm(nn.Module):
    """Mean and variance as separate reductions (S3b)."""

    def __init__(self):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x, hold):
        mean = hold(x.mean(-1, keepdim=True))
        variance = hold((x - mean).pow(2).mean(-1, keepdim=True))
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.gamma + self.beta


class VarNorm(nn.Module):
    """The same by `var`, with rsqrt."""

    def forward(self, x, hold):
        deviation = hold(torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5))
        return (x - hold(x.mean(-1, keepdim=True))) * deviation


class RMSNorm(nn.Module):
    """Llama's: pow, mean, rsqrt, mul."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(8))

    def forward(self, x, hold):
        return self.gamma * (x * hold(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))


class GroupNorm(nn.Module):
    """Two groups of tokens, spelled out over wires."""

    def forward(self, x, hold):
        grouped = x.reshape(x.shape[0], 2, -1)
        mean = hold(grouped.mean(2, keepdim=True))
        deviation = hold((grouped.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt())
        return ((grouped - mean) / deviation).reshape(x.shape)


class TanhGELU(nn.Module):
    """GPT-2's formula: pow, tanh, mul (S3a)."""

    def forward(self, x, hold):
        if hold is same:
            return 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))
        return x * hold(tanh_gate(x))


class QuickGELU(nn.Module):
    """x · sigmoid(1.702 x)."""

    def forward(self, x, hold):
        return x * hold(torch.sigmoid(1.702 * x))


class Swish(nn.Module):
    """x · sigmoid(x) is SiLU (S3a)."""

    def forward(self, x, hold):
        return x * hold(torch.sigmoid(x))


class MishFormula(nn.Module):
    """x · tanh(softplus(x))."""

    def forward(self, x, hold):
        return x * hold(torch.tanh(nn.functional.softplus(x)))


class Normalise(nn.Module):
    """L2 normalisation: the norm is a statistic."""

    def forward(self, x, hold):
        return x / hold(x.norm(dim=-1, keepdim=True).clamp_min(1e-12).expand_as(x))


class FunctionalNormalise(nn.Module):
    """The same by `functional.normalize`."""

    def forward(self, x, hold):
        if hold is same:
            return nn.functional.normalize(x, dim=-1)
        return x / hold(x.norm(dim=-1, keepdim=True))


class GRN(nn.Module):
    """ConvNeXt-V2's global response norm: linalg_vector_norm, mean, div, mul, addcmul."""

    def __init__(self):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x, hold):
        size = x.norm(p=2, dim=1, keepdim=True)
        share = hold(size / (size.mean(-1, keepdim=True) + 1e-6))
        return x + torch.addcmul(self.beta, self.gamma, x * share)


class GatedUnit(nn.Module):
    """SiLU(Wx) · Vx: the gate's factor is detached (S17)."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, hold):
        return hold(nn.functional.silu(self.gate(x))) * self.up(x)


class GatedLinearUnit(nn.Module):
    """Vx · sigmoid(Wx), by chunk."""

    def __init__(self):
        super().__init__()
        self.both = nn.Linear(8, 16)

    def forward(self, x, hold):
        a, b = self.both(x).chunk(2, -1)
        return a * hold(torch.sigmoid(b))


class Bilinear(nn.Module):
    """Two live factors, neither from a gate: both carry, and the difference is the gradient (S7, S17)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, hold):
        return self.a(x) * self.b(x)


class Squeeze(nn.Module):
    """A factor that comes out of a reduction and a sigmoid (squeeze and excitation)."""

    def __init__(self):
        super().__init__()
        self.excite = nn.Linear(8, 8)

    def forward(self, x, hold):
        return x * hold(torch.sigmoid(self.excite(x.mean(1, keepdim=True))))


class SelfAttention(nn.Module):
    """Softmax weights spelled out, mask and talking heads on request."""

    def __init__(self, mask=None, talking=False, cosine=False):
        super().__init__()
        self.qkv, self.voices = nn.Linear(8, 24), nn.Parameter(torch.randn(2, 2))
        self.mask, self.talking, self.cosine = mask, talking, cosine
        self.register_buffer("table", torch.randn(2, 4, 4))

    def forward(self, x, hold):
        q, k, v = self.qkv(x).reshape(x.shape[0], 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        if self.cosine:
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        scores = q @ k.transpose(-2, -1) * 0.5
        if self.mask == "additive":
            scores = scores + self.table
        if self.mask == "causal":
            scores = scores.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), float("-inf"))
        if self.mask == "where":
            scores = torch.where(torch.ones(4, 4, dtype=torch.bool).tril(), scores, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if self.talking:
            weights = torch.einsum("hg,bgqk->bhqk", self.voices, weights)
        return (hold(weights) @ v).transpose(1, 2).reshape(x.shape)


class CrossCovariance(nn.Module):
    """XCiT: channels attend to channels, with L2-normalised queries and keys."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, hold):
        q, k, v = self.qkv(x).reshape(x.shape[0], 4, 3, 2, 4).permute(2, 0, 3, 4, 1)
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return (hold(weights) @ v).permute(0, 3, 1, 2).reshape(x.shape)


LAYERS = {
    "LayerNorm": LayerNorm,
    "LayerNorm by var": VarNorm,
    "RMSNorm": RMSNorm,
    "GroupNorm": GroupNorm,
    "tanh GELU": TanhGELU,
    "quick GELU": QuickGELU,
    "x sigmoid(x)": Swish,
    "mish": MishFormula,
    "L2": Normalise,
    "functional.normalize": FunctionalNormalise,
    "GRN": GRN,
    "gated unit": GatedUnit,
    "GLU": GatedLinearUnit,
    "bilinear": Bilinear,
    "squeeze": Squeeze,
    "attention": SelfAttention,
    "attention, additive": lambda: SelfAttention("additive"),
    "attention, causal": lambda: SelfAttention("causal"),
    "attention, where": lambda: SelfAttention("where"),
    "attention, cosine": lambda: SelfAttention(cosine=True),
    "talking heads": lambda: SelfAttention(talking=True),
    "cross-covariance": CrossCovariance,
}


@pytest.mark.parametrize("name", LAYERS)
def test_spelled_out(name):
    """S3, app:dave-conditioned: gates, statistics and weights spelled out in primitives are detached as S9 says."""
    model = Spelled(LAYERS[name]()).double().eval()
    x = torch.randn(2, 4, 8, dtype=F64)

    def twin(t):
        model.hold = torch.Tensor.detach
        try:
            return model(t)
        finally:
            model.hold = same

    compare(model, twin, x, 1, differs=name != "bilinear")


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(8), lambda: nn.LayerNorm((4, 8)), lambda: nn.GroupNorm(2, 4)])
def test_norm_operators(make):
    """The fused operators have the same kernel as their spelled-out forms: γ/s, statistics detached."""
    model = stirred(nn.Sequential(nn.Linear(8, 8), make(), nn.Flatten(), nn.Linear(32, 3)))
    compare(model, held(model), torch.randn(2, 4, 8, dtype=F64), 0)


def test_rms_norm_operator():
    """torch's RMSNorm against the held formula."""
    model = stirred(nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8, eps=1e-6), nn.Flatten(), nn.Linear(32, 3)))

    def twin(t):
        y = model[0](t)
        y = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt().detach() * model[1].weight
        return model[3](model[2](y))

    compare(model, twin, torch.randn(2, 4, 8, dtype=F64), 2)


def test_instance_norm_operator():
    """Instance norm of an image, per channel statistics."""
    model = stirred(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    )

    def twin(t):
        y = model[0](t)
        spread = (y.var((2, 3), correction=0, keepdim=True) + model[1].eps).sqrt()
        y = (y - y.mean((2, 3), keepdim=True).detach()) / spread.detach()
        y = y * model[1].weight.view(-1, 1, 1) + model[1].bias.view(-1, 1, 1)
        return model[4](y.relu().flatten(1))

    compare(model, twin, torch.randn(2, 3, 6, 6, dtype=F64), 2)


def test_grouped_fused_attention():
    """Grouped heads in the fused operator: the values are repeated, their gradients add up."""

    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
            self.head = nn.Linear(32, 3)
            self.hold = False

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (-1, 2)).transpose(1, 2) for t in (self.q(x), self.k(x), self.v(x)))
            if self.hold:
                k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
                y = held_weights(q, k) @ v
            else:
                y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return self.head(y.transpose(1, 2).flatten(1))

    model = Grouped().double().eval()
    twin = Grouped().double().eval()
    twin.load_state_dict(model.state_dict())
    twin.hold = True
    compare(model, twin, torch.randn(2, 4, 8, dtype=F64), 0)


@pytest.mark.parametrize("size", [64, 32])
def test_convnextv2(size):
    """timm's ConvNeXt-V2 block with its GRN, LayerNorm over channels and GELU (S9).

    At 32 pixels the last stage has one position, and GRN's norm the shape of its input: a statistic all the same.
    """
    import timm
    from timm.layers.grn import GlobalResponseNorm

    model = timm.create_model("convnextv2_atto", num_classes=4, depths=(1, 1, 1, 1), dims=(4, 6, 8, 10))
    model = stirred(model)
    twin = held(model)

    class HeldGRN(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            size = x.norm(p=2, dim=self.norm.spatial_dim, keepdim=True)
            share = (size / (size.mean(dim=self.norm.channel_dim, keepdim=True) + self.norm.eps)).detach()
            shape = self.norm.wb_shape
            return x + torch.addcmul(self.norm.bias.view(shape), self.norm.weight.view(shape), x * share)

    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, GlobalResponseNorm):
                setattr(parent, name, HeldGRN(child))
            elif type(child).__name__ == "HeldLayerNorm" and "2d" in type(child.norm).__name__:
                setattr(parent, name, channels_last(child))
    compare(model, twin, torch.randn(2, 3, size, size, dtype=F64), 1)


def channels_last(norm):
    """A layer norm over the channels of (B, C, H, W)."""

    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return Moved()


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 20}


def held_attention(module, query, key, value, attention_mask, scaling=None, **_):
    """transformers' attention with detached weights, grouped heads repeated."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = torch.where(attention_mask, 0.0, torch.finfo(query.dtype).min)
    elif attention_mask is None and getattr(module, "is_causal", False):
        length = query.shape[2]
        attention_mask = query.new_full((length, length), torch.finfo(query.dtype).min).triu(1)
    weights = held_weights(query, key, attention_mask, scaling)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def text_model(name, attention="eager"):
    """A small transformer with random weights, its last dimension of logits 3 or more."""
    import transformers

    if name == "llama":
        config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, attn_implementation=attention)
        return stirred(transformers.LlamaForCausalLM(config))
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=4, vocab_size=20, num_labels=3, pad_token_id=0, attn_implementation=attention
        )
        return stirred(transformers.GPT2ForSequenceClassification(config))
    config = transformers.BertConfig(**SMALL, num_labels=3, attn_implementation=attention)
    return stirred(transformers.BertForSequenceClassification(config))


class LlamaLike(nn.Module):
    """RMSNorm in primitives, rotary embedding, causal grouped heads, gated MLP, logits at every position (B, T, K)."""

    def __init__(self, fused):
        super().__init__()
        self.fused, self.hold = fused, same
        self.norm1, self.norm2, self.norm3 = RMSNorm(), RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(8, n, bias=False) for n in (8, 4, 4, 8))
        self.mlp, self.down, self.head = GatedUnit(), nn.Linear(8, 8, bias=False), nn.Linear(8, 6, bias=False)
        angle = torch.arange(5.0)[:, None] * torch.tensor([1.0, 1.0])
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotated(self, t):
        return t * self.cos + torch.cat([-t[..., 1:], t[..., :1]], -1) * self.sin

    def attention(self, x):
        q, k, v = (t.unflatten(-1, (-1, 2)).transpose(1, 2) for t in (self.q(x), self.k(x), self.v(x)))
        q, k = self.rotated(q), self.rotated(k)
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(t.shape[0], 4, 5, 2) for t in (k, v))
        if self.fused and self.hold is same:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.full((5, 5), float("-inf"), dtype=x.dtype).triu(1)
            y = self.hold((q @ k.transpose(-2, -1) * 2**-0.5 + future).softmax(-1)) @ v
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.norm1(x, self.hold))
        x = x + self.down(self.mlp(self.norm2(x, self.hold), self.hold))
        return self.head(self.norm3(x, self.hold))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("position", [0, 2, 4])
def test_llama_like(fused, position):
    """A Llama-type block entirely in float64; later tokens have no gradient at an earlier position (causal mask)."""
    model = LlamaLike(fused).double().eval()
    x = torch.randn(2, 5, 8, dtype=F64)
    model.hold = torch.Tensor.detach
    value, expected = gradient(lambda t: model(t)[:, position, 3], x)
    model.hold = same
    play = bp.StoppingGame(model).play(x, (position, 3))
    assert_near(play.value, value, what="value")
    assert_near(play.attribution(), expected, what="gradient")
    assert not play.attribution()[:, position + 1 :].any()
    _, plain = gradient(lambda t: model(t)[:, position, 3], x)
    assert (plain - expected).abs().max() > 1e-3 * expected.abs().max()


@pytest.mark.parametrize("attention", [pytest.param("eager", marks=pytest.mark.slow), "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_text(name, attention):
    """Llama (RMSNorm, rotary, gated MLP, grouped heads), GPT-2 (tanh GELU formula) and BERT, from `inputs_embeds`.

    transformers' Llama computes its norms in float32 whatever the model's precision.
    """
    from transformers import AttentionInterface

    AttentionInterface.register("held", held_attention)
    model = text_model(name, attention)
    embeds = torch.randn(2, 5, 16, dtype=F64)
    twin = held(model)
    twin.config._attn_implementation = "held"

    def logits(t):
        out = twin(inputs_embeds=t).logits
        return out[:, -1, 1] if out.ndim == 3 else out[:, 1]

    value, expected = gradient(logits, embeds)
    play = bp.StoppingGame(model).play({"inputs_embeds": embeds}, 1)
    relative = 1e-5 if name == "llama" else 1e-10
    assert_near(play.value, value, relative, what="value")
    assert_near(play.attribution(), expected, relative, what="gradient")
    assert play.health().ok
