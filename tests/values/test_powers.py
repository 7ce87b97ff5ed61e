"""Powers, roots and geometric means entry by entry: zeros, tiny numbers and equal ones above all."""

import pytest
import torch

from backplay.kernels.geometric import agreeing, by_agreement, mean
from backplay.values.powers import power_, square_root

PRECISIONS = [torch.float32, torch.float64]


def entries(dtype, n=5000):
    """Numbers ≥ 0 over twenty orders of magnitude, a third of them zeros, and the smallest there are."""
    generator = torch.Generator().manual_seed(3)
    found = 10 ** (-20 * torch.rand(n, dtype=torch.float64, generator=generator))
    found[torch.rand(n, generator=generator) < 1 / 3] = 0
    tiny = torch.finfo(dtype).tiny
    return torch.cat([found.to(dtype), torch.tensor([1.0, tiny, tiny / 1024], dtype=dtype)])


def shuffled(values):
    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(4))]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("exponent", [0.2, 0.5, 1 / 0.7, 2.0, 1 / 0.3])
def test_power(dtype, exponent):
    """0 stays 0 and 1 stays 1 to the last bit, all else is a power to the digits of the precision, in place."""
    base = entries(dtype)
    expected = base.double().pow(exponent)
    found = base.clone()
    assert power_(found, exponent) is found
    assert found[base == 0].eq(0).all() and found[base == 1].eq(1).all()
    normal = expected > torch.finfo(dtype).tiny
    error = ((found.double() - expected) / expected)[normal].abs()
    digits = 4 + exponent * base.double().log2()[normal].abs()  # what a rounded logarithm costs
    assert (error < digits * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_root(dtype):
    """Correctly rounded, also below the smallest normal number; what it is given stays."""
    base = entries(dtype)
    before = base.clone()
    assert torch.equal(square_root(base), torch.sqrt(base)) and torch.equal(base, before)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_means(dtype):
    """By the plain formulas; both ways round alike, and equal ones their own mean, to the last bit."""
    a, b = entries(dtype), shuffled(entries(dtype))
    assert torch.equal(mean(a, b), mean(b, a)) and torch.equal(mean(a, a.clone()), a)
    torch.testing.assert_close(mean(a, b), a.sqrt() * b.sqrt(), rtol=4 * torch.finfo(dtype).eps, atol=0)

    signs = torch.randint(-1, 2, (2, len(a)), generator=torch.Generator().manual_seed(5)).to(dtype)
    a, b = a * signs[0], b * signs[1]
    size, same = (a.abs().sqrt() * b.abs().sqrt()).copysign(a), a.sign() * b.sign()
    agreed, opposed = by_agreement(a, b)
    for found, side in ((agreeing(a, b), 1), (agreed, 1), (opposed, -1)):
        torch.testing.assert_close(found, torch.where(same == side, size, 0), rtol=4 * torch.finfo(dtype).eps, atol=0)
    agreed, opposed = by_agreement(a, a.clone())
    assert torch.equal(agreeing(a, a.clone()), a) and torch.equal(agreed, a) and not opposed.any()


def test_means_of_unlike_shapes():
    """A number and a tensor, or a row and a column, as other formulas take them."""
    row, column = entries(torch.float64, 9), entries(torch.float64, 5)[:, None]
    for a, b in ((row[-3], column), (column, row[-3]), (row, column)):
        torch.testing.assert_close(mean(a, b), a.sqrt() * b.sqrt(), rtol=1e-15, atol=0)
        torch.testing.assert_close(agreeing(-a, -b), -(a.sqrt() * b.sqrt()), rtol=1e-15, atol=0)
