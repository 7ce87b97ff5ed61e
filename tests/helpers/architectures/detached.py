"""The gradient that the Stopping Game is (S9), from an exported program: gates, statistics, weights detached.

`gradient(program, inputs, pick)` runs the program call by call with autograd and detaches by name of the operator what
the contract detaches: `c(z)` of gates, statistics of norms, softmax weights, divisors, and the factor of a product
that comes out of a gate or a reduction (S8, S17). It knows nothing of the library's own graph.
"""

import math

import torch
from torch import fx
from torch.nn import functional as F

OPENNESS = {
    "silu": torch.sigmoid,
    "hardswish": lambda z: ((z + 3) / 6).clamp(0, 1),
    "mish": lambda z: torch.tanh(F.softplus(z)),
}
FACTORS = {"sigmoid", "hardsigmoid", "silu", "gelu", "softmax", "mean", "sum", "adaptive_avg_pool2d", "rsqrt"}
WIRES = set(
    "view reshape transpose permute unsqueeze squeeze expand expand_as flatten unflatten slice select getitem chunk "
    "split split_with_sizes unbind contiguous clone to _to_copy dropout repeat type_as alias movedim narrow".split()
)


ELEMENTWISE = {"mul", "add", "sub", "pow", "tanh", "exp", "sigmoid", "neg", "rsub", "erf"}


def plain(node):
    """An operator's name without overload and in-place underscore."""
    target = node.target
    if not hasattr(target, "overloadpacket"):
        return getattr(target, "__name__", str(target))
    name = target.overloadpacket.__name__
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def gelu_openness(z, approximate="none"):
    """Φ(z), or the tanh formula."""
    if approximate == "tanh":
        return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return 0.5 * torch.erfc(-z / math.sqrt(2))


def normalised(x, dims, eps, centred=True):
    """A norm with detached statistics."""
    mean = x.mean(dims, keepdim=True).detach() if centred else 0.0
    spread = x.var(dims, correction=0, keepdim=True) if centred else x.square().mean(dims, keepdim=True)
    return (x - mean) * (spread + eps).rsqrt().detach()


