"""What players observe (S20): gates may show less than the network computes, and nodes behind them hand that on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from backplay.network import Node
from backplay.network.choices import Max, Select
from backplay.network.nodes import Affine, Diagonal, Gate, Input, Mix, Norm, Overlay, Product, Sum
from backplay.network.wires import Wire
from backplay.values.forward import Values

Shown = Callable[[Gate], Tensor | None]  # what a gate shows, None for its real value


class Observed(Mapping[Any, Any]):
    """Observed values: gates show `shown(gate)`, sums, maxes, mixes, wires and diagonals hand on what is below them,
    affine nodes show the real pre-activation. Backward only: the forward pass stays as it is."""

    def __init__(self, values: Values, shown: Shown) -> None:
        self.real = values.plain()
        self._changed: dict[Node, Tensor] = {}
        for node in values.network.nodes:
            if isinstance(node, Gate):
                seen = shown(node)
            elif isinstance(node, Input) or (isinstance(node, Affine) and not isinstance(node, Mix)):
                seen = None
            else:
                seen = self._handed_on(node) if any(n in self._changed for n in node.carriers) else None
            if seen is not None:
                self._changed[node] = seen

    def _handed_on(self, node: Node) -> Tensor:
        match node:
            case Norm() | Diagonal():
                scale = node.scale(self.real).to(self.real[node].dtype) if node.scale is not None else 1.0
                return self.real[node] + scale * (self[node.operand] - self.real[node.operand])
            case Max():
                return node.pick([self[n] for n in node.inputs], self.real)
            case Mix():
                return node.map.apply(self[node.operand], node.weight(self.real))
            case Product() | Sum() | Wire() | Select():
                return node.run(Overlay({n: self[n] for n in node.carriers}, self.real))
            case _:
                raise AssertionError(f"{node!r} hands nothing on")

    def __getitem__(self, key: Any) -> Any:
        return self._changed[key] if key in self._changed else self.real[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.real)

    def __len__(self) -> int:
        return len(self.real)

    def forget(self, node: Node) -> None:
        """Free a value that is not needed any more."""
        self._changed.pop(node, None)


def entropy_shift(gate: Gate, values: Values) -> Tensor | None:
    """`H̃` before a gate: normalised entropy of the absolute fan-in of the affine node it comes from (app:entropy-mode).

    Seen through wires, diagonals and norms; None behind a sum and where the fan-in is 1.
    """
    node, path = gate.operand, []
    while isinstance(node, (Wire, Diagonal, Norm)) and len(node.carriers) == 1:
        path.append(node)
        node = node.carriers[0]
    if not isinstance(node, Affine) or isinstance(node, Mix):
        return None
    affine = node
    rows = values.weights.prepared(affine, "fan-in entropy", lambda: _fan_in_entropy(affine, values))
    if rows is None:
        return None
    spread: Tensor = rows.expand(values.shape(affine))
    for step in reversed(path):
        if isinstance(step, Wire):
            spread = step.move([spread], values)
        else:
            spread = spread.expand(values.shape(step))
    return spread


def _fan_in_entropy(node: Affine, values: Values) -> Tensor | None:
    weight = node.weight(values).abs()
    rows = node.map.matrix(weight)
    if rows is None or rows.shape[1] == 1:
        return None
    fan_in = rows.shape[1]
    share = rows / rows.sum(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    entropy = -torch.special.xlogy(share, share).sum(1) / torch.log(torch.tensor(float(fan_in), dtype=rows.dtype))
    return node.map.along_output(entropy, weight)
