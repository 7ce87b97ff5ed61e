"""Maps read off attention: by hand on two layers of two heads, on every family that has patches, and the refusals."""

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from backplay.methods.attention import attention_gradients
from backplay.methods.subject import Subject
from backplay.methods.tokens import find_tokens
from closeness import assert_near
from families import REDUCED, prepared
from oracles import relevance as slow
from toys import picture, tiny_vit

METHODS = ("raw_attention", "rollout", "gae", "tibav")
TARGET = [2, 0]


@functools.cache
def vit(fused=True, class_token=True):
    """The small transformer, captured once for all tests."""
    return bp.capture(tiny_vit(fused=fused, class_token=class_token), picture())


def weights_and_gradients(class_token):
    """For each sample and block the weights (heads, T, T) and the logit's gradient in them, by torch.autograd."""
    model, x = tiny_vit(fused=False, class_token=class_token), picture()
    found = []
    for image, target in zip(x, TARGET, strict=True):
        logit = model(image[None])[0, target]
        kept = [block.weights for block in model.blocks]
        gradients = torch.autograd.grad(logit, kept)
        found.append([(a[0].detach().numpy(), g[0].numpy()) for a, g in zip(kept, gradients, strict=True)])
    return found


def on_image(relevance, class_token):
    """Row of the class token, or the mean over tokens, laid out on the 2 × 2 grid and up-sampled to 8 × 8 by hand."""
    row = relevance[0, 1:] if class_token else relevance.mean(0)
    grid = row.reshape(2, 2)
    centres = np.clip((np.arange(8) + 0.5) / 4 - 0.5, 0, 1)  # where a pixel lies between the two patch centres
    mix = np.stack([1 - centres, centres], 1)
    return mix @ grid @ mix.T


def compare(method, expected, class_token, **params):
    found = bp.explain(vit(class_token=class_token), picture(), TARGET, method=method, **params)
    assert found.shape == (2, 1, 8, 8)
    assert_near(found[:, 0], np.stack([on_image(r, class_token) for r in expected]), what=method)


@pytest.mark.parametrize("class_token", [True, False])
def test_by_hand(class_token):
    """Raw attention, rollout and GAE from the weights and gradients of an unfused twin, in loops."""
    samples = weights_and_gradients(class_token)
    compare("raw_attention", [(blocks[-1][0][0] + blocks[-1][0][1]) / 2 for blocks in samples], class_token)
    for weight in (0.0, 0.25, 1.0):
        expected = []
        for blocks in samples:
            product = np.eye(4 + class_token)
            for a, _ in blocks:
                mixed = (1 - weight) * a.mean(0) + weight * np.eye(len(product))
                product = mixed / mixed.sum(1, keepdims=True) @ product
            expected.append(product)
        compare("rollout", expected, class_token, residual_weight=weight)
    expected = []
    for blocks in samples:
        relevance = np.eye(4 + class_token)
        for a, g in blocks:
            relevance = relevance + np.maximum(a * g, 0).mean(0) @ relevance
        expected.append(relevance)
    assert max(np.abs(r - np.eye(len(r))).max() for r in expected) > 1e-2
    compare("gae", expected, class_token)


@pytest.mark.parametrize("class_token", [True, False])
def test_tibav_by_hand(class_token):
    """Chefer's rules in loops on each sample alone."""
    net, expected = slow.Transformer(vit(class_token=class_token).model), []
    for image, target, blocks in zip(picture(), TARGET, weights_and_gradients(class_token), strict=True):
        rules = slow.Chefer()
        slow.propagate(net, image.numpy(), target, rules)
        relevance = np.eye(4 + class_token)
        for (_, gradient), on_weight in zip(blocks, rules.on_weights, strict=True):
            relevance = relevance + np.maximum(gradient * on_weight, 0).mean(0) @ relevance
        expected.append(relevance)
    assert max(np.abs(r - np.eye(len(r))).max() for r in expected) > 1e-3
    compare("tibav", expected, class_token)


@pytest.mark.parametrize("method", METHODS)
def test_fused_and_spelled_out(method):
    """The same weights give the same map; a batch is its samples one by one; the model is left as it was."""
    x = picture()
    fused, plain = (bp.explain(vit(f), x, TARGET, method=method) for f in (True, False))
    assert fused.abs().max() > 0
    assert_near(plain, fused, what="spelled out")
    ones = torch.cat([bp.explain(vit(), x[k : k + 1], TARGET[k], method=method) for k in range(2)])
    assert_near(ones, fused, what="one by one")
    with torch.inference_mode():
        inside = bp.explain(vit(), x.clone(), torch.tensor(TARGET), method=method)
    assert_near(inside, fused, what="in inference mode")
    assert all(p.grad is None for p in vit().model.parameters())
    assert not fused.requires_grad


