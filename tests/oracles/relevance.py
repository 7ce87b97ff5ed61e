"""Relevance propagation, slow: loops over neurons in numpy, one sample at a time, one formula a function.

`Layers` holds the textbook rules of one affine layer; `Transformer` reads the weights of `methods.toys.TinyViT`, runs
it and carries relevance back under the rules of Achtibat (AttnLRP), Ali (CP-LRP) or Chefer (TIBAV).
"""

import math

import numpy as np


def sign(z):
    """The sign of a denominator; that of 0 is +."""
    return -1.0 if z < 0 else 1.0


def ratio(r, z):
    """r / z, nothing where z is 0."""
    return 0.0 if z == 0 else r / z


# one affine layer: weights (out, in), input a, relevance at the output ------------------------------------------------
def epsilon(a, weight, bias, relevance, eps=0.0, share=False):
    """Bach 2015, eq. 58, the bias in z; with `share` the bias' part goes to the inputs by |a_i w_ij|."""
    found = np.zeros(len(a))
    for j, row in enumerate(weight):
        z = float(row @ a) + bias[j]
        for i in range(len(a)):
            numerator = a[i] * row[i]
            if share:
                numerator += bias[j] * ratio(abs(a[i] * row[i]), np.abs(row * a).sum())
            found[i] += ratio(numerator * relevance[j], z + eps * sign(z))
    return found


def gamma(a, weight, bias, relevance, eps=0.0, gam=0.25, share=False):
    """Andéol 2021: contributions of the sign of z weigh 1 + γ."""
    found = np.zeros(len(a))
    for j, row in enumerate(weight):
        z = float(row @ a) + bias[j]
        if z == 0:
            continue
        terms = [c * (1 + gam) if c * z > 0 else c for c in row * a]
        offset = bias[j] * (1 + gam) if bias[j] * z > 0 else bias[j]
        total = sum(terms) + offset
        for i, c in enumerate(terms):
            numerator = c + (offset * ratio(abs(c), sum(map(abs, terms))) if share else 0.0)
            found[i] += ratio(numerator * relevance[j], total + eps * sign(total))
    return found


def box(a, weight, relevance, low, high, eps=0.0):
    """Montavon 2017, zᴮ; bounds are numbers, or arrays like `a`."""
    found, low, high = np.zeros(len(a)), np.broadcast_to(low, len(a)), np.broadcast_to(high, len(a))
    for j, row in enumerate(weight):
        terms = [a[i] * w - low[i] * max(w, 0.0) - high[i] * min(w, 0.0) for i, w in enumerate(row)]
        for i, c in enumerate(terms):
            found[i] += ratio(c * relevance[j], sum(terms) + eps * sign(sum(terms)))
    return found


def absolute(a, weight, relevance, eps=0.0):
    """Shares of |a_i w_ij|."""
    found = np.zeros(len(a))
    for j, row in enumerate(weight):
        for i, w in enumerate(row):
            found[i] += ratio(abs(a[i] * w) * relevance[j], np.abs(row * a).sum() + eps)
    return found


def alpha_beta(a, weight, bias, relevance, alpha, beta, eps=0.0):
    """Bach 2015, eq. 60: a bias stands in the sum of its sign."""
    found = np.zeros(len(a))
    for j, row in enumerate(weight):
        for factor, side in ((alpha, 1.0), (-beta, -1.0)):
            terms = [max(side * c, 0.0) for c in row * a]
            total = sum(terms) + max(side * bias[j], 0.0) + eps
            for i, c in enumerate(terms):
                found[i] += factor * ratio(c * relevance[j], total)
    return found


def blind(weights, offset, relevance, eps=0.0):
    """Shares that do not ask for the input; `offset` stands in the denominator."""
    found = np.zeros(weights.shape[1])
    for j, row in enumerate(weights):
        for i, w in enumerate(row):
            found[i] += ratio(w * relevance[j], row.sum() + offset[j] + eps)
    return found


def activating(a, weight, relevance):
    """αβ with α = 1, β = 0."""
    found = np.zeros(len(a))
    for j, row in enumerate(weight):
        terms = [max(a[i] * w, 0.0) for i, w in enumerate(row)]
        for i, c in enumerate(terms):
            found[i] += ratio(c * relevance[j], sum(terms))
    return found


def mlp(layers, x, target, rule, first=None):
    """Relevance at the input of a ReLU network; `rule(a, weight, bias, relevance)` for each layer."""
    values = [x]
    for k, (weight, bias) in enumerate(layers):
        z = weight @ values[-1] + bias
        values.append(z if k == len(layers) - 1 else np.maximum(z, 0))
    relevance = np.zeros(len(values[-1]))
    relevance[target] = values[-1][target]
    for k in reversed(range(len(layers))):
        chosen = first if first is not None and k == 0 else rule
        relevance = chosen(values[k], *layers[k], relevance)
    return relevance


