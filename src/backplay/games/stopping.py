"""The Stopping Game (app:relu-net-game): its discounted visits are the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.games.game import Game, Model
from backplay.games.modes import Modes, StoppingModes
from backplay.games.play import Play
from backplay.games.state_values import StateValues, continuing, decided, oracle_value
from backplay.inputs import Aim
from backplay.kernels.kernel import Kernel
from backplay.kernels.linear import StoppingLinear
from backplay.kernels.moves import looked_at, moving_kernel
from backplay.kernels.pointwise import Gating, PassThrough, Scaling, Split, evenly
from backplay.kernels.prepared import reality, stopping_total
from backplay.network.choices import Max
from backplay.network.nodes import Affine, Diagonal, Gate, Halves, Node, Norm, Overlay, Product, Sum
from backplay.network.wires import Wire
from backplay.values.decomposition import Decomposition, softplus_forward, stopped
from backplay.values.forward import Values
from backplay.values.gates import stopping_slope
from backplay.values.shared import Shared


class StoppingGame(Game[StoppingModes]):
    """`Γ₊ − Γ₋` is the gradient of the target logit (thm:gradient, thm:deriv-occ; S6-S9).

    >>> StoppingGame(model).attribute(x, target=3)

    Keywords, frozen in the game; `replace` gives a game with others:

    - `risk`, `input_variance`: every activation is replaced by its `V_λ = μ + λσ` under input noise σ². σ² → 0 gives
      the game without risk; λ → 0 at fixed σ² does not, as in the Routing Game
    - `entropy_bias`: λ_ent, gates of neurons that listen to many predecessors alike are shown lower
    - `gate`, `gate_noise`: `"noisy"` ReLU gates are open with probability `Φ(z / gate_noise)`
    - `softplus`: θ, plays the network whose ReLU gates are Softplus(θ), and gives its gradient (thm:softplus-gradient)
    - `residual`: a sum leads to each operand half of the time (`"uniform"`) or by their sizes (`"proportional"`): walks
      and distances change, the gradient does not
    - `multiply_by_input`: the map is gradient times input
    - `layers`: keywords by layer, as in the Routing Game
    """

    modes_type: ClassVar[type[Modes]] = StoppingModes

    def __init__(
        self,
        model: Model,
        *,
        risk: float = 0.0,
        input_variance: float = 0.0,
        entropy_bias: float = 0.0,
        gate: Literal["exact", "noisy"] = "exact",
        gate_noise: float = 1.0,
        softplus: float | None = None,
        residual: Literal["uniform", "proportional"] = "uniform",
        multiply_by_input: bool = False,
        layers: Mapping[str, Mapping[str, Any]] | None = None,
        **unknown: Any,
    ) -> None:
        rest = {"residual": residual, "multiply_by_input": multiply_by_input, "layers": layers}
        gates = {"entropy_bias": entropy_bias, "gate": gate, "gate_noise": gate_noise, "softplus": softplus}
        averse = {"risk": risk, "input_variance": input_variance}
        super().__init__(model, **averse, **gates, **rest, **unknown)

    def forward_key(self) -> tuple[Any, ...]:
        modes = self.modes
        if modes.anywhere("softplus") != {None}:
            return ("softplus", modes.softplus, *modes.varied("softplus"))
        if modes.anywhere("risk") != {0}:
            return ("risk", modes.risk, modes.input_variance, *modes.varied("risk"))
        return ()

    def known(self, shared: Shared) -> Values:
        match self.forward_key():
            case ("softplus", *_) as key:
                return shared.deformed(key, self._softened)
            case ("risk", *_) as key:  # each activation is replaced by V_λ in the game's own forward pass
                return shared.deformed(key, self.averse, filtering=self.modes.input_variance)
            case _:
                return shared.values()

    def _softened(self, node: Node, values: Values) -> Tensor | None:
        """Softplus(θ) in place of a ReLU."""
        softplus = self.modes.at(node).softplus
        return None if softplus is None else softplus_forward(softplus)(node, values)

    def reads(self, node: Node) -> tuple[Node, ...] | None:
        if self.forward_key() or self.modes.at(node).residual != "uniform":
            return None
        match node:
            case Gate():
                return (node.operand,)
            case Norm() | Product():
                return node.inputs
            case Diagonal() | Halves() | Sum():
                return ()
            case _:
                return looked_at(node)

    def kernel(self, node: Node, values: Values) -> Kernel:
        match node:
            case Affine():
                weight = values.weight(node)
                return StoppingLinear(
                    node=node,
                    weight=weight,
                    totals=lambda: stopping_total(node, values, weight),
                    shape=values.shape(node.operand),
                    real=reality(node.operand, values),
                )
            case Gate():
                return Gating.of(self._slope(node, values), values.form(node).scale)
            case Halves():
                return evenly(len(node.inputs), copies=True)
            case Sum():
                return Split(self._shares(node, values), copies=True)
            case Diagonal(scale=None):
                return PassThrough()
            case Diagonal() | Norm():
                assert node.scale is not None
                return Scaling(values.weights.copied(node.scale(values).to(values.dtype)))
            case Product():
                return _product(node, values)
            case _:
                return moving_kernel(node, values)

    def _shares(self, node: Sum, values: Values) -> tuple[float | Tensor, float | Tensor]:
        """`p` and `1 − p`, the probability of each operand (def:addition-subgame, S7): halves, or by sizes.

        The walk has to come to every operand whose slope counts. So an operand that is 0 gets one half, unless shut
        gates make it 0: their slope is 0, and a walk that came there would end.
        """
        if self.modes.at(node).residual == "uniform":
            return 0.5, 0.5
        left, right = (values[n] for n in node.inputs)
        alive = [(v != 0) | self._goes_on(n, values) for n, v in zip(node.inputs, (left, right), strict=True)]
        sizes = left.abs() + right.abs()
        half = ((left == 0) & alive[0]) | ((right == 0) & alive[1]) | (sizes == 0)
        whole = torch.where(sizes == 0, 1, sizes)
        return torch.where(half, 0.5, left.abs() / whole), torch.where(half, 0.5, right.abs() / whole)

    def _goes_on(self, node: Node, values: Values) -> Tensor:
        """Where a walk that stands at a node's output may go on: not at a shut gate, as far as that is in sight."""
        match node:
            case Gate():
                return self._slope(node, values) != 0
            case Max() | Wire() if len(node.carriers) == 1:
                below = self._goes_on(node.carriers[0], values).to(values[node].dtype)
                return moving_kernel(node, values).push([below]) != 0
            case _:
                return torch.ones_like(values[node], dtype=torch.bool)

    def _slope(self, node: Gate, values: Values) -> Tensor:
        """The gate's slope, as noise, risk, entropy bias and Softplus change it."""
        modes, form = self.modes.at(node), values.form(node)
        if form.name == "relu" and modes.softplus is not None:
            return torch.sigmoid(self.pre_activation(node, values) / modes.softplus)
        if modes.gate == "noisy" and form.name == "relu":
            return self.noisy(node, values)
        z = self.pre_activation(node, values)
        if modes.risk != 0 and node.nonnegative:
            open_gate = values[node] > 0
            if modes.entropy_bias > 0:
                open_gate = open_gate & (z > 0)
            return open_gate.to(z.dtype)
        plain = z is values[node.operand]
        return stopping_slope(node, values if plain else Overlay({node.operand: z}, values), form)

    def state_values(self, node: Node, values: Values) -> StateValues:
        """Payoffs of both players: the pair of the Stopping Decomposition (thm:forward-stopping, eq:adf-spne-values).

        With `softplus` that of the Softplus Decomposition (thm:softplus-forward, eq:softplus-spne-tildes).
        """
        gated = lambda gate, below, known: stopped(  # noqa: E731
            gate, below, known, self._slope(gate, known) * known.form(gate).scale
        )
        about = decided(node)
        pair = Decomposition(values, gated)[about]
        scale = about.layout.spread(pair.log_scale.exp(), pair.plus)
        plus, minus = pair.plus.double() * scale, pair.minus.double() * scale
        if not bool(torch.isfinite(plus + minus).all()):
            raise UnsupportedError(
                f"payoffs at {about.name!r} grow to e^{float(pair.log_scale.max()):.0f}, beyond any float; "
                "bp.decompose(model, x) gives them with a logarithmic scale."
            )
        return StateValues(
            plus,
            minus,
            values[about].double(),
            values[node].double(),
            continuing(self, node, values),
            oracle_value(node, values),
        )

    def map_root(self, aim: Aim, logits: Tensor) -> Tensor | None:
        return None

    def finish(self, difference: Tensor, source: Node, play: Play) -> Tensor:
        return difference * play.solved[source] if self.modes.multiply_by_input else difference


def _product(node: Product, values: Values) -> Kernel:
    """The detached factor is the discount; of two carrying factors each is taken half of the time (S7, S17)."""
    scales = [node.scale_of(factor, values) for factor in node.carrying]
    return Scaling(scales[0]) if len(scales) == 1 else Split((0.5, 0.5), (2 * scales[0], 2 * scales[1]))
