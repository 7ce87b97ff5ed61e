"""What each operator of an exported program means (S3), by its name without overload and in-place underscore.

A new operator is a name in one of these rows. A new way to read one is a function in `network.reading` under the name
that its row gives, and a new activation with a formula of its own an entry of `network.forms.FACTORS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The meaning of one operator; an operator without a reading is refused where mass would have to cross it."""

    reading: str = ""  # the function in `network.reading` that turns its calls into nodes
    gate: str = ""  # of an activation: its name in `network.forms`, "other" where it has no formula there
    softmax: bool = False  # weights above 0 that sum to 1 along the axis that is its second argument
    divides: bool = False  # its second operand is a divisor
    quadratic: bool = False  # a polynomial of degree two at most in all of its operands together
    by_channel: bool = False  # its constants lie along axis 1 of its first operand
    planar: bool = False  # pools or resamples maps (B, C, h, w)
    pointwise: bool = False  # each output element is a function of the operands' elements at its own place
    nonnegative: bool = False  # no output is below 0 (S5)
    weighs: bool = False  # in a product its output is the detached factor (S17); so is an inverse (S3c)
    slopeless: bool = False  # a step or an index: its value is known, and never carries mass
    reduces: bool = False  # summarises a sample: what sees values through it alone is a statistic (S3b)
    power: float | None = None  # with which power of its operand's size it grows (S3b)
    copies: bool = False  # a wire that leaves every element where it is
    reshapes: bool = False  # a wire that keeps every element, in another shape or order
    views: bool = False  # a wire that shows the memory of its operand, where that lies in order
    joins: bool = False  # a wire that lays tensors, its first argument, behind each other along its second
    pads: bool = False  # a wire that may put in padding
    sparse: bool = False  # a wire that leaves zeros where it puts nothing
    fills: tuple[str, ...] = ()  # the arguments that may be numbers which a wire puts in
    dropout: bool = False
    random: bool = False  # draws random numbers
    shape_only: bool = False  # reads no more of its first operand than shape, dtype and device: it makes a constant
    valueless: bool = False  # an assertion or another statement without a value

    @property
    def moves(self) -> bool:
        """Whether it is a wire."""
        return self.reading in _WIRES


_WIRES = frozenset("wire converted squeeze padding columns triangle concatenation split".split())

OPERATORS: dict[str, Operator] = {}
_UNKNOWN = Operator()


def meaning(name: str) -> Operator:
    """The row of an operator; an empty one where there is none."""
    return OPERATORS.get(name, _UNKNOWN)


def _row(names: str, **facts: Any) -> None:
    """Add facts to the rows of some operators; every activation is pointwise."""
    if "gate" in facts:
        facts["pointwise"] = True
    for name in names.split():
        OPERATORS[name] = replace(meaning(name), **facts)


# ---------------------------------------------------------------- activations

_row("relu", reading="gate", gate="relu")
_row("relu6 hardtanh", reading="gate", gate="hardtanh")
_row("clamp clamp_min clamp_max clip", reading="clamp", gate="clamp")
_row("leaky_relu rrelu", reading="gate", gate="leaky_relu")
_row("prelu _prelu_kernel", reading="gate", gate="prelu")
_row("gelu", reading="gate", gate="gelu")
_row("silu", reading="gate", gate="silu")
_row("hardswish", reading="gate", gate="hardswish")
_row("hardsigmoid", reading="gate", gate="hardsigmoid")
_row("mish", reading="gate", gate="mish")
_row("softplus", reading="gate", gate="softplus")
_row(
    "elu selu celu sigmoid tanh log_sigmoid softsign tanhshrink softshrink hardshrink threshold exp expm1 "
    "log log1p log2 log10 sqrt rsqrt square abs sin cos tan erf erfc atan asin acos reciprocal sinh cosh asinh acosh "
    "atanh exp2 logit sinc remainder fmod frac erfinv lgamma digamma i0 nan_to_num float_power copysign positive "
    "special_ndtr special_log_ndtr special_ndtri special_entr special_erfcx special_i0e special_i1 special_i1e",
    reading="gate",
    gate="other",
)
_row("pow", reading="power", pointwise=True)
_row("relu relu6 sigmoid hardsigmoid softplus exp exp2 abs square", nonnegative=True)
_row("sigmoid hardsigmoid silu gelu reciprocal rsqrt", weighs=True)