def test_float32():
    """Precision of the two that follow gradients."""
    x = picture()
    single = bp.capture(tiny_vit().float(), x.float())
    for method in ("gae", "tibav"):
        expected = bp.explain(vit(), x, TARGET, method=method)
        assert_near(bp.explain(single, x.float(), TARGET, method=method), expected, 1e-3, what=method)


class Strips(nn.Module):
    """Patches by reshape and a linear layer, on images of 8 × 12; attention by einsum or `V @ A`."""

    def __init__(self, right=False):
        super().__init__()
        self.right = right
        self.embed, self.qkv, self.head = nn.Linear(16, 6), nn.Linear(6, 18), nn.Linear(6, 2)

    def forward(self, x):
        patches = x.unflatten(3, (3, 4)).unflatten(2, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)
        x = self.embed(patches)
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.einsum("bqd,bkd->bqk", q, k).softmax(-1)
        mixed = (v.mT @ weights.mT).mT if self.right else torch.einsum("bqk,bkd->bqd", weights, v)
        return self.head((x + mixed).mean(1))


def test_grid_without_convolution():
    """T = 6 on 8 × 12 pixels is a grid of 2 × 3; the mean over queries is laid out on it."""
    torch.manual_seed(2)
    model, x = Strips().double(), torch.randn(2, 1, 8, 12, dtype=torch.float64)
    net = bp.capture(model, x)
    tokens = find_tokens(net)
    assert tokens is not None and (tokens.prefix, tokens.height, tokens.width) == (0, 2, 3)
    patches = x.unflatten(3, (3, 4)).unflatten(2, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)
    q, k, _ = model.qkv(model.embed(patches)).chunk(3, -1)
    row = (q @ k.mT).softmax(-1).mean(1).reshape(2, 1, 2, 3)
    expected = nn.functional.interpolate(row, (8, 12), mode="bilinear")
    assert_near(bp.explain(net, x, 0, method="raw_attention"), expected, what="mean over queries")
    twin = Strips(right=True).double()
    twin.load_state_dict(model.state_dict())
    other = bp.capture(twin, x)
    for method in (*METHODS, "attn_lrp"):
        expected = bp.explain(net, x, 0, method=method)
        assert expected.abs().max() > 0
        assert_near(bp.explain(other, x, 0, method=method), expected, what=f"{method}, weights on the right")


class Registers(nn.Module):
    """2 × 2 patches behind five other tokens: nine tokens, which a grid of 3 × 3 would fit as well."""

    def __init__(self):
        super().__init__()
        self.embed, self.tokens = nn.Conv2d(1, 6, 6, 6), nn.Parameter(torch.randn(1, 5, 6))
        self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 2)

    def forward(self, x):
        x = torch.cat([self.tokens.expand(x.shape[0], -1, -1), self.embed(x).flatten(2).mT], 1)
        q, k, v = (t[:, None] for t in self.qkv(x).chunk(3, -1))
        return self.head((x + nn.functional.scaled_dot_product_attention(q, k, v)[:, 0])[:, 0])


def test_grid_is_that_of_the_convolution():
    tokens = find_tokens(bp.capture(Registers().double(), torch.randn(2, 1, 12, 12, dtype=torch.float64)))
    assert tokens is not None and (tokens.prefix, tokens.height, tokens.width) == (5, 2, 2)


# prefix, height, width: class token; class and distillation; class and four registers
GRIDS = {
    "torchvision vit": (1, 2, 2),
    "timm deit distilled": (2, 2, 2),
    "timm registers": (5, 2, 2),
    "hub vit": (1, 4, 4),
}
REFUSED = ("torchvision swin", "timm cait", "timm xcit", "timm convnext")


class Heads(nn.Module):
    """The small transformer with other tokens behind its class token, and a head that reads the rows given."""

    def __init__(self, rows, prefix=2):
        super().__init__()
        self.inner, self.rows = tiny_vit(), rows
        self.others = nn.Parameter(torch.randn(1, prefix - 1, 6, dtype=torch.float64))

    def forward(self, x):
        m = self.inner
        patches = m.embed(x).flatten(2).mT + m.position[:, 1:]
        token = (m.token + m.position[:, :1]).expand(x.shape[0], -1, -1)
        x = torch.cat([token, self.others.expand(x.shape[0], -1, -1), patches], 1)
        for block in m.blocks:
            x = block(x)
        return m.head(m.norm(x)[:, self.rows].mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(0,), (1,), (0, 1), (2, 3, 4, 5), (0, 1, 2, 3, 4, 5), (4,)])
