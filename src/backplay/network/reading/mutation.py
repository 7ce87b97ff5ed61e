"""In-place operators and slice assignment mean their plain twins (S3).

The exported program keeps them as they were written: `h[:, 0] = 0` is a view of `h` and a `fill_` of that view. What
the operator makes of the view is written back into the tensor that owns the elements, and every other view of that
tensor is read anew from it.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from backplay.errors import CaptureError
from backplay.network.nodes import Node
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import functional
from backplay.network.reading.wires import with_detached
from backplay.network.wires import Wire


def follow_mutation(node: fx.Node, builder: Builder) -> None:
    """Later readers of a changed tensor, and of all that shares its elements, read the new value."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or not node.args or not isinstance(node.args[0], fx.Node):
        return
    if "dropout" in str(node.target) and node.args[-1] is False:
        return  # in eval mode it changes nothing
    changed, new = node.args[0], builder.values[node]
    path = _path(changed)
    if not isinstance(new, Node) and not any(_live(builder, step) for step in path):
        _check_constant(builder, node, path[0])
        return  # constants are computed by running their calls, mutations included
    if path[0].op == "placeholder" and builder.prefix:
        raise CaptureError(f"{node.target} changes a tensor outside of its sub-graph in place.")
    for view, parent in zip(reversed(path[1:]), reversed(path[:-1]), strict=True):
        new = _written(builder, view, parent, new)
    builder.values[path[0]] = new
    for view in _views(path[0], node, builder):
        builder.values[view] = _reread(builder, view)


def _live(builder: Builder, node: fx.Node) -> bool:
    return isinstance(builder.values[node], Node) or builder.values[node] in builder.detached


def _check_constant(builder: Builder, node: fx.Node, owner: fx.Node) -> None:
    """Constants are computed before anything live is: what was read before its change must not see it."""
    readers = [user for alias in (owner, *_views(owner, node, builder)) for user in alias.users]
    if owner.op == "placeholder" or any(_live(builder, r) for r in readers if builder.values.get(r) is not None):
        raise CaptureError(f"{node.target} changes a constant in place that is read before and after.")


def _parent(node: fx.Node) -> fx.Node | None:
    """The tensor that a node shares its elements with; None for one with elements of its own."""
    if node.op != "call_function":
        return None
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if node.target is python_operator.getitem:
        return _parent(source)  # a part of a split is a view of what was split
    schema = getattr(node.target, "_schema", None)
    if schema is None or not any(r.alias_info is not None for r in schema.returns):
        return source if "dropout" in str(node.target) else None  # in eval mode it hands its operand on
    return source if _same_elements(source, node) else None


def _same_elements(source: fx.Node, node: fx.Node) -> bool:
    """A reshape may be a view or a copy: the exporter's stand-ins know."""
    value = node.meta.get("val")
    view = value[0] if isinstance(value, (list, tuple)) and value else value
    storages = [t.untyped_storage()._cdata for t in (source.meta.get("val"), view) if isinstance(t, Tensor)]
    return len(set(storages)) == 1


def _path(node: fx.Node) -> list[fx.Node]:
    """From the tensor that owns the elements down to a view."""
    parent = _parent(node)
    return [node] if parent is None else [*_path(parent), node]


def _views(owner: fx.Node, before: fx.Node, builder: Builder) -> list[fx.Node]:
    """All that shares the elements of a tensor, and what splits it, in the order of the program."""
    views: set[fx.Node] = set()
    ahead = [owner]
    while ahead:
        node = ahead.pop()
        part = {u for u in node.users if u.target is python_operator.getitem and _parent(u) is not None}
        shared = {u for u in node.users if u in builder.values and u is not before} - views
        ahead += [u for u in shared if u in part or _parent(u) is node]
        views.update(ahead)
    return sorted(views)


def _reread(builder: Builder, view: fx.Node) -> Any:
    """What a view of a changed tensor has become; what an in-place operator returned is the tensor itself."""
    parent, current = _parent(view), builder.current
    assert parent is not None
    builder.current = view
    try:
        if view.target is python_operator.getitem:
            part = builder.values[view.args[0]][view.args[1]]  # type: ignore[index]
            return part() if callable(part) else part
        if _hands_on(view):
            return builder.values[parent]
        return builder.read(builder.call(view))
    finally:
        builder.current = current


def _hands_on(node: fx.Node) -> bool:
    """In-place operators return their operand, and dropout in eval mode does."""
    schema = getattr(node.target, "_schema", None)
    return "dropout" in str(node.target) or (schema is not None and schema.is_mutable)


def _written(builder: Builder, view: fx.Node, parent: fx.Node, new: Any) -> Any:
    """The parent with the elements of a view replaced."""
    if _hands_on(view):
        return new
    base, current = builder.values[parent], builder.current
    function, rest = _as_function(builder, view)

    def write(whole: Tensor, part: Tensor, arguments: tuple[Any, ...]) -> Tensor:
        places = function(torch.arange(whole.numel(), device=whole.device).view(whole.shape), *arguments)
        values = part.to(whole.dtype).expand(places.shape).flatten()
        return torch.index_put(whole.flatten(), (places.flatten(),), values).view(whole.shape)

    base, new, rest = with_detached(builder, (base, new, rest))
    node = Wire(
        write,
        (base, new, rest),
        "slice_scatter",
        constants=not (isinstance(base, Node) and isinstance(new, Node)),
        nonnegative=all(map(builder.is_nonnegative, (base, new))),
    )
    builder.current = parent
    made = builder.add(node)
    builder.current = current
    return made


def _as_function(builder: Builder, view: fx.Node) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """A view as a function of its parent and other arguments."""
    if view.target is python_operator.getitem:
        source, index = view.args
        function, rest = _as_function(builder, source)  # type: ignore[arg-type]
        return lambda whole, *args: function(whole, *args)[index], rest  # type: ignore[index]
    _, op = functional(view.target)
    call = builder.call(view)
    return call.function if call.keywords else op, tuple(call.args[1:])