class Detached(fx.Interpreter):
    """Runs an exported graph; live tensors are those that require a gradient."""

    def run_node(self, n):
        self.current = n
        behind = [n.meta["outer"]] if "outer" in n.meta else n.all_input_nodes
        n.meta["depends"] = any(a.meta.get("depends") for a in behind) if behind else n.op == "placeholder"
        return super().run_node(n)

    def call_function(self, target, args, kwargs):
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self.inner(args)
        known = getattr(self, plain(self.current), None) if hasattr(target, "overloadpacket") else None
        if known is not None:
            return known(target, *args, **kwargs)
        if plain(self.current) in OPENNESS:
            return args[0] * OPENNESS[plain(self.current)](args[0]).detach()
        return super().call_function(target, args, kwargs)

    def inner(self, args):
        """A sub-graph, for instance under autocast, means its calls."""
        position = next(k for k, a in enumerate(args) if isinstance(a, fx.GraphModule))
        module, operands = args[position], args[position + 1 :]
        for placeholder, outer in zip(
            module.graph.find_nodes(op="placeholder"), operands_of(self.current), strict=True
        ):
            placeholder.meta["outer"] = outer
        return Detached(module, garbage_collect_values=False).run(*operands)

    def gelu(self, target, z, approximate="none"):
        return z * gelu_openness(z, approximate).detach()

    def copy(self, target, x, source, *_):
        in_place = target._schema.is_mutable
        return target(x, source) if in_place else source.to(x.dtype).expand_as(x)

    def softmax(self, target, *args, **kwargs):
        return target(*args, **kwargs).detach()

    def rsqrt(self, target, x):
        return target(x).detach()

    def linalg_vector_norm(self, target, *args, **kwargs):
        return target(*args, **kwargs).detach()

    def norm(self, target, *args, **kwargs):
        return target(*args, **kwargs).detach()

    def scaled_dot_product_attention(self, target, q, k, v, mask=None, *args, **kwargs):
        mask = kwargs.pop("attn_mask", mask)
        return target(q.detach(), k.detach(), v, None if mask is None else mask.detach(), *args, **kwargs)

    def layer_norm(self, target, x, shape, weight=None, bias=None, eps=1e-5, *_):
        y = normalised(x, tuple(range(-len(shape), 0)), eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def rms_norm(self, target, x, shape, weight=None, eps=None):
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        y = normalised(x, tuple(range(-len(shape), 0)), eps, centred=False)
        return y if weight is None else y * weight

    def group_norm(self, target, x, groups, weight=None, bias=None, eps=1e-5, *_):
        y = normalised(x.unflatten(1, (groups, -1)).flatten(2), (2,), eps).reshape(x.shape)
        shape = [1, -1] + [1] * (x.ndim - 2)
        y = y if weight is None else y * weight.view(shape)
        return y if bias is None else y + bias.view(shape)

    def div(self, target, left, right, **kwargs):
        if isinstance(right, torch.Tensor) and right.requires_grad:
            left, right = self.centred(left, self.current.args[0]), right.detach()
        return target(left, right, **kwargs)

    def centred(self, value, node):
        """`x − mean` where it is divided by a deviation: the mean is detached as well (S3b)."""
        if plain(node) == "sub" and plain(node.args[1]) in ("mean", "sum", "div"):
            x, mean = (self.env[n] for n in node.args[:2])
            return x - mean.detach()
        return value

    def mul(self, target, left, right):
        live = [isinstance(t, torch.Tensor) and t.requires_grad for t in (left, right)]
        if all(live):
            told = told_factors(*self.current.args[:2])
            left, right = (t.detach() if d else t for t, d in zip((left, right), told, strict=True))
        return torch.mul(left, right)

    def matmul(self, target, left, right):
        """Linear attention: the non-negative factors of a chain of products, `q(kᵀv)`, are weights (S17)."""
        node = self.current
        if left.requires_grad and right.requires_grad and (multiplied_again(node) or any(map(multiplied, node.args))):
            told = [rectified(n) for n in node.args]
            left, right = (t.detach() if d else t for t, d in zip((left, right), told, strict=True))
        return target(left, right)


def multiplied_again(node):
    """Whether a value meets, through wires, another product."""
    users = [user for user in node.users if plain(user) in WIRES or plain(user) == "matmul"]
    return any(plain(user) == "matmul" or multiplied_again(user) for user in users)


def multiplied(node):
    """Whether a value is, through wires, a product."""
    return plain(behind_wires(node)) == "matmul"


def rectified(node):
    """Whether a value comes, through wires, out of a ReLU."""
    return plain(behind_wires(node)) == "relu"


def behind_wires(node):
    """What a value is, but for wires and the borders of sub-graphs."""
    while plain(node) in WIRES or "outer" in node.meta:
        node = node.meta["outer"] if "outer" in node.meta else live_inputs(node)[0]
    return node


def operands_of(node):
    """What a sub-graph is called with."""
    position = next(k for k, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr")
    return node.args[position + 1 :]


def told_factors(left, right):
    """Which of two live factors is detached: that of a spelled-out gate `z · h(z)`, or what a gate or mean gives."""
    for k, (node, other) in enumerate(((left, right), (right, left))):
        if roots(other) == {unscaled(node)}:
            return [k == 1, k == 0]
    told = [is_factor(n) for n in (left, right)]
    return told if sum(told) == 1 else [False, False]


def is_factor(node):
    """Whether a value comes, through wires and constants, out of a gate or a reduction."""
    while plain(node) in WIRES or (plain(node) in ("mul", "add", "div", "sub") and len(live_inputs(node)) == 1):
        node = live_inputs(node)[0]
    return plain(node) in FACTORS


def unscaled(node):
    """What a node is a multiple of."""
    while plain(node) == "mul" and len(live_inputs(node)) == 1:
        node = live_inputs(node)[0]
    return node


def roots(node):
    """The values that an elementwise expression is a function of."""
    if plain(node) not in ELEMENTWISE:
        return {node}
    return {root for inner in live_inputs(node) for root in roots(inner)}


def live_inputs(node):
    """Operands that depend on an input of the program."""
    return [n for n in node.all_input_nodes if n.meta.get("depends")]


def gradient(program, inputs, explained, pick):
    """Gradient of `pick(logits)` (B,) by the input at position `explained`."""
    inputs = list(inputs)
    inputs[explained] = inputs[explained].detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = Detached(program.module().requires_grad_(False), garbage_collect_values=False).run(*inputs)
        logits = logits[0] if isinstance(logits, (tuple, list)) else logits
        (found,) = torch.autograd.grad(pick(logits).sum(), inputs[explained])
    return found
