"""Tiny attention blocks written once and read twice: as a real `nn.Module`, and as explicit states with transitions.

`Block` is the module: embedding (linear or patches), class token, position, LayerNorm, attention with two heads of two
features in one of its many spellings, residual sum, GELU MLP, LayerNorm, head. `describe` computes one sample in numpy
and lists its nodes; `RoutingWalk` and `StoppingWalk` add the states of app:attention-state-space to the walks of
`oracles.walks`, whose enumeration follows every trajectory.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from .dag import Node
from .walks import MINUS, PLUS, Routing, Stopping, Walk, cemetery, other

HEADS, FEATURES, HIDDEN, CLASSES, PIXELS = 2, 2, 2, 2, 2
INNER = HEADS * FEATURES


@dataclass(frozen=True)
class Form:
    """What a block looks like; weights are drawn apart."""

    tokens: int = 2  # patches or words
    width: int = 3  # features of a token
    embed: str = "linear"  # "linear" | "conv"
    class_token: bool = True
    packed: bool = False  # one projection for query, key and value
    spelling: str = "sdpa"  # "sdpa" | "matmul" | "einsum" | "right" (V @ A)
    mask: str = ""  # "" | "causal" | "boolean" | "additive"
    values: str = "projection"  # "projection" | "raw" (no projection) | "relu" (a gate behind it)
    groups: int = HEADS  # heads of key and value
    talking: bool = False  # softmax weights mixed over heads, with signs
    pool: str = "class"  # "class" | "mean"
    mlp: bool = True

    @property
    def length(self):
        """Tokens that attend, the class token included."""
        return self.tokens + self.class_token


# the module -----------------------------------------------------------------------------------------------------------
class ClassToken(nn.Module):
    """Puts the class token before the others (S26)."""

    def __init__(self, width):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x):
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


class Position(nn.Module):
    """Adds the position embedding, a bias (S2)."""

    def __init__(self, length, width):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, length, width))

    def forward(self, x):
        return x + self.table


class Add(nn.Module):
    """A residual sum with a path of its own."""

    def forward(self, a, b):
        return a + b


class Pool(nn.Module):
    """The class token, or the mean over tokens."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return x[:, 0] if self.how == "class" else x.mean(1)


