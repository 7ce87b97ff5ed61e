"""Products that sum over shared axes: with a constant, with softmax weights, or of two live tensors (S3, S17, S23)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network.arithmetic import comes_from_factor_gate
from backplay.network.attention import comes_from_softmax, mixing
from backplay.network.builder import LOWERINGS, Builder, Call, Statement, constant, lowers
from backplay.network.contraction import Contraction, Einsum, Equation
from backplay.network.elementwise import agree, ancestors, grid
from backplay.network.linear import Dense, LinearMap
from backplay.network.nodes import Affine, Diagonal, Halves, Held, Node, Norm, Product, Ref, Scope, Wire, rerun

aten = torch.ops.aten

Operand = Node | Ref


@lowers("linear")
def linear(builder: Builder, call: Call) -> Node | None:
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if isinstance(x, Node) and not isinstance(weight, Node) and not isinstance(bias, Node):
        return _dense(builder, call, x, constant(weight), bias)
    ranks = [_rank(builder, t) for t in (x, weight)]
    found = contract(builder, call, Equation.linear(*ranks), x, weight)
    return found if bias is None or found is None else _sum(builder, call, found, bias)


@lowers("addmm", "baddbmm", "addmv")
def added(builder: Builder, call: Call) -> Node | None:
    """`β · self + α · (left @ right)`, as the calls that it stands for; one affine node where it is one."""
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}[call.operator]
    term, left, right = call["self"], *(call[name] for name in names)
    beta, alpha = call.get("beta", 1), call.get("alpha", 1)
    plain = isinstance(left, Node) and not isinstance(right, Node) and not isinstance(term, Node)
    if plain and call.operator == "addmm" and alpha == beta == 1:
        return _dense(builder, call, left, lambda scope: scope[right].T, term)
    if isinstance(left, Node) or isinstance(right, Node):
        ranks = [_rank(builder, t) for t in (left, right)]
        product: Any = contract(builder, call, Equation.matmul(*ranks), left, right)
    else:
        product = computed(builder, torch.matmul, left, right)
    return None if product is None else _sum(builder, call, product, term, alpha, beta)


def _sum(builder: Builder, call: Call, product: Any, term: Any, alpha: float = 1, beta: float = 1) -> Node | None:
    """`α · product + β · term` by the lowerings of sums and multiples."""
    if beta == 0:
        return builder.scaled(product, alpha) if isinstance(product, Node) else None
    if isinstance(product, Node) and alpha != 1:
        product = builder.scaled(product, alpha)
        alpha = 1
    if isinstance(term, Node):
        term = builder.scaled(term, beta)
    elif beta != 1:
        term = computed(builder, lambda t: beta * t, term)
    named = {"self": term, "other": product, "alpha": alpha}
    return LOWERINGS["add"](builder, Call(call.node, "add", torch.add, (term, product), (), named))


@lowers("mm", "matmul", "bmm", "mv", "dot", "inner", "linalg_vecdot", "tensordot")
def product_of_two(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[:2]
    ranks = [_rank(builder, t) for t in (left, right)]
    if call.operator == "tensordot":
        equation = _tensordot(ranks, call["dims_self"], call["dims_other"])
    elif call.operator == "linalg_vecdot":
        if call.get("dim", -1) not in (-1, ranks[0] - 1) or ranks[0] != ranks[1]:
            return None
        lead = "abcdefgh"[: ranks[0] - 1]
        equation = Equation(f"{lead}y", f"{lead}y", lead)
    elif call.operator == "inner":
        equation = Equation.linear(*ranks)
    else:
        equation = Equation.matmul(*ranks)
        if isinstance(left, Node) and not isinstance(right, Node) and ranks[1] == 2:
            return _dense(builder, call, left, lambda scope: scope[right].T, None)
    plain = call.operator in ("mm", "matmul", "bmm", "mv")
    return contract(builder, call, equation, left, right, call.function if plain else None)


def _tensordot(ranks: list[int], mine: list[int], its: list[int]) -> Equation:
    left, right = list("abcdefgh"[: ranks[0]]), list("stuvwxyz"[: ranks[1]])
    for a, b in zip(mine, its, strict=True):
        right[b] = left[a]
    summed = {left[a] for a in mine}
    out = [c for c in left + right if c not in summed]
    return Equation("".join(left), "".join(right), "".join(out))


@lowers("bilinear")
def bilinear(builder: Builder, call: Call) -> Node | None:
    """`x₁ᵀ W x₂ + b`: the weight meets the first operand, and both the second."""
    left, right, weight, bias = call["input1"], call["input2"], call["weight"], call.get("bias")
    tensors = [left, weight, right]
    equation = Einsum.read("...i,kij,...j->...k", _ranks(builder, *tensors))
    found = contract_all(builder, call, equation, tensors)
    return found if bias is None or found is None else _sum(builder, call, found, bias)


@lowers("einsum")
def einsum(builder: Builder, call: Call) -> Node | None:
    tensors = list(call["tensors"])
    return contract_all(builder, call, Einsum.read(call["equation"], _ranks(builder, *tensors)), tensors)


def contract_all(builder: Builder, call: Call, einsum: Einsum, tensors: list[Any]) -> Node | None:
    """An einsum of any number of tensors: two by two from left to right, constants first."""
    pairs = [_distinct(builder, t, letters) for t, letters in zip(tensors, einsum.operands, strict=True)]
    pairs.sort(key=lambda pair: isinstance(pair[0], Node))  # constants first, else as they stand
    operands, left = [t for t, _ in pairs], Einsum(tuple(letters for _, letters in pairs), einsum.out)
    while len(operands) > 1:
        equation, left = left.pair()
        one, other = operands[:2]
        if isinstance(one, Node) or isinstance(other, Node):
            found: Any = contract(builder, call, equation, one, other)
        else:
            found = computed(builder, lambda a, b, text=equation.text: torch.einsum(text, a, b), one, other)
        if found is None:
            return None
        operands = [found, *operands[2:]]
    return _reduced(builder, call, operands[0], left)


def _distinct(builder: Builder, tensor: Any, letters: str) -> tuple[Any, str]:
    """A diagonal where a letter stands twice in one operand: a wire."""
    once = "".join(dict.fromkeys(letters))
    if once == letters:
        return tensor, letters
    text = f"{letters}->{once}"
    if not isinstance(tensor, Node):
        return computed(builder, lambda t: torch.einsum(text, t), tensor), once
    shape = builder.traced[tensor]
    taken = Wire(lambda t: torch.einsum(text, t), (tensor,), operator="diagonal", nonnegative=tensor.nonnegative)
    taken.helper = True
    return builder.add(taken, torch.Size([shape[letters.index(c)] for c in once])), once


def _reduced(builder: Builder, call: Call, x: Node, einsum: Einsum) -> Node | None:
    """One operand alone: a sum over what is not asked for, a mix, then a permutation, a wire."""
    (letters,), out = einsum.operands, einsum.out
    axes = [k for k, c in enumerate(letters) if c not in out]
    if axes:
        named = {"self": x, "dim": axes, "keepdim": False}
        found = LOWERINGS["sum"](builder, Call(call.node, "sum", torch.sum, (x, axes), (), named))
        shape = [s for k, s in enumerate(builder.traced[x]) if k not in axes]
        builder.traced[found] = torch.Size(shape)
        x, letters = found, "".join(c for c in letters if c in out)
    if letters == out:
        return x
    order = [letters.index(c) for c in out]
    return builder.add(Wire(torch.permute, (x, order), operator="permute", nonnegative=x.nonnegative))


# ---------------------------------------------------------------- two operands


def contract(
    builder: Builder,
    call: Call,
    equation: Equation,
    left: Operand,
    right: Operand,
    function: Callable[..., Tensor] | None = None,
) -> Node | None:
    """The node of a product of two tensors, one of which is live at least; None where samples would meet."""
    if set(equation.left) | set(equation.right) <= set(equation.out):
        return _elementwise(builder, equation, left, right)
    shapes = [_shape(builder, t) for t in (left, right)]
    sizes = equation.sizes(*shapes)
    shape = torch.Size([sizes[c] for c in equation.out])
    run = function or (lambda a, b: torch.einsum(equation.text, a, b))
    if not isinstance(left, Node):
        assert isinstance(right, Node)
        swapped = equation.swapped
        node = Affine(lambda a, b: run(b, a), (right, left), operator=call.operator)
        node.operand, (node.map, node.weight) = right, _linear(swapped, left, shapes[::-1])
        return builder.add(node, shape)
    if not isinstance(right, Node):
        node = Affine(run, (left, right), operator=call.operator)
        node.operand, (node.map, node.weight) = left, _linear(equation, right, shapes)
        return builder.add(node, shape)
    if not _same_samples(equation, shapes):
        return None
    for told, value, read, pair in ((left, right, equation.swapped, shapes[::-1]), (right, left, equation, shapes)):
        if comes_from_softmax(told):
            linear, weight = _map(read, pair), _folded(read, told, pair)
            return mixing(builder, call, (told, value), linear, weight, run, (left, right), shape)
    return _live(builder, call, equation, (left, right), run, shape)


def _elementwise(builder: Builder, equation: Equation, left: Operand, right: Operand) -> Node:
    """A product that sums over nothing is a multiplication (S2, S17), its operands laid out alike."""
    laid: list[Any] = []
    for operand, letters in ((left, equation.left), (right, equation.right)):
        order = sorted(range(len(letters)), key=lambda k, letters=letters: equation.out.index(letters[k]))
        if order != sorted(order):
            operand = builder.spell(aten.permute.default, operand, order)
        for axis, letter in enumerate(equation.out):
            if letter not in letters:
                operand = builder.spell(aten.unsqueeze.default, operand, axis)
        laid.append(operand)
    return builder.spell(aten.mul.Tensor, *laid)


def _dense(builder: Builder, call: Call, x: Node, weight: Callable[[Scope], Tensor], bias: Any) -> Node:
    node = Affine(call.function, call.args, operator=call.operator)
    node.map, node.operand, node.weight = Dense(), x, weight
    node.bias = None if bias is None else constant(bias)
    return builder.add(node)


def _linear(equation: Equation, weight: Operand, shapes: list[Any]) -> tuple[LinearMap, Callable[[Scope], Tensor]]:
    """Map and weight of the operand on the left; a linear layer is one, whatever its spelling (S3, S4)."""
    lead, last = equation.left[:-1], equation.left[-1]
    rest = equation.right.replace(last, "")
    dense = len(equation.right) == 2 and len(rest) == 1 and equation.out == lead + rest and rest not in lead
    if dense and shapes[0][-1] == shapes[1][equation.right.index(last)]:
        read = constant(weight)
        return Dense(), read if equation.right[1] == last else (lambda scope: read(scope).T)
    return _map(equation, shapes), _folded(equation, weight, shapes)


def _map(equation: Equation, shapes: list[Any]) -> Contraction:
    """The map of the operand on the left; weights come without the axes that they sum over alone."""
    return Contraction(Equation(equation.left, _kept(equation, shapes), equation.out))


def _kept(equation: Equation, shapes: list[Any]) -> str:
    return "".join(c for c in equation.right if c not in _alone(equation, shapes))


def _alone(equation: Equation, shapes: list[Any]) -> set[str]:
    """Axes that the weight alone is summed over: its entries there add up before they meet a value."""
    lengths = dict(zip(equation.left, shapes[0], strict=True))
    single = {c for c, size in lengths.items() if isinstance(size, int) and size == 1}
    return {c for c in equation.right if c not in equation.out and (c not in lengths or c in single)}


def _folded(equation: Equation, weight: Operand, shapes: list[Any]) -> Callable[[Scope], Tensor]:
    alone = _alone(equation, shapes)
    read = (lambda scope: scope[weight]) if isinstance(weight, Node) else constant(weight)
    if not alone:
        return read
    axes = [k for k, c in enumerate(equation.right) if c in alone]
    return lambda scope: read(scope).sum(axes)


def _same_samples(equation: Equation, shapes: list[Any]) -> bool:
    """Whether the axis that holds the samples is one of both operands and of the output."""
    held = [
        {c for c, size in zip(letters, shape, strict=True) if not isinstance(size, int)}
        for letters, shape in zip((equation.left, equation.right), shapes, strict=True)
    ]
    return held[0] == held[1] and held[0] <= set(equation.out)


# ---------------------------------------------------------------- two live tensors (S17)


def _live(
    builder: Builder,
    call: Call,
    equation: Equation,
    factors: tuple[Node, Node],
    run: Callable[..., Tensor],
    shape: torch.Size,
) -> Node:
    """The factor that comes out of a gate or a reduction is the weight of the other; else both carry."""
    shapes = [builder.traced[f] for f in factors]
    positive = all(f.nonnegative for f in factors)
    detached = [not f.carries for f in factors]  # what is told is a constant (S3d)
    if detached[0] == detached[1]:
        detached = [comes_from_factor_gate(f, builder) for f in factors]
    readings: list[Held] = []
    for k, read in ((0, equation), (1, equation.swapped)):
        if detached[k] and not detached[1 - k]:
            continue
        pair = shapes if k == 0 else shapes[::-1]
        held = Held(run, factors, operator=call.operator, nonnegative=positive, fleeting=True)
        held.map, held.operand, held.told = _map(read, pair), factors[k], factors[1 - k]
        held.weight = _folded(read, factors[1 - k], pair)
        held.helper = detached[0] == detached[1]
        readings.append(held)
        builder.add(held, shape)
    if len(readings) == 1:
        return readings[0]
    both = Halves(_mean, tuple(readings), operator=call.operator, nonnegative=positive)
    builder.add(both, shape)
    _follow_chain(builder, both, factors)
    return both


def _mean(first: Tensor, *others: Tensor) -> Tensor:
    """The readings of one product agree, unless players who know τ have bent them."""
    return first if not others else (first + others[0]) / 2


def _follow_chain(builder: Builder, product: Halves, factors: tuple[Node, Node]) -> None:
    """Where a product is contracted again, as in `q(kᵀv)` and `(qkᵀ)v`, a non-negative factor is a weight (S17)."""
    again = [n for n in (_seen(f) for f in factors) if isinstance(n, (Halves, Held))]
    if not again:
        return
    for node in (product, *again):
        if isinstance(node, Halves) and len(node.args) == 2:
            weights = [_is_positive(builder, reading.told) for reading in node.args]
            if weights[0] != weights[1]:
                node.keep(node.args[0 if weights[0] else 1])


def _seen(node: Node) -> Node:
    """What a value is, but for wires, scales, offsets and statistics."""
    while isinstance(node, (Wire, Diagonal, Norm, Product)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def _is_positive(builder: Builder, node: Node) -> bool:
    """Whether a factor is non-negative by S5, or ELU + 1, or made of such by products and wires."""
    if node.nonnegative:
        return True
    if isinstance(node, (Halves, Held)):
        held = node if isinstance(node, Held) else node.args[0]
        return all(_is_positive(builder, f) for f in held.inputs)
    if isinstance(node, Wire):
        return not node.constants and all(_is_positive(builder, n) for n in node.inputs)
    return builder.decide(lambda constants: _is_elu_plus_one(node, constants))


def _is_elu_plus_one(node: Node, constants: Scope) -> bool:
    """By its values, as a function of one of its elementwise ancestors: however it is written."""
    z = grid()
    wanted = torch.nn.functional.elu(z) + 1
    return any(agree(rerun(node, {below: z}, constants), wanted) for below in ancestors(node)[1:])


# ---------------------------------------------------------------- shapes and constants


def computed(builder: Builder, function: Callable[..., Tensor], *tensors: Ref) -> Ref:
    """A constant that is computed from constants before each play."""
    assert builder.current is not None
    ref = Ref(f"{builder.prefix}{builder.current.name} {len(builder.program)}")
    builder.meta[ref.name] = function(*(builder.meta[t.name] for t in tensors))
    builder.program.append(Statement(ref, function, list(tensors), {}))
    if any(t in builder.given for t in tensors):
        builder.given.add(ref)
    return ref


def _shape(builder: Builder, tensor: Operand) -> Any:
    return builder.traced[tensor] if isinstance(tensor, Node) else builder.meta[tensor.name].shape


def _rank(builder: Builder, tensor: Operand) -> int:
    return len(_shape(builder, tensor))


def _ranks(builder: Builder, *tensors: Operand) -> list[int]:
    return [_rank(builder, t) for t in tensors]
