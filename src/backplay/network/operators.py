"""Which operators there are, and the kind of each (S3). Tables first; what needs a thought follows in `builder`."""

from __future__ import annotations

import torch

# exported name without overload and in-place underscore -> name of the gate in `values.gates`
GATES = {
    "relu": "relu",
    "relu6": "hardtanh",
    "hardtanh": "hardtanh",
    "clamp": "clamp",
    "clamp_min": "clamp",
    "clamp_max": "clamp",
    "clip": "clamp",
    "leaky_relu": "leaky_relu",
    "rrelu": "leaky_relu",
    "prelu": "prelu",
    "_prelu_kernel": "prelu",
    "gelu": "gelu",
    "silu": "silu",
    "hardswish": "hardswish",
    "mish": "mish",
    "softplus": "softplus",
} | dict.fromkeys(
    (
        "elu selu celu sigmoid hardsigmoid tanh log_sigmoid softsign tanhshrink softshrink hardshrink threshold "
        "exp expm1 log log1p log2 log10 sqrt rsqrt square abs sin cos tan erf erfc atan asin acos reciprocal sinh cosh "
        "asinh acosh atanh exp2 logit sinc remainder fmod frac erfinv lgamma digamma i0 nan_to_num float_power "
        "copysign positive special_ndtr special_log_ndtr special_ndtri special_entr special_erfcx special_i0e "
        "special_i1 special_i1e"
    ).split(),
    "other",
)

# second names of operators
SPECIAL = {"special_expit": "sigmoid", "special_gammaln": "lgamma", "special_psi": "digamma"} | {
    f"special_{name}": name
    for name in "erf erfc erfinv exp2 expm1 log1p logit sinc i0 digamma round softmax log_softmax logsumexp".split()
}

DROPOUTS = frozenset({"dropout", "alpha_dropout", "feature_dropout", "native_dropout", "feature_alpha_dropout"})
# what draws random numbers
RANDOM = frozenset(
    "rand rand_like randn randn_like randint randint_like bernoulli multinomial normal uniform exponential cauchy "
    "geometric log_normal poisson random rrelu_with_noise".split()
)

# gates whose output a product treats as a detached factor (S17); an inverse is a divisor (S3c)
FACTOR_GATES = frozenset({"sigmoid", "hardsigmoid", "silu", "gelu", "reciprocal", "rsqrt"})

# gates and elementwise operators with range >= 0 (S5)
NONNEGATIVE_OPERATORS = frozenset(
    "relu relu6 sigmoid hardsigmoid softmax _softmax softplus exp exp2 abs square".split()
)

WIRES = frozenset(
    (
        "mT mH H T numpy_T adjoint matrix_H "
        "reshape view _unsafe_view _reshape_copy flatten unflatten permute transpose swapaxes swapdims t movedim "
        "contiguous clone alias lift_fresh_copy lift_fresh squeeze unsqueeze expand "
        "slice select narrow cat concat concatenate stack hstack vstack dstack split split_with_sizes chunk "
        "unbind tensor_split "
        "repeat repeat_interleave tile roll flip fliplr flipud index index_select gather take_along_dim im2col unfold "
        "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle pad constant_pad_nd reflection_pad1d "
        "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d dropout "
        "alpha_dropout feature_dropout to _to_copy type_as diagonal slice_scatter "
        "select_scatter diagonal_scatter index_copy index_fill masked_scatter tril triu squeeze_copy "
        "max_unpool2d max_unpool3d "
        "view_copy rot90 ravel atleast_2d atleast_3d unsafe_chunk unsafe_split"
    ).split()
)

# wires that leave every element where it is
COPIES = frozenset("clone contiguous alias lift_fresh lift_fresh_copy".split()) | DROPOUTS

# wires that may put in padding
PADS = frozenset({"pad", "constant_pad_nd", "im2col"})

# the arguments of wires that may be numbers which they put in
FILLS = {"masked_fill": ("value",), "where": ("self", "other"), "scatter": ("value",), "index_fill": ("value",)}

# wires that keep every element, in another shape or order
SHAPES = frozenset(
    "reshape view _unsafe_view _reshape_copy view_copy flatten unflatten ravel permute transpose swapaxes swapdims t "
    "movedim contiguous clone alias squeeze unsqueeze expand to _to_copy type_as dropout".split()
)

# wires that leave zeros where they put nothing
SPARSE = frozenset({"max_unpool2d", "max_unpool3d"})


def counts(dtype: torch.dtype) -> bool:
    """Whether values are integers: they have no derivative, and are told."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


# operators that summarise a sample: what depends on live values only through them is a statistic (S3b)
REDUCTIONS = frozenset(
    "mean sum adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d".split()
)

AVERAGES = REDUCTIONS | {"avg_pool1d", "avg_pool2d", "avg_pool3d"}

RESAMPLINGS = frozenset(
    (
        "upsample_bilinear2d upsample_linear1d upsample_trilinear3d upsample_nearest1d upsample_nearest2d "
        "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
        "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa"
    ).split()
)

CONVOLUTIONS = frozenset(
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d _convolution".split()
)

# products that sum over shared axes
CONTRACTIONS = frozenset(
    "linear addmm baddbmm addmv mm matmul bmm mv dot inner linalg_vecdot tensordot bilinear einsum".split()
)

COMPARISONS = frozenset(
    "gt lt ge le eq ne greater less greater_equal less_equal not_equal logical_not logical_and logical_or logical_xor "
    "bitwise_not bitwise_and bitwise_or isfinite isnan isinf".split()
)

_STAIRS = COMPARISONS | frozenset("sign sgn floor ceil round trunc fix heaviside floor_divide".split())

# functions without a slope: their values are told, and never carry mass
STEPS = _STAIRS | {"argmax", "argmin"}

# operators whose every output element is a function of the operands' elements at its own place
POINTWISE = (
    _STAIRS | frozenset("pow neg where masked_fill maximum minimum to _to_copy type_as".split()) | frozenset(GATES)
)

# asserts and other statements without a value
STATEMENTS = frozenset(
    "_assert_tensor_metadata _assert_scalar sym_constrain_range sym_constrain_range_for_size _assert_async".split()
)

# these read no more of their first operand than its shape, dtype and device: their values are constants
CREATIONS = frozenset(
    "new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like new_tensor".split()
)
