"""AttnLRP through products of live tensors without a softmax: linear attention written by hand (S17, prop. 3.3)."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.methods.subject import Subject
from closeness import assert_near

F64 = torch.float64


def plain(a, b):
    return a @ b


def halved(a, b):
    """A product that hands one half of its relevance to each factor: value as it is, half of each slope."""
    return (a @ b.detach() + a.detach() @ b) / 2


FORMS = {  # linear attention of queries, keys and values (B, S, E); `times` is the product
    "q (kᵀ v)": lambda q, k, v, times: times(q, times(k.mT, v)),
    "(q kᵀ) v": lambda q, k, v, times: times(times(q, k.mT), v),
    "relu(q) (relu(k)ᵀ v)": lambda q, k, v, times: times(q.relu(), times(k.relu().mT, v)),
    "(relu(q) relu(k)ᵀ) v": lambda q, k, v, times: times(times(q.relu(), k.relu().mT), v),
    "q kᵀ": lambda q, k, v, times: times(q, k.mT),
    "relu(q) (kᵀ v)": lambda q, k, v, times: times(q.relu(), times(k.mT, v)),
}


class Linear(nn.Module):
    """Queries, keys and values are parts of the input, logits a mean over tokens: products alone have a rule."""

    def __init__(self, form, times=plain):
        super().__init__()
        self.form, self.times = form, times

    def forward(self, x):
        return self.form(*x.chunk(3, -1), self.times).mean(1)


@pytest.mark.parametrize("name", FORMS)
def test_every_product_is_halved(name):
    """One half of the relevance to each factor, also where a game takes a non-negative factor as the weight (S17).

    The oracle is autograd: input times gradient of the network whose products have half of each slope.
    """
    x = torch.randn(2, 4, 9, dtype=F64, requires_grad=True)
    out = Linear(FORMS[name], halved)(x)
    (slope,) = torch.autograd.grad(out[:, 1].sum(), x)
    subject = Subject.of(Linear(FORMS[name]).double().eval(), x.detach(), 1)
    info = bp.methods()["attn_lrp"]
    found, *_ = info.function(subject, **info.check({"epsilon_attn": 0.0}))
    assert_near(found, x * slope, what=name)
    queries, keys, values = found.chunk(3, -1)
    logit = out.detach()[:, 1]
    assert_near(found.sum((1, 2)), logit, what="all of it arrives")
    if name != "q kᵀ":
        shares = {"q (kᵀ v)": (2, 1, 1), "(q kᵀ) v": (1, 1, 2)}
        first = name.replace("relu(q)", "q").replace("relu(k)", "k")
        for part, share in zip((queries, keys, values), shares[first], strict=True):
            assert_near(part.sum((1, 2)), logit * share / 4, what="halves of halves")
