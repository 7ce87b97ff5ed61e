"""Dense matrices and index groups of convolutions and pools, by loops over positions.

Every function speaks of one sample, flattened in row-major order (channel first).
"""

from itertools import product

import numpy as np


def flat(index, shape):
    """Row-major position of `index` in an array of `shape`."""
    position = 0
    for i, n in zip(index, shape, strict=True):
        position = position * n + i
    return position


def spread(value, dims):
    """One number per spatial dimension."""
    return (value,) * dims if isinstance(value, int) else tuple(value)


def conv_out(size, kernel, stride, padding, dilation):
    """Spatial output size of a convolution or pool (floor mode)."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )


def window(position, size, kernel, stride, padding, dilation):
    """Real input positions under the window at output `position`, with their kernel offsets, row-major."""
    found = []
    for offset in product(*map(range, kernel)):
        at = tuple(o * s - p + k * d for o, s, p, k, d in zip(position, stride, padding, offset, dilation, strict=True))
        if all(0 <= i < n for i, n in zip(at, size, strict=True)):
            found.append((offset, at))
    return found


def conv_matrix(weight, in_shape, stride=1, padding=0, dilation=1, groups=1):
    """Matrix (out, in) of a convolution of any dimension, and its output shape; padding has no column."""
    size = in_shape[1:]
    dims = len(size)
    stride, padding, dilation = (spread(v, dims) for v in (stride, padding, dilation))
    out_channels, group_in, *kernel = weight.shape
    out_size = conv_out(size, kernel, stride, padding, dilation)
    out_shape = (out_channels, *out_size)
    matrix = np.zeros((int(np.prod(out_shape)), int(np.prod(in_shape))))
    for channel in range(out_channels):
        group = channel // (out_channels // groups)
        for position in product(*map(range, out_size)):
            row = flat((channel, *position), out_shape)
            for offset, at in window(position, size, kernel, stride, padding, dilation):
                for c in range(group_in):
                    column = flat((group * group_in + c, *at), in_shape)
                    matrix[row, column] += weight[(channel, c, *offset)]
    return matrix, out_shape


def transposed_conv_matrix(weight, in_shape, stride=1, padding=0, output_padding=0):
    """Matrix (out, in) of a transposed convolution without groups or dilation, and its output shape."""
    channels, *size = in_shape
    dims = len(size)
    stride, padding, extra = (spread(v, dims) for v in (stride, padding, output_padding))
    _, out_channels, *kernel = weight.shape
    out_size = tuple(
        (n - 1) * s - 2 * p + k + e for n, s, p, k, e in zip(size, stride, padding, kernel, extra, strict=True)
    )
    out_shape = (out_channels, *out_size)
    matrix = np.zeros((int(np.prod(out_shape)), int(np.prod(in_shape))))
    for c in range(channels):
        for at in product(*map(range, size)):
            for offset in product(*map(range, kernel)):
                to = tuple(i * s + k - p for i, s, k, p in zip(at, stride, offset, padding, strict=True))
                if all(0 <= i < n for i, n in zip(to, out_size, strict=True)):
                    for channel in range(out_channels):
                        row = flat((channel, *to), out_shape)
                        matrix[row, flat((c, *at), in_shape)] += weight[(c, channel, *offset)]
    return matrix, out_shape


def max_groups(in_shape, kernel, stride, padding=0):
    """Input elements under each max-pool window, in scanning order, and the output shape."""
    channels, *size = in_shape
    dims = len(size)
    kernel, stride, padding = (spread(v, dims) for v in (kernel, stride, padding))
    ones = spread(1, dims)
    out_size = conv_out(size, kernel, stride, padding, ones)
    groups = [
        [flat((c, *at), in_shape) for _, at in window(position, size, kernel, stride, padding, ones)]
        for c in range(channels)
        for position in product(*map(range, out_size))
    ]
    return groups, (channels, *out_size)


def avg_matrix(in_shape, kernel, stride, padding=0, count_include_pad=True):
    """Weights (out, in) of average pooling, and the output shape."""
    groups, out_shape = max_groups(in_shape, kernel, stride, padding)
    full = int(np.prod(spread(kernel, len(in_shape) - 1)))
    matrix = np.zeros((len(groups), int(np.prod(in_shape))))
    for row, group in enumerate(groups):
        for column in group:
            matrix[row, column] = 1.0 / (full if count_include_pad else len(group))
    return matrix, out_shape


def adaptive_avg_matrix(in_shape, out_size):
    """Weights (out, in) of adaptive average pooling: bins from floor to ceil, as PyTorch documents."""
    channels, *size = in_shape
    out_shape = (channels, *out_size)
    matrix = np.zeros((int(np.prod(out_shape)), int(np.prod(in_shape))))
    for c in range(channels):
        for position in product(*map(range, out_size)):
            spans = [range(o * n // m, -(-(o + 1) * n // m)) for o, n, m in zip(position, size, out_size, strict=True)]
            cells = list(product(*spans))
            for at in cells:
                matrix[flat((c, *position), out_shape), flat((c, *at), in_shape)] = 1.0 / len(cells)
    return matrix, out_shape


def nearest_matrix(in_shape, factor):
    """Weights (out, in) of nearest-neighbour up-sampling by an integer factor."""
    channels, height, width = in_shape
    out_shape = (channels, height * factor, width * factor)
    matrix = np.zeros((int(np.prod(out_shape)), int(np.prod(in_shape))))
    for c, i, j in product(*map(range, out_shape)):
        matrix[flat((c, i, j), out_shape), flat((c, i // factor, j // factor), in_shape)] = 1.0
    return matrix, out_shape


def bilinear_matrix(in_shape, factor):
    """Weights (out, in) of bilinear up-sampling by an integer factor (half-pixel centres)."""
    channels, height, width = in_shape
    out_shape = (channels, height * factor, width * factor)
    matrix = np.zeros((int(np.prod(out_shape)), int(np.prod(in_shape))))
    for c, i, j in product(*map(range, out_shape)):
        for y, wy in _hat(i, factor, height):
            for x, wx in _hat(j, factor, width):
                matrix[flat((c, i, j), out_shape), flat((c, y, x), in_shape)] += wy * wx
    return matrix, out_shape


def _hat(position, factor, size):
    """The two neighbours on one axis and their weights."""
    source = max((position + 0.5) / factor - 0.5, 0.0)
    low = int(source)
    high = min(low + 1, size - 1)
    return [(low, 1.0 - (source - low)), (high, source - low)]