class Patches(nn.Module):
    """A patch embedding: each token reads its own two pixels."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(1, width, (1, PIXELS), stride=(1, PIXELS))

    def forward(self, x):
        return self.conv(x).flatten(2).transpose(1, 2)


class Attend(nn.Module):
    """softmax(QKᵀ) V in the spelling of a form; (B, S, heads · features) in and out."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        length = form.length
        allowed = torch.ones(length, length, dtype=torch.bool)
        allowed[0, -1] = allowed[-1, 0] = False
        self.register_buffer("allowed", allowed)
        self.register_buffer("bias", torch.linspace(-1, 1, HEADS * length**2).reshape(1, HEADS, length, length))
        self.voices = nn.Parameter(torch.zeros(HEADS, HEADS))

    def forward(self, query, key, value):
        form = self.form
        query, key, value = (t.unflatten(-1, (-1, FEATURES)).transpose(1, 2) for t in (query, key, value))
        if form.spelling == "sdpa":
            out = nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask={"boolean": self.allowed, "additive": self.bias}.get(form.mask),
                is_causal=form.mask == "causal",
                enable_gqa=form.groups != HEADS,
            )
            return out.transpose(1, 2).flatten(2)
        if form.groups != HEADS:
            key, value = (t.repeat_interleave(HEADS // form.groups, 1) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * FEATURES**-0.5
        weights = self.masked(scores).softmax(-1)
        if form.talking:
            weights = torch.einsum("hg,bgqk->bhqk", self.voices, weights)
        if form.spelling == "right":
            return (value.mT @ weights.mT).permute(0, 3, 1, 2).flatten(2)
        if form.spelling == "einsum":
            return torch.einsum("bhqk,bhkd->bqhd", weights, value).flatten(2)
        return (weights @ value).transpose(1, 2).flatten(2)

    def masked(self, scores):
        if self.form.mask == "additive":
            return scores + self.bias
        if self.form.mask == "boolean":
            return scores.masked_fill(~self.allowed, -math.inf)
        if self.form.mask == "causal":
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(future, -math.inf)
        return scores


class Block(nn.Module):
    """One transformer block between an embedding and a head, in float64."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        width, kv = form.width, form.groups * FEATURES
        self.embed = nn.Linear(PIXELS, width) if form.embed == "linear" else Patches(width)
        if form.class_token:
            self.token = ClassToken(width)
        self.position = Position(form.length, width)
        self.norm1 = nn.LayerNorm(width)
        if form.packed:
            self.qkv = nn.Linear(width, INNER + 2 * kv)
        else:
            self.q, self.k = nn.Linear(width, INNER), nn.Linear(width, kv)
            if form.values != "raw":
                self.v = nn.Linear(width, kv)
        if form.values == "relu":
            self.gate = nn.ReLU()
        self.attend = Attend(form)
        self.out = nn.Linear(INNER, width)
        self.add1 = Add()
        if form.mlp:
            self.norm2, self.fc1, self.act = nn.LayerNorm(width), nn.Linear(width, HIDDEN), nn.GELU()
            self.fc2, self.add2 = nn.Linear(HIDDEN, width), Add()
        self.norm3, self.pool, self.head = nn.LayerNorm(width), Pool(form.pool), nn.Linear(width, CLASSES)
        self.double().eval()

    def forward(self, x):
        form = self.form
        x = self.embed(x)
        if form.class_token:
            x = self.token(x)
        x = self.position(x)
        y = self.norm1(x)
        if form.packed:
            kv = form.groups * FEATURES
            query, key, value = self.qkv(y).split([INNER, kv, kv], -1)
        else:
            query, key, value = self.q(y), self.k(y), y if form.values == "raw" else self.v(y)
        if form.values == "relu":
            value = self.gate(value)
        x = self.add1(x, self.out(self.attend(query, key, value)))
        if form.mlp:
            x = self.add2(x, self.fc2(self.act(self.fc1(self.norm2(x)))))
        return self.head(self.pool(self.norm3(x)))

    def shaped(self, flat):
        """Flat samples (B, tokens · pixels) as the input of the module."""
        x = torch.as_tensor(np.asarray(flat, dtype=float))
        tokens = self.form.tokens
        return x.reshape(len(x), 1, 1, -1) if self.form.embed == "conv" else x.reshape(len(x), tokens, PIXELS)

    def refill(self, generator, zeros):
        """New weights in place: multiples of 1/8, zero now and then; scales of norms near ±1."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                values = generator.integers(-12, 13, size=tuple(parameter.shape)) / 8.0
                if name.startswith("norm") and name.endswith("weight"):
                    values = generator.uniform(0.5, 1.5, parameter.shape) * generator.choice(
                        [-1, 1, 1], parameter.shape
                    )
                values[generator.random(values.shape) < zeros] = 0.0
                parameter.copy_(torch.as_tensor(values))
        return self


# the same block in numpy ----------------------------------------------------------------------------------------------
@dataclass
class Sample:
    """Nodes and values of one sample; `paths` names the nodes by the module that ends there."""

    nodes: list
    values: list
    paths: dict
    weights: np.ndarray | None = None  # (heads, S, S) the oracle's policy A

    def add(self, path, kind, inputs, shape, value, non_negative=False, **data):
        self.nodes.append(Node(kind, tuple(inputs), tuple(shape), data, non_negative))
        self.values.append(np.asarray(value, dtype=float).reshape(-1))
        self.paths[path] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def grid(self, i):
        return self.values[i].reshape(self.nodes[i].shape)


def erf_gelu(z):
    """Φ(z) with a correct left tail."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in np.ravel(z)]).reshape(np.shape(z))


def softmax(scores):
    """Rows of weights; −inf gives 0."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reader:
    """Reads the weights of a `Block` and lists the nodes of one sample."""

    def __init__(self, block, flat):
        self.form = block.form
        self.state = {k: v.detach().numpy() for k, v in block.state_dict().items()}
        self.sample = Sample([], [], {})
        self.sample.add("input", "input", (), (self.form.tokens, PIXELS), flat)

    def affine(self, path, i, key=None):
        """The same matrix for every token."""
        weight, bias = self.state[f"{key or path}.weight"], self.state[f"{key or path}.bias"]
        weight = weight.reshape(len(weight), -1)
        x = self.sample.grid(i)
        rows = x.size // weight.shape[1]
        dense = np.kron(np.eye(rows), weight)
        value = x.reshape(rows, -1) @ weight.T + bias
        return self.sample.add(path, "affine", (i,), value.shape, value, weight=dense, bias=np.tile(bias, rows))

    def norm(self, path, i):
        """LayerNorm: x ↦ γ x / s with detached statistics (S3)."""
        x = self.sample.grid(i)
        deviation = np.sqrt(x.var(1, keepdims=True) + 1e-5)
        gamma, beta = self.state[f"{path}.weight"], self.state[f"{path}.bias"]
        value = (x - x.mean(1, keepdims=True)) / deviation * gamma + beta
        scale = np.ravel(gamma / deviation)
        return self.sample.add(path, "norm", (i,), x.shape, value, scale=scale)

    def add(self, path, i, j):
        a, b = self.sample.grid(i), self.sample.grid(j)
        return self.sample.add(path, "sum", (i, j), a.shape, a + b, signs=(1, 1))

    def token(self, i):
        constant, x = self.state["token.token"].reshape(-1), self.sample.grid(i)
        sources = [("constant", k) for k in range(len(constant))] + [(0, k) for k in range(x.size)]
        value = np.concatenate([constant, x.reshape(-1)])
        shape = (len(x) + 1, x.shape[1])
        return self.sample.add("token", "wire", (i,), shape, value, sources=sources)

    def policy(self, query, key):
        """(heads, S, S) softmax weights after the mask."""
        form, length = self.form, self.form.length
        scores = np.zeros((HEADS, length, length))
        for h in range(HEADS):
            g = h * form.groups // HEADS
            q, k = query[:, h * FEATURES :][:, :FEATURES], key[:, g * FEATURES :][:, :FEATURES]
            scores[h] = q @ k.T / math.sqrt(FEATURES)
        if form.mask == "causal":
            scores[:, np.triu(np.ones((length, length), dtype=bool), 1)] = -np.inf
        if form.mask == "boolean":
            scores[:, ~self.state["attend.allowed"]] = -np.inf
        if form.mask == "additive":
            scores = scores + self.state["attend.bias"][0]
        return softmax(scores)

    def attention(self, i):
        """Projections, mixing: a composite node where S23 makes one, else a mix on the values."""
        form, length, sample = self.form, self.form.length, self.sample
        kv = form.groups * FEATURES
        offset = 0
        if form.packed:
            source = self.affine("qkv", i)
            everything = sample.grid(source)
            query, key = everything[:, :INNER], everything[:, INNER : INNER + kv]
            offset = INNER + kv
        else:
            x = sample.grid(i)
            query, key = (x @ self.state[f"{n}.weight"].T + self.state[f"{n}.bias"] for n in "qk")
            source = i if form.values == "raw" else self.affine("v", i)
        composite = form.values == "projection" and not form.talking
        if form.values == "relu":
            z = sample.grid(source)
            source = sample.add("gate", "gate", (source,), z.shape, np.maximum(z, 0), non_negative=True, name="relu")
        weights = self.policy(query, key)
        sample.weights = weights
        if form.talking:
            weights = np.einsum("hg,gqk->hqk", self.state["attend.voices"], weights)
        columns = sample.grid(source).shape[1]
        matrix = np.zeros((length * INNER, length * columns))
        for h in range(HEADS):
            g = h * form.groups // HEADS
            for d in range(FEATURES):
                rows = np.arange(length) * INNER + h * FEATURES + d
                reads = np.arange(length) * columns + offset + g * FEATURES + d
                matrix[np.ix_(rows, reads)] = weights[h]
        value = matrix @ sample.values[source]
        kind = "composite" if composite else "mix"
        non_negative = form.values == "relu" and not form.talking
        return sample.add(
            "attend", kind, (source,), (length, INNER), value, non_negative, weight=matrix, signed=form.talking
        )

    def read(self):
        form, sample = self.form, self.sample
        i = self.affine("embed", 0, "embed.conv" if form.embed == "conv" else "embed")
        if form.class_token:
            i = self.token(i)
        table = self.state["position.table"][0]
        i = sample.add("position", "diagonal", (i,), table.shape, sample.grid(i) + table, scale=np.ones(table.size))
        i = self.add("add1", i, self.affine("out", self.attention(self.norm("norm1", i))))
        if form.mlp:
            z = self.affine("fc1", self.norm("norm2", i))
            gated = sample.grid(z) * erf_gelu(sample.grid(z))
            h = sample.add("act", "gate", (z,), gated.shape, gated, name="gelu")
            i = self.add("add2", i, self.affine("fc2", h))
        i = self.norm("norm3", i)
        self.affine("head", self.pool(i))
        return sample

    def pool(self, i):
        form, x = self.form, self.sample.grid(i)
        if form.pool == "class":
            sources = [(0, k) for k in range(form.width)]
            return self.sample.add("pool", "wire", (i,), (1, form.width), x[:1], sources=sources)
        matrix = np.kron(np.full((1, len(x)), 1 / len(x)), np.eye(form.width))
        return self.sample.add("pool", "mix", (i,), (1, form.width), x.mean(0), weight=matrix)


def describe(block, flat):
    """Nodes and values of one flat sample."""
    return Reader(block, flat).read()


def is_delicate(sample, margin=1e-4):
    """Whether rounding could change a sign: a norm, a sum or a pre-activation very near zero, yet not exactly zero."""
    for node, value in zip(sample.nodes, sample.values, strict=True):
        if node.kind == "norm":
            value = value[node.data["scale"] != 0]
            if np.any(np.abs(value) < margin):
                return True
        near = np.abs(value) < margin
        if np.any(near & (value != 0)) and node.kind in ("affine", "sum", "composite", "mix", "gate"):
            return True
    return False


# transitions ----------------------------------------------------------------------------------------------------------
class StoppingWalk(Stopping):
    """S6-S8 with norms and attention: the softmax weights are those of a mix, the projection an affine node."""

    composite = Stopping.affine

    def norm(self, node, state):
        """S7: discount |γ/s|, player switched where it is negative."""
        return self.diagonal(node, state)

    def gate(self, node, state):
        if node.data["name"] != "gelu":
            return super().gate(node, state)
        return gelu_moves(self, node, state)


class RoutingWalk(Routing):
    """S12-S18 with the four state types of app:attention-state-space.

    `(n, j, p)` output activation, `(n, j, p, σ)` output sign branch, `(n, v, p, σ, "value")` the V-projection state of
    the value element `v`; from there the walk reaches an input `X_ke` of the projection.
    """

    def norm(self, node, state):
        """S17: passed through, whatever the scale."""
        return self.diagonal(node, state)

    def gate(self, node, state):
        if node.data["name"] != "gelu":
            return super().gate(node, state)
        return gelu_moves(self, node, state)

    def shares(self, node):
        """S18, S23: weights that are further linear maps of a softmax may be signed, whatever their numbers are."""
        return not node.data.get("signed") and super().shares(node)

    def has_streams(self, node):
        return node.kind == "composite" or super().has_streams(node)

    def is_empty(self, node, j, sign):
        """The composite's streams are those of the values that it mixes."""
        if node.kind != "composite":
            return super().is_empty(node, j, sign)
        return not any(self.key_scores(node, j, sign).values())

    def composite(self, node, state):
        if len(state) == 5:
            return self.value_state(node, state)
        if len(state) == 4:
            return self.key_choice(node, state)
        n, j, player = state
        empty = [self.is_empty(node, j, sign) for sign in (PLUS, MINUS)]
        if all(empty):
            return [(cemetery("empty"), 1.0, 1.0)]
        if any(empty) and self.empty_stream == "reroute":
            return [((n, j, player, PLUS if empty[MINUS] else MINUS), 1.0, self.alpha - self.beta)]
        moves = []
        for sign, turn, discount in ((PLUS, player, 2 * self.alpha), (MINUS, other(player), 2 * self.beta)):
            moves.append((cemetery("empty") if empty[sign] else (n, j, turn, sign), 0.5, discount))
        return moves

    def power(self, score):
        return score ** (1.0 / self.tau) if score > 0 else 0.0

    def key_scores(self, node, j, sign):
        """(A_qk ṽ^σ_kd)^{1/τ} for every value element that this output mixes, eq:attn-V-routing-policy-O."""
        projection, scores = self.nodes[node.inputs[0]], {}
        for v, weight in enumerate(node.data["weight"][j]):
            if weight > 0:
                stream = sum(self.contributions(projection, v, sign))  # ṽ^σ, eq:attn-Z-def
                scores[v] = self.power(weight * stream)
        return scores

    def key_choice(self, node, state):
        """The outside option stands here, once; so does an absorbed bias (S15, S23)."""
        n, j, player, sign = state
        scores = self.key_scores(node, j, sign)
        outside, bias = self.power(self.epsilon), self.key_bias(node, j, sign)
        total = sum(scores.values()) + outside + bias
        moves = [((n, v, player, sign, "value"), s / total, 1.0) for v, s in scores.items() if s > 0]
        return [*moves, (cemetery("outside"), outside / total, 1.0), (cemetery("bias"), bias / total, 1.0)]

    def key_bias(self, node, j, sign):
        """|b^σ|^{1/τ} of the projection's row that this output reads; its weights add up to 1."""
        reads = np.flatnonzero(node.data["weight"][j])
        return self.bias_score(self.nodes[node.inputs[0]], reads[0], sign)

    def value_state(self, node, state):
        """eq:attn-V-routing-policy: ([W X]^σ)^{1/τ}, no outside option."""
        _, v, player, sign, _ = state
        projection = self.nodes[node.inputs[0]]
        scores = [self.power(c) for c in self.contributions(projection, v, sign)]
        total = sum(scores)
        return [((projection.inputs[0], i, player), s / total, 1.0) for i, s in enumerate(scores) if s > 0]


def gelu_moves(walk: Walk, node, state):
    """Φ(z) in both games (S8)."""
    _, j, player = state
    c = float(erf_gelu(walk.operand(node)[j]))
    return [((node.inputs[0], j, player), c, 1.0), (cemetery("gate"), 1.0 - c, 1.0)]
