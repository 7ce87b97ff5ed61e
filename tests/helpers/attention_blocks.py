"""Attention blocks small enough to write out every trajectory, captured once each."""

import functools

import numpy as np
import torch

import backplay as bp
from oracles.attention import PIXELS, Block, Form, describe

FORMS = {
    "fused": Form(),
    "patches, packed": Form(tokens=3, embed="conv", packed=True, class_token=False, pool="mean", mlp=False),
    "spelled out": Form(spelling="matmul", mask="additive"),
    "packed, causal": Form(spelling="matmul", packed=True, mask="causal", pool="mean", mlp=False),
    "fused, causal": Form(tokens=3, class_token=False, mask="causal", pool="mean", mlp=False),
    "fused, additive": Form(mask="additive", mlp=False),
    "fused, boolean": Form(mask="boolean", mlp=False),
    "boolean": Form(spelling="matmul", mask="boolean", mlp=False),
    "einsum": Form(spelling="einsum", embed="conv"),
    "right": Form(spelling="right", mlp=False),
    "grouped, fused": Form(groups=1, mlp=False),
    "grouped, spelled out": Form(groups=1, spelling="matmul", packed=True, mlp=False),
    "no projection": Form(values="raw", width=4, mlp=False),
    "no projection, spelled out": Form(values="raw", width=4, spelling="matmul", mlp=False),
    "non-negative values": Form(values="relu"),
    "talking heads": Form(talking=True, spelling="matmul"),
    "talking heads, non-negative values": Form(talking=True, values="relu", spelling="matmul", mlp=False),
}


@functools.cache
def captured(name):
    """A block and its network, captured once: new weights are seen at the next play (S1)."""
    block = Block(FORMS[name]).refill(np.random.default_rng(0), 0.0)
    return block, bp.capture(block, block.shaped(np.ones((2, FORMS[name].tokens * PIXELS))))


def drawn(name, seed, zeros):
    """The block with other weights, its network, two flat inputs and their samples."""
    block, network = captured(name)
    generator = np.random.default_rng(seed)
    block.refill(generator, zeros)
    x = generator.integers(-8, 9, size=(2, FORMS[name].tokens * PIXELS)) / 4.0
    x[generator.random(x.shape) < zeros] = 0.0
    return block, network, x, [describe(block, sample) for sample in x]


def with_sign(block, sign):
    """LayerNorm outputs ≥ 0 (a large offset) and a V projection of one sign."""
    with torch.no_grad():
        block.norm1.bias.fill_(4.0)
        block.v.weight.copy_(sign * block.v.weight.abs() + sign * 0.125)