# ---------------------------------------------------------------- steps

_row(
    "gt lt ge le eq ne greater less greater_equal less_equal not_equal logical_not logical_and logical_or logical_xor "
    "bitwise_not bitwise_and bitwise_or isfinite isnan isinf sign sgn floor ceil round trunc fix heaviside "
    "floor_divide",
    slopeless=True,
    pointwise=True,
)
_row("argmax argmin", slopeless=True)
_row("detach", reading="detached")

# ---------------------------------------------------------------- arithmetic and linear maps

_row("add sub rsub", reading="addition")
_row("neg", reading="negation", pointwise=True)
_row("mul div true_divide", reading="multiplication")
_row("div true_divide", divides=True)
_row("linear", reading="linear")
_row("addmm baddbmm addmv", reading="added_product")
_row("mm matmul bmm mv dot inner linalg_vecdot tensordot", reading="product_of_two")
_row("bilinear", reading="bilinear")
_row("einsum", reading="einsum")
_row(
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d _convolution",
    reading="convolution",
)
_row("softmax _softmax", reading="softmax", softmax=True, nonnegative=True)
_row("scaled_dot_product_attention", reading="fused_attention")

# ---------------------------------------------------------------- norms and statistics

_row("batch_norm _native_batch_norm_legit_no_training cudnn_batch_norm", reading="batch_norm")
_row("layer_norm native_layer_norm rms_norm group_norm native_group_norm instance_norm", reading="norm")
_row("batch_norm _native_batch_norm_legit_no_training cudnn_batch_norm prelu _prelu_kernel", by_channel=True)
_row("group_norm native_group_norm instance_norm", by_channel=True)
_row("var std var_mean std_mean", reading="variance")
_row("linalg_vector_norm norm", reading="vector_norm")

# ---------------------------------------------------------------- sums with weights of their own

_row(
    "mean sum adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
    reading="average",
    reduces=True,
    power=1.0,
)
_row("avg_pool1d avg_pool2d avg_pool3d", reading="average")
_row(
    "upsample_bilinear2d upsample_linear1d upsample_trilinear3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
    "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa",
    reading="resampling",
)
_row("cumsum col2im", reading="plain_sum")
_row("lerp", reading="lerp")
_row("index_add scatter_add", reading="accumulation")
_row("scatter scatter_reduce", reading="scatter")
_row("index_put", reading="index_put")
_row("grid_sampler grid_sampler_2d", reading="grid_sample")

_row("add sub rsub mul matmul mm bmm einsum mean sum square", quadratic=True)
_row(
    "avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d max_pool2d max_pool2d_with_indices adaptive_max_pool2d "
    "upsample_bilinear2d upsample_nearest2d _upsample_nearest_exact2d upsample_bicubic2d grid_sampler_2d",
    planar=True,
)

# ---------------------------------------------------------------- choices

_row("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices", reading="max_pool")
_row("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", reading="adaptive_max_pool")
_row("amax max amin min", reading="extremum")
_row("maximum fmax minimum fmin", reading="duel")
_row("maximum minimum", pointwise=True)
_row("topk sort msort kthvalue median nanmedian mode cummax cummin", reading="order")
_row("where masked_fill", reading="selection", pointwise=True)

# ---------------------------------------------------------------- wires