def test_rows_that_decide(rows):
    """Read are the rows of the tokens that the head reads, whatever stands before the patches."""
    model, x = Heads(list(rows)).eval(), picture()
    net = bp.capture(model, x)
    subject = Subject.of(net, x, TARGET)
    tokens = find_tokens(net)
    assert (tokens.prefix, tokens.height, tokens.width) == (2, 2, 2)
    pairs = attention_gradients(subject, tokens)
    assert sorted({int(k) for k in pairs[-1][1].abs().sum((1, 3)).nonzero()[:, 1]}) == list(rows)
    relevance = torch.eye(6, dtype=torch.float64).expand(2, 6, 6)
    for weight, gradient in pairs:
        relevance = relevance + (weight * gradient).clamp(min=0).mean(1) @ relevance
    means = {"gae": relevance, "raw_attention": pairs[-1][0].mean(1)}
    for method, scores in means.items():
        patches = scores[:, rows, 2:].mean(1).reshape(2, 1, 2, 2)
        expected = nn.functional.interpolate(patches, (8, 8), mode="bilinear")
        assert_near(bp.explain(net, x, TARGET, method=method), expected, what=method)
    for method in METHODS:
        found = bp.explain(net, x, TARGET, method=method)
        assert found.abs().amax((1, 2, 3)).min() > 0
        ones = torch.cat([bp.explain(net, x[k : k + 1], TARGET[k], method=method) for k in range(2)])
        assert_near(ones, found, what="one by one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool, deciding",
    [
        ({}, slice(0, 1)),
        ({"global_pool": "avg", "class_token": True}, slice(1, 17)),
        ({"global_pool": "avg", "class_token": False, "reg_tokens": 4}, slice(4, 20)),
        ({"global_pool": "avg", "class_token": False}, slice(0, 16)),
    ],
)
def test_pooled_beside_a_class_token(pool, deciding):
    """timm pools over patches whatever stands before them."""
    from timm.models.vision_transformer import VisionTransformer

    options = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    model, x = prepared(VisionTransformer(**options, **pool)), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    net = bp.capture(model, x)
    tokens = find_tokens(net)
    weight = attention_gradients(Subject.of(net, x, TARGET), tokens)[-1][0].mean(1)
    patches = weight[:, deciding, tokens.prefix :].mean(1).reshape(2, 1, 4, 4)
    expected = nn.functional.interpolate(patches, (16, 16), mode="bilinear")
    assert_near(bp.explain(net, x, TARGET, method="raw_attention"), expected)
    assert bp.explain(net, x, TARGET, method="tibav").abs().amax((1, 2, 3)).min() > 0


def test_no_row_decides():
    """A head of zeros reads no token, so that there is no row to read."""
    model = tiny_vit()
    with torch.no_grad():
        model.head.weight.zero_()
    with pytest.raises(bp.BackplayError, match="no token"):
        bp.explain(model, picture(), TARGET, method="rollout")


def family(name):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries have to say about small settings
        model = prepared(REDUCED[name].build())
    x = torch.randn(2, 3, REDUCED[name].size, REDUCED[name].size, dtype=torch.float64)
    return bp.capture(model, x), x


@pytest.mark.parametrize("name", [n if n.startswith("t") else pytest.param(n, marks=pytest.mark.slow) for n in GRIDS])
def test_families(name):
    """Tokens that are no patches are counted from the graph."""
    net, x = family(name)
    tokens = find_tokens(net)
    assert tokens is not None and (tokens.prefix, tokens.height, tokens.width) == GRIDS[name]
    for method in METHODS:
        assert bp.methods()[method].fits(net)
        found = bp.explain(net, x, [1, 3], method=method)
        assert found.shape == (2, 1, *x.shape[2:]) and torch.isfinite(found).all()


@pytest.mark.parametrize("name", [REFUSED[0], *(pytest.param(n, marks=pytest.mark.slow) for n in REFUSED[1:])])
def test_refusals(name):
    """Windows, class attention, channels and no attention at all: refused before any work, with those that do fit."""
    net, x = family(name)
    for method in METHODS:
        assert not bp.methods()[method].fits(net)
        with pytest.raises(bp.BackplayError, match=r"all attend to each other.*these do: .*lrp_epsilon"):
            bp.explain(net, x, 1, method=method)


def test_registered():
    known = bp.methods()
    assert [len(known[m].grid) for m in METHODS] == [1, 5, 1, 1]
    families = {m: known[m].family for m in METHODS}
    assert families == {m: "cam and attention" if m in METHODS[:2] else "relevance" for m in METHODS}
    assert all(known[m].architectures == ("transformer",) for m in METHODS)
    with pytest.raises(ValueError, match=r"residual_weight=1.5 is out of range"):
        bp.explain(vit(), picture(), 0, method="rollout", residual_weight=1.5)
