"""Small networks whose middle is a contraction; `hold` is the identity for the network and detaches in its twin."""

import torch
from torch import nn
from torch.nn import functional

F64 = torch.float64


def same(tensor):
    """The network itself: nothing is held."""
    return tensor


class Middle(nn.Module):
    """Tokens (B, 4, 6) → two or three projections → the form → logits (B, 3)."""

    def __init__(self, form, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.form, self.hold = form, same
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.register_buffer("table", torch.randn(6, 6))
        self.register_buffer("vector", torch.randn(6))
        self.register_buffer("stack", torch.randn(4, 6, 6))
        self.bilinear = nn.Bilinear(6, 6, 5)
        with torch.no_grad():
            width = self.inside(torch.randn(2, 4, 6)).flatten(1).shape[1]
        self.head = nn.Linear(width, 3)
        self.double().eval()

    def inside(self, x):
        return self.form(self, self.a(x), self.b(x), self.c(x))

    def forward(self, x):
        return self.head(self.inside(x).flatten(1))


def twin(model):
    """The same network with its detached factors held."""
    other = Middle(model.form)
    other.load_state_dict(model.state_dict())
    other.hold = torch.Tensor.detach
    return other


def plus_one(t):
    return functional.elu(t) + 1


def scaled_elu(t):
    return torch.ops.aten.elu(t, 1.0, 2.0)


def unit(t):
    return functional.normalize(t, dim=1)


def grid(m, a):
    """(B, 6, 4, 4)."""
    return (a @ m.table[:, :4])[:, None] * m.vector[:, None, None]


# neither factor is detached: the Stopping map is the gradient of the network itself
PLAIN = {
    "scores": lambda m, a, b, c: a @ b.mT,
    "bmm": lambda m, a, b, c: torch.bmm(a, b.transpose(1, 2)),
    "einsum": lambda m, a, b, c: torch.einsum("bqd,bkd->bqk", a, b),
    "dots": lambda m, a, b, c: torch.einsum("b...d,bkd->bk...", a, b),
    "implicit": lambda m, a, b, c: torch.einsum("...qd,...kd", a, b),
    "two sums": lambda m, a, b, c: torch.einsum("bqd,bqe->bd", a, b),
    "outer": lambda m, a, b, c: torch.einsum("bi,bj->bij", a[:, 0], b[:, 1]),
    "diagonal": lambda m, a, b, c: torch.einsum("bii,bij->bj", a @ m.table[:, :4], b),
    "dot product": lambda m, a, b, c: torch.linalg.vecdot(a, b),
    "unsoftmaxed attention": lambda m, a, b, c: (a @ b.mT) @ c,
    "linear order": lambda m, a, b, c: a @ (b.mT @ c),
    "elu - 1": lambda m, a, b, c: (functional.elu(a) - 1) @ ((functional.elu(b) - 1).mT @ c),
    "twice elu + 1": lambda m, a, b, c: (scaled_elu(a) + 1) @ ((scaled_elu(b) + 1).mT @ c),
    "bilinear": lambda m, a, b, c: m.bilinear(a, b),
    "bilinear with itself": lambda m, a, b, c: m.bilinear(a, a),
    "gram": lambda m, a, b, c: a @ a.mT,
    "three": lambda m, a, b, c: torch.einsum("bqi,ij,bkj->bqk", a, m.table, b),
    "three live": lambda m, a, b, c: torch.einsum("bqd,bqd,bqd->bq", a, b, c),
    "baddbmm": lambda m, a, b, c: torch.baddbmm(c @ m.table[:, :4], a, b.mT, beta=0.5, alpha=-2.0),
    "baddbmm constant": lambda m, a, b, c: torch.baddbmm(m.stack[:1, :4, :4], a, b.mT),
    "broadcast": lambda m, a, b, c: a.unflatten(2, (2, 3)).transpose(1, 2) @ b[:, None, :, :3].mT,
    "broadcast left": lambda m, a, b, c: a[:, None, :, :3] @ b.unflatten(2, (2, 3)).permute(0, 2, 3, 1),
    "ranks": lambda m, a, b, c: (a[:, None] @ b.mT[:, :, :, None].squeeze(-1)[:, None]),
    "length one": lambda m, a, b, c: torch.einsum("bqd,bkd->bqk", a[..., :1], b),
}  # fmt: skip

# a factor out of a gate, a reduction, or non-negative in a chain is held
HELD = {
    "sigmoid": lambda m, a, b, c: m.hold(torch.sigmoid(a)) @ b.mT,
    "silu on the right": lambda m, a, b, c: a @ m.hold(functional.silu(b)).mT,
    "mean": lambda m, a, b, c: torch.einsum("bqd,bd->bq", a, m.hold(b.mean(1))),
    "relu linear attention": lambda m, a, b, c: m.hold(a.relu()) @ (m.hold(b.relu()).mT @ c),
    "relu quadratic attention": lambda m, a, b, c: m.hold(a.relu() @ b.relu().mT) @ c,
    "elu linear attention": lambda m, a, b, c: m.hold(plus_one(a)) @ (m.hold(plus_one(b)).mT @ c),
    "elu + 1 in two steps": lambda m, a, b, c: m.hold(0.5 + functional.elu(a) + 0.5) @ (m.hold(plus_one(b)).mT @ c),
    "elu quadratic attention": lambda m, a, b, c: m.hold(plus_one(a) @ plus_one(b).mT) @ c,
    "scaled": lambda m, a, b, c: (m.hold(a.relu()) * 0.3) @ (m.hold(b.relu()).mT @ c / 4),
    "einsum attention": lambda m, a, b, c: torch.einsum(
        "bqd,bde->bqe", m.hold(a.relu()), torch.einsum("bkd,bke->bde", m.hold(b.relu()), c)
    ),
    "normalised": lambda m, a, b, c: normalised(m, a.relu(), b.relu(), c),
    "inverse": lambda m, a, b, c: torch.einsum("bqd,bq->bqd", a, m.hold(1 / (b * c).sum(-1))),
    "performer": lambda m, a, b, c: performer(m, a, b, c),
    "texts": lambda m, a, b, c: texts(m, a[:, 0]),
    "softmaxes": lambda m, a, b, c: m.hold(a.softmax(-1)) @ (m.hold(b.softmax(1)).mT @ c),
    "xcit": lambda m, a, b, c: c @ m.hold((unit(a).mT @ unit(b)).softmax(-1)).mT,
}  # fmt: skip


def normalised(m, q, k, v):
    """Linear attention with its denominator as one more value, as efficientvit has it."""
    v = functional.pad(v, (0, 1), value=1.0)
    out = m.hold(q) @ (m.hold(k).mT @ v)
    return out[..., :-1] / m.hold(out[..., -1:] + 1e-6)


def performer(m, q, k, v):
    """Random features that are positive, three operands in one einsum, and the denominator as an inverse."""
    q, k = (torch.exp(torch.einsum("...d,md->...m", t, m.table) / 3) for t in (q, k))
    inverse = m.hold(1.0 / torch.einsum("...nd,...d->...n", q, k.sum(-2)))
    context = torch.einsum("...nd,...ne->...de", m.hold(k), v)
    return torch.einsum("...de,...nd,...n->...ne", context, m.hold(q), inverse)


def texts(m, image):
    """An image against constant texts of unit length, with a learnt scale."""
    text = m.table / m.table.norm(p=2, dim=-1, keepdim=True)
    return image / m.hold(image.norm(p=2, dim=-1, keepdim=True)) @ text.t() * m.vector[0].exp()


# one factor is constant
CONSTANT = {
    "vector": lambda m, a, b, c: a @ m.vector,
    "vector first": lambda m, a, b, c: m.vector @ a.mT,
    "mv": lambda m, a, b, c: torch.einsum("d,bqd->bq", m.vector, a),
    "matrix first": lambda m, a, b, c: m.table @ a.mT,
    "stack": lambda m, a, b, c: a[:, :, None] @ m.stack,
    "stack first": lambda m, a, b, c: m.stack @ a[..., None],
    "larger rank": lambda m, a, b, c: a[:, 0] @ m.stack[0] + (m.stack @ a.mT[:, None])[:, 0, :, 0],
    "inner": lambda m, a, b, c: torch.inner(a, m.table),
    "tensordot": lambda m, a, b, c: torch.tensordot(a, m.stack, dims=([1, 2], [0, 2])),
    "dots": lambda m, a, b, c: torch.einsum("...d,de->...e", a, m.table),
    "dots first": lambda m, a, b, c: torch.einsum("ed,...d->e...", m.table, a).movedim(0, -1),
    "implicit": lambda m, a, b, c: torch.einsum("bqd,de", a, m.table),
    "weight alone": lambda m, a, b, c: torch.einsum("bqd,qde->bq", a, m.stack),
    "operand alone": lambda m, a, b, c: torch.einsum("bqd,qe->be", a, m.stack[0, :4]),
    "diagonal": lambda m, a, b, c: torch.einsum("bchh,c->bh", grid(m, a), m.vector),
    "diagonal weight": lambda m, a, b, c: torch.einsum("bqd,dd->bq", a, m.table),
    "two constants": lambda m, a, b, c: torch.einsum("bqd,de,e->bqe", a, m.table, m.vector),
    "trace": lambda m, a, b, c: torch.einsum("bii->b", a @ m.table[:, :4])[:, None],
    "diagonal alone": lambda m, a, b, c: torch.einsum("bii->bi", a @ m.table[:, :4]),
    "transpose": lambda m, a, b, c: torch.einsum("bqd->bdq", a),
    "sum": lambda m, a, b, c: torch.einsum("bqd->db", a).mT,
    "sum of all": lambda m, a, b, c: torch.einsum("b...->b", a)[:, None],
    "addmm": lambda m, a, b, c: torch.addmm(b[:, 0], a[:, 1], m.table, beta=2.0, alpha=0.5),
    "addmm first": lambda m, a, b, c: torch.addmm(m.vector[:, None], m.table, a[:, 0].T).T,
    "linear of constants": lambda m, a, b, c: functional.linear(m.table, a[:, 0]).T,
}  # fmt: skip
