"""Attention in its spellings (S23) and contractions without a softmax (S17), on tokens (T, C)."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fuzz.blocks import Block, Shape, project
from fuzz.reference import Node, Tape


def by_hand(scores: Tensor) -> Tensor:
    """softmax as people write it."""
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


class Attention(Block):
    """softmax(q kᵀ) v, one or two heads, masks, grouped heads; v projected, gated or raw."""

    FORMS = ("sdpa", "softmax", "einsum", "by hand", "nn.MultiheadAttention")

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        tokens, width = shape
        self.heads, self.size = rng.choice([1, 2]), 2
        inner = self.heads * self.size
        self.form = rng.choice(self.FORMS)
        self.mask = rng.choice(["", "", "causal", "additive", "boolean"])
        self.values = rng.choice(["projection", "projection", "relu", "gelu", "raw", "also added"])
        self.groups = rng.choice([1, self.heads])
        if self.form == "nn.MultiheadAttention":
            self.size = 1 if width % 2 and self.heads == 2 else width // self.heads
            self.heads, self.groups = width // self.size, width // self.size
            inner = width
            self.mask, self.values = rng.choice(["", "additive"]), "projection"
            self.module = nn.MultiheadAttention(width, self.heads, batch_first=True)
        if self.values == "raw":
            self.groups, self.size = self.heads, width // self.heads if width % self.heads == 0 else width
            self.heads = self.groups = width // self.size
            inner = width
        kv = self.groups * self.size
        self.packed = rng.random() < 0.3 and self.values == "projection"
        self.q, self.k, self.v = nn.Linear(width, inner), nn.Linear(width, kv), nn.Linear(width, kv)
        self.qkv = nn.Linear(width, inner + 2 * kv)
        self.split = [inner, kv, kv]
        self.bias = nn.Parameter(torch.zeros(tokens, tokens))
        allowed = torch.eye(tokens, dtype=torch.bool)
        for i in range(tokens):
            allowed[i, rng.randrange(tokens)] = True
        self.register_buffer("allowed", allowed)
        self.shape = (tokens, inner)
        self.words = f"attention by {self.form}, {self.heads} heads in {self.groups} groups, mask {self.mask!r}, v "
        self.words += self.values + (" packed" if self.packed else "")

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.packed:
            q, k, v = self.qkv(x).split(self.split, -1)
            return q, k, v
        v = x if self.values == "raw" else self.v(x)
        if self.values in ("relu", "gelu"):
            v = getattr(F, self.values)(v)
        return self.q(x), self.k(x), v

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "nn.MultiheadAttention":
            mask = self.bias if self.mask else None
            return self.module(x, x, x, need_weights=False, attn_mask=mask)[0]
        q, k, v = self.projected(x)
        heads = [t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in (q, k, v)]
        out = self.attended(*heads).transpose(1, 2).flatten(2)
        return out + v.repeat(1, 1, self.heads // self.groups) if self.values == "also added" else out

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.form == "sdpa":
            mask = {"additive": self.bias, "boolean": self.allowed}.get(self.mask)
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=self.mask == "causal", enable_gqa=self.groups != self.heads
            )
        if self.groups != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        a = self.weights(q, k, by_hand if self.form == "by hand" else lambda s: s.softmax(-1))
        return torch.einsum("bhqk,bhkd->bhqd", a, v) if self.form == "einsum" else a @ v

    def weights(self, q: Tensor, k: Tensor, softmax) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        if self.mask == "additive":
            scores = scores + self.bias
        if self.mask == "boolean":
            scores = scores.masked_fill(~self.allowed, -math.inf)
        if self.mask == "causal":
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        return softmax(scores)

    # ---------------------------------------------------------------- the reference
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of the three projections."""
        if self.form == "nn.MultiheadAttention":
            m = self.module
            return list(zip(m.in_proj_weight.detach().chunk(3), m.in_proj_bias.detach().chunk(3), strict=True))
        if self.packed:
            w, b = self.qkv.weight.detach(), self.qkv.bias.detach()
            return list(zip(w.split(self.split), b.split(self.split), strict=True))
        return [(m.weight.detach(), m.bias.detach()) for m in (self.q, self.k, self.v)]

    def reference(self, tape: Tape, a: Node) -> Node:
        a.sole = False
        (wq, bq), (wk, bk), (wv, bv) = self.layers()
        x, tokens = a.value, a.shape[0]
        cut = lambda t: t.unflatten(-1, (-1, self.size)).transpose(1, 2)  # noqa: E731
        q, k = cut(x @ wq.T + bq), cut(x @ wk.T + bk).repeat_interleave(self.heads // self.groups, 1)
        policy = self.weights(q, k, lambda s: s.softmax(-1)).detach()
        # powers of such a weight leave the range of float64: whether a stream is empty is not decided by the rules
        tape.delicate |= bool(((policy > 0) & (policy < 1e-100)).any())
        v = a if self.values == "raw" else tape.affine(a, lambda x: x @ wv.T, bv)
        if self.values in ("relu", "gelu"):
            z = v.value
            c = (z > 0).double() if self.values == "relu" else 0.5 * torch.special.erfc(-z / math.sqrt(2))
            v = tape.gate(v, z * c, c, c, nonnegative=self.values == "relu")

        def mixed(values: Tensor) -> Tensor:
            """(N, B, …) unit values by the weights of each sample."""
            n = len(values)
            heads = cut(values).repeat_interleave(self.heads // self.groups, 1)
            return torch.einsum("bhqk,nhkd->bnqhd", policy, heads).reshape(len(policy), n, -1)

        matrix = mixed(torch.eye(v.flat.shape[1], dtype=torch.float64).reshape(-1, *v.shape))
        out = tape.attend(v, matrix, (tokens, self.heads * self.size))
        if self.values == "also added":
            out = tape.sum(out, tape.wire([v], lambda t: t.repeat(1, 1, self.heads // self.groups)))
        if self.form == "nn.MultiheadAttention":
            w, b = self.module.out_proj.weight.detach(), self.module.out_proj.bias
            out = tape.affine(out, lambda t: t @ w.T, b)
            out.channels = False  # its outputs are features, the channels of a batch norm behind it are tokens
        return out


class Contraction(Block):
    """Two live tensors contracted: linear attention, q kᵀ without softmax, a dot product over features (S17)."""

    FORMS = ("linear attention, relu", "linear attention, elu + 1", "normalised", "(q kᵀ) v", "q kᵀ", "(q * k).sum")

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        tokens, width = shape
        self.form = rng.choice(self.FORMS)
        self.q, self.k, self.v = (nn.Linear(width, 2) for _ in range(3))
        self.einsum = rng.random() < 0.4
        self.shape = {"q kᵀ": (tokens, tokens), "(q * k).sum": (tokens,)}.get(self.form, (tokens, 2))
        self.words = f"{self.form}{' by einsum' if self.einsum else ''}"

    def feature(self, x: Tensor) -> Tensor:
        return torch.relu(x) if self.form != "linear attention, elu + 1" else F.elu(x) + 1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.form == "(q * k).sum":
            return torch.einsum("btd,btd->bt", q, k) if self.einsum else (q * k).sum(-1)
        if self.form == "q kᵀ":
            return torch.einsum("bqd,bkd->bqk", q, k) if self.einsum else q @ k.transpose(1, 2)
        if self.form == "(q kᵀ) v":
            return (q @ k.transpose(1, 2)) @ v
        q, k = self.feature(q), self.feature(k)
        if self.einsum:
            out = torch.einsum("btd,bde->bte", q, torch.einsum("btd,bte->bde", k, v))
        else:
            out = q @ (k.transpose(1, 2) @ v)
        return out / (q @ k.sum(1).unsqueeze(-1) + 0.1) if self.form == "normalised" else out

    def reference(self, tape: Tape, a: Node) -> Node:
        a.sole = False
        q, k, v = (project(tape, a, layer) for layer in (self.q, self.k, self.v))
        if self.form == "(q * k).sum":
            if self.einsum:
                return tape.contract(q, k, lambda p, s: (p * s).sum(-1), (0, 1))
            return tape.mix(tape.product(q, k, (0, 1)), lambda x: x.sum(-1))
        if self.form in ("q kᵀ", "(q kᵀ) v"):
            scores = tape.contract(q, k, lambda p, s: p @ s.transpose(1, 2), (0, 1))
            return scores if self.form == "q kᵀ" else tape.contract(scores, v, torch.matmul, (0, 1))
        tape.careful(torch.stack([q.value, k.value]), 0.0)
        q, k = (tape.add(self.feature(t.value), nonnegative=True) for t in (q, k))
        inner = tape.contract(k, v, lambda p, s: p.transpose(1, 2) @ s, (1,))
        out = tape.contract(q, inner, torch.matmul, (1,))
        if self.form == "normalised":
            out = tape.diagonal(out, 1 / (q.value @ k.value.sum(1).unsqueeze(-1) + 0.1))
        return out