_row("reshape view _unsafe_view _reshape_copy view_copy flatten unflatten ravel", reading="wire", reshapes=True)
_row("permute transpose swapaxes swapdims t movedim unsqueeze expand", reading="wire", reshapes=True)
_row("contiguous clone alias", reading="wire", copies=True, reshapes=True)
_row("lift_fresh lift_fresh_copy", reading="wire", copies=True)
_row("reshape view _unsafe_view flatten unflatten ravel permute transpose swapaxes swapdims t movedim", views=True)
_row("unsqueeze squeeze contiguous alias slice select narrow split split_with_sizes chunk unbind", views=True)
_row("dropout alpha_dropout feature_dropout", reading="wire")
_row("dropout", reshapes=True)
_row("_to_copy", reading="wire", reshapes=True, pointwise=True)
_row("to type_as", reading="converted", reshapes=True, pointwise=True)
_row("squeeze", reading="squeeze", reshapes=True)
_row("squeeze_copy", reading="squeeze")
_row("mT mH H T numpy_T adjoint matrix_H rot90 roll flip fliplr flipud tile repeat repeat_interleave", reading="wire")
_row("slice select narrow index index_select gather take_along_dim unfold diagonal", reading="wire")
_row("slice_scatter select_scatter diagonal_scatter index_copy masked_scatter index_fill", reading="wire")
_row("stack hstack vstack dstack atleast_1d atleast_2d atleast_3d", reading="wire")
_row("pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle", reading="wire")
_row("reflection_pad1d reflection_pad2d reflection_pad3d", reading="wire")
_row("replication_pad1d replication_pad2d replication_pad3d", reading="wire")
_row("max_unpool2d max_unpool3d", reading="wire", sparse=True)
_row("pad constant_pad_nd", reading="padding", pads=True)
_row("im2col", reading="columns", pads=True)
_row("tril triu", reading="triangle")
_row("cat concat concatenate", reading="concatenation", joins=True)
_row("split split_with_sizes chunk unbind tensor_split unsafe_chunk unsafe_split", reading="split")
_row("expand_as view_as reshape_as", reading="shaped_like")
_row("copy", reading="copied")
_row("fill zero", reading="filled")
_row("masked_fill scatter index_fill", fills=("value",))
_row("where", fills=("self", "other"))
_row("dropout alpha_dropout feature_dropout native_dropout feature_alpha_dropout", dropout=True, copies=True)

# ---------------------------------------------------------------- what is written as the calls that it stands for

_row("glu", reading="glu")
_row("addcmul addcdiv", reading="combined")
_row("logsumexp", reading="log_sum_exp")
_row("cosine_similarity", reading="cosine_similarity")

# ---------------------------------------------------------------- growth, randomness, constants

_row("square", power=2.0)
_row("sqrt", power=0.5)
_row("rsqrt", power=-0.5)
_row("reciprocal", power=-1.0)
_row("abs clamp clamp_min clamp_max maximum", power=1.0)
_row(
    "rand rand_like randn randn_like randint randint_like bernoulli multinomial normal uniform exponential cauchy "
    "geometric log_normal poisson random rrelu_with_noise",
    random=True,
)
_row("new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like new_tensor", shape_only=True)
_row("_assert_tensor_metadata _assert_scalar _assert_async", valueless=True)
_row("sym_constrain_range sym_constrain_range_for_size", valueless=True)

# second names
ALIASES = {"special_expit": "sigmoid", "special_gammaln": "lgamma", "special_psi": "digamma"} | {
    f"special_{name}": name
    for name in "erf erfc erfinv exp2 expm1 log1p logit sinc i0 digamma round softmax log_softmax logsumexp".split()
}

LOG_SOFTMAX = frozenset({"log_softmax", "_log_softmax"})  # no row: the exporter spells out what it can


def is_recurrent(name: str) -> bool:
    """Whether an operator runs a recurrent layer."""
    return name.startswith(("lstm", "gru", "rnn_", "_thnn", "quantized_"))


def is_counting(dtype: torch.dtype) -> bool:
    """Whether values are integers: they have no derivative, and never carry mass."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