# a transformer --------------------------------------------------------------------------------------------------------
def gelu(z):
    return np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in z.flat]).reshape(z.shape)


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def every(rule, a, *args):
    """A rule for one token at a time; the last argument is relevance (tokens, out)."""
    *args, relevance = args
    return np.stack([rule(row, *args, r) for row, r in zip(a, relevance, strict=True)])


class Transformer:
    """`TinyViT` on one image: `weights` are the arrays of its state dict."""

    def __init__(self, model):
        self.w = {k: v.detach().double().numpy() for k, v in model.state_dict().items()}
        self.depth, self.heads, self.patch = model.depth, model.heads, model.patch_size
        self.prefix = int(model.class_token)

    def norm(self, name, x):
        centred = x - x.mean(1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return centred / deviation * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def split(self, x):
        """(T, heads · d) as (heads, T, d)."""
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def run(self, image):
        """Every value that the rules ask for."""
        p, w = self.patch, self.w
        grid = image.shape[-1] // p
        self.patches = np.stack(
            [image[:, i * p : i * p + p, j * p : j * p + p].ravel() for i in range(grid) for j in range(grid)]
        )
        self.kernel = w["embed.weight"].reshape(len(w["embed.weight"]), -1)
        tokens = self.patches @ self.kernel.T + w["embed.bias"]
        self.tokens = np.concatenate([w["token"][0], tokens]) if self.prefix else tokens
        x = self.tokens + w["position"][0]
        self.blocks = []
        for k in range(self.depth):
            name, b = f"blocks.{k}", {"x": x}
            b["n"] = self.norm(f"{name}.norm1", x)
            b["qkv"] = self.linear(f"{name}.qkv", b["n"])
            b["q"], b["k"], b["v"] = (self.split(part) for part in np.split(b["qkv"], 3, 1))
            b["s"] = np.einsum("hqd,hkd->hqk", b["q"], b["k"]) / math.sqrt(b["q"].shape[-1])
            b["a"] = np.stack([[softmax(row) for row in head] for head in b["s"]])
            b["o"] = np.einsum("hqk,hkd->hqd", b["a"], b["v"])
            b["c"] = b["o"].transpose(1, 0, 2).reshape(len(x), -1)
            b["p"] = self.linear(f"{name}.proj", b["c"])
            b["y"] = x + b["p"]
            b["m"] = self.norm(f"{name}.norm2", b["y"])
            b["h"] = self.linear(f"{name}.fc1", b["m"])
            b["g"] = gelu(b["h"])
            b["f"] = self.linear(f"{name}.fc2", b["g"])
            x = b["y"] + b["f"]
            self.blocks.append(b)
        self.x = x
        self.last = self.norm("norm", x)
        self.pooled = self.last[:1] if self.prefix else self.last.mean(0, keepdims=True)
        return self.linear("head", self.pooled)[0]


class Linear:
    """The rules that Ali and Achtibat share; `layer` and `conv` are rules of one layer, `flow` opens the softmax."""

    def __init__(self, layer, conv, flow=False, eps=0.0):
        self.layer, self.conv, self.flow, self.eps = layer, conv, flow, eps
        self.start = None

    def add(self, a, b, r):
        """R · a / (a + b)."""
        per = np.vectorize(ratio)(r, a + b)
        return a * per, b * per

    def norm(self, x, y, scale, r):
        """Ali 2022, eq. 10: centring is linear, the deviation is held."""
        found = np.zeros_like(x)
        for t in range(len(x)):
            deviation = math.sqrt(x[t].var() + 1e-5)
            for i in range(x.shape[1]):
                for j in range(x.shape[1]):
                    jacobian = ((i == j) - 1 / x.shape[1]) * scale[j] / deviation
                    found[t, i] += x[t, i] * jacobian * ratio(r[t, j], y[t, j])
        return found

    def attention(self, b, r):
        """Relevance of q, k, v from that of the output: held weights, or props. 3.1 and 3.3 of Achtibat 2024."""
        found = {name: np.zeros_like(b[name]) for name in "qkv"}
        heads, tokens, width = b["o"].shape
        for h in range(heads):
            on_weight = np.zeros((tokens, tokens))
            for q in range(tokens):
                for d in range(width):
                    o = b["o"][h, q, d]
                    for k in range(tokens):
                        part = b["a"][h, q, k] * b["v"][h, k, d] * r[h, q, d]
                        part = part / (2 * o + self.eps * sign(o)) if self.flow else part / o
                        found["v"][h, k, d] += part
                        on_weight[q, k] += part
            if self.flow:
                self.queries_and_keys(b, h, on_weight, found)
        return found["q"], found["k"], found["v"]

    def queries_and_keys(self, b, h, on_weight, found):
        scale = 1 / math.sqrt(b["q"].shape[-1])
        for q in range(len(on_weight)):
            for k in range(len(on_weight)):
                s = b["s"][h, q, k]
                on_score = s * (on_weight[q, k] - b["a"][h, q, k] * on_weight[q].sum())
                for d in range(b["q"].shape[-1]):
                    part = b["q"][h, q, d] * b["k"][h, k, d] * scale * on_score / (2 * s + self.eps * sign(s))
                    found["q"][h, q, d] += part
                    found["k"][h, k, d] += part

    def constant(self, x, y, r):
        """The part of x in y = x + constant."""
        return x * np.vectorize(ratio)(r, y)

    def pool(self, x, mean, r):
        return x / len(x) * np.vectorize(ratio)(r, mean)


class Composite(Linear):
    """What all composites have in common: norms and offsets pass relevance on, sums and pooling have a stabiliser."""

    def __init__(self, layer, conv, eps, stabiliser=1e-6):
        super().__init__(layer, conv, flow=True, eps=eps)
        self.stabiliser = stabiliser

    def per(self, r, z):
        return r / (z + self.stabiliser * np.vectorize(sign)(z))

    def add(self, a, b, r):
        return a * self.per(r, a + b), b * self.per(r, a + b)

    def norm(self, x, y, scale, r):
        return r

    def constant(self, x, y, r):
        return r

    def pool(self, x, mean, r):
        return x / len(x) * self.per(r, mean)


class Chefer:
    """Chefer 2021a: αβ in layers, norms and offsets pass, sums are split and then normalised as wholes."""

    start = 1.0

    def __init__(self):
        self.layer = self.conv = lambda a, weight, bias, r: activating(a, weight, r)
        self.on_weights = []

    def add(self, a, b, r):
        per = np.vectorize(ratio)(r, a + b)
        left, right = a * per, b * per
        size = abs(left.sum()) + abs(right.sum())
        return tuple(part * ratio(abs(part.sum()) / size * r.sum(), part.sum()) for part in (left, right))

    def norm(self, x, y, scale, r):
        return r

    def attention(self, b, r):
        per = np.vectorize(ratio)(r, b["o"])
        on_weight = b["a"] * np.einsum("hqd,hkd->hqk", per, b["v"]) / 2
        self.on_weights.insert(0, on_weight)
        v = b["v"] * np.einsum("hqk,hqd->hkd", b["a"], per) / 2
        per = np.vectorize(ratio)(on_weight, np.einsum("hqd,hkd->hqk", b["q"], b["k"]))
        q = b["q"] * np.einsum("hqk,hkd->hqd", per, b["k"]) / 2
        return q, b["k"] * np.einsum("hqk,hqd->hkd", per, b["q"]) / 2, v

    def constant(self, x, y, r):
        return r

    def pool(self, x, mean, r):
        return x / len(x) * np.vectorize(ratio)(r, mean)


def propagate(net: Transformer, image, target, rules):
    """Relevance at the image, of its shape."""
    logits = net.run(image)
    w, r = net.w, np.zeros(len(logits))
    r[target] = logits[target] if rules.start is None else rules.start

    def layer(name, a, r):
        return every(rules.layer, a, w[f"{name}.weight"], w[f"{name}.bias"], r)

    def norm(name, x, y, r):
        return rules.norm(x, y, w[f"{name}.weight"], r)

    pooled = layer("head", net.pooled, r[None])
    if net.prefix:
        r = np.zeros_like(net.last)
        r[0] = pooled[0]
    else:
        r = rules.pool(net.last, net.pooled, pooled)
    r = norm("norm", net.x, net.last, r)
    for k, b in reversed(list(enumerate(net.blocks))):
        name = f"blocks.{k}"
        skip, inner = rules.add(b["y"], b["f"], r)
        inner = layer(f"{name}.fc1", b["m"], layer(f"{name}.fc2", b["g"], inner))  # the gate passes it on
        r = skip + norm(f"{name}.norm2", b["y"], b["m"], inner)
        skip, inner = rules.add(b["x"], b["p"], r)
        heads = rules.attention(b, net.split(layer(f"{name}.proj", b["c"], inner)))
        joined = np.concatenate([part.transpose(1, 0, 2).reshape(len(r), -1) for part in heads], 1)
        r = skip + norm(f"{name}.norm1", b["x"], b["n"], layer(f"{name}.qkv", b["n"], joined))
    r = rules.constant(net.tokens, net.blocks[0]["x"], r)[net.prefix :]
    pixels = every(rules.conv, net.patches, net.kernel, w["embed.bias"], r)
    return unfold(pixels, image.shape, net.patch)


def unfold(pixels, shape, p):
    """Patches back in their places."""
    found, grid = np.zeros(shape), shape[-1] // p
    for n, patch in enumerate(pixels):
        i, j = divmod(n, grid)
        found[:, i * p : i * p + p, j * p : j * p + p] = patch.reshape(shape[0], p, p)
    return found
