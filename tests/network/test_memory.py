"""Tensors as they lie in memory: no element is lost, none is copied, and images with their channels last are alike."""

import pytest
import torch

from backplay.network.indicator import all_exceed
from backplay.network.layout import PLAIN
from backplay.network.mass import Mass
from backplay.network.memory import by_sample, in_line, is_dense
from backplay.values.powers import BLOCK, in_blocks
from closeness import assert_near


def images(*shape):
    torch.manual_seed(0)
    return torch.rand(*shape).contiguous(memory_format=torch.channels_last)


def test_in_line():
    """Views of all elements, in one order for all tensors; nothing where orders differ or elements share a place."""
    plain, last = torch.rand(2, 3, 4, 5), images(2, 3, 4, 5)
    for tensor in (plain, last):
        (line,) = in_line(tensor) or ()
        assert line.data_ptr() == tensor.data_ptr()
        assert torch.equal(line.sort().values, tensor.flatten().sort().values)
    one, other = in_line(last, last + 1) or ()
    assert torch.equal(one + 1, other)
    assert in_line(plain, last) is None
    assert in_line(plain[:, ::2]) is None
    assert not is_dense(torch.rand(1).expand(2, 3, 4, 5))
    assert is_dense(last)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 4, 4), (0, 3, 4, 5), (2,), (4, 6)], ids=str)
def test_by_sample(shape):
    """Each row holds one sample, whatever the order; samples of gaps are copied."""
    plain = torch.rand(shape)
    for tensor in (plain, images(*shape) if len(shape) == 4 else plain, torch.rand(*shape, 2)[..., 0]):
        rows = by_sample(tensor)
        assert rows.shape == (len(tensor), tensor[0].numel() if len(tensor) else rows.shape[1])
        for row, sample in zip(rows, tensor, strict=True):
            assert torch.equal(row.sort().values, sample.flatten().sort().values)


def test_sums_and_extremes_of_images():
    """The same as of a plain tensor."""
    x = images(2, 8, 9, 10)
    assert_near(PLAIN.sum(x), x.double().sum((1, 2, 3)), 1e-12)
    assert torch.equal(PLAIN.amax(x), x.amax((1, 2, 3)))


@pytest.mark.parametrize("size", [1.0, 2.0**80, 2.0**-80])
def test_masses_of_images_are_brought_near_1(size):
    """Small masses are seen however they lie; a careless look is enough for those in range."""
    scaled = images(2, 8, 9, 10) * size
    mass = Mass(scaled, torch.zeros(2, dtype=torch.float64), PLAIN)
    found = mass.normalised(careful=size > 1)
    assert 2.0**-40 < float(found.value.amax()) < 2.0**40
    assert_near(found.value.double() * torch.exp2(found.exponent)[:, None, None, None], scaled, 1e-6)


def test_formulas_in_blocks_keep_the_order():
    """Two results over more than one block, in the order that the operands have; mixed orders give the same numbers."""
    a, b = images(2, 3, 230, 240), images(2, 3, 230, 240) + 1
    assert a.numel() > 2 * BLOCK
    for first, second in ((a, b), (a.contiguous(), b), (a.contiguous(), b.contiguous())):
        total, product = in_blocks(lambda x, y: (x + y, x * y), first, second)
        assert torch.equal(total, a + b)
        assert torch.equal(product, a * b)
    assert in_blocks(torch.add, a, b)[0].is_contiguous(memory_format=torch.channels_last)


def test_comparisons_of_images():
    """Found in whatever piece it lies."""
    x = images(2, 3, 300, 300) + 1
    assert all_exceed(x, x, 0.5)
    for place in ((0, 0, 0, 0), (1, 2, 299, 299), (1, 0, 150, 7)):
        y = x.clone()
        y[place] = 3 * x[place]
        assert not all_exceed(x, y, 0.5)
