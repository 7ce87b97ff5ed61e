"""The Routing Game (app:routing-formal): its discounted visits are the αβ-LRP family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from backplay.games.game import Game, Model
from backplay.games.modes import Modes, RoutingModes
from backplay.games.play import Play
from backplay.games.state_values import StateValues, continuing, decided, oracle_value
from backplay.games.tempered import KeyChoice, contribute, temper
from backplay.inputs import Aim
from backplay.kernels.attention import GradientBlock, ValueRouting
from backplay.kernels.contributions import Contributions, Streams, is_empty
from backplay.kernels.kernel import Kernel
from backplay.kernels.linear import Sharing
from backplay.kernels.moves import looked_at, moving_kernel
from backplay.kernels.pointwise import Gating, PassThrough, Split, evenly
from backplay.kernels.prepared import split_weight
from backplay.kernels.streams import RoutingLinear, Stream
from backplay.network.attention import Attention
from backplay.network.indicator import above
from backplay.network.nodes import Affine, Diagonal, Gate, Halves, Held, Mix, Node, Norm, Overlay, Product, Sum
from backplay.values.forward import Values
from backplay.values.gates import accurate_tail, routing_probability
from backplay.values.observed import Observed
from backplay.values.risk import averse_weights, lower_confidence
from backplay.values.shared import Shared


class RoutingGame(Game[RoutingModes]):
    """At `tau=1`, `Γ₊ − Γ₋` times the target logit is αβ-LRP-ε at every layer (thm:ab-recovery; S12-S18).

    >>> RoutingGame(model, alpha=2.0, beta=1.0, epsilon=0.5).attribute(x)

    Keywords, frozen in the game; `replace` gives a game with others:

    - `alpha`, `beta`: discounts of the positive and of the negative stream of contributions; they should differ by 1
    - `epsilon`: ε, what the outside option weighs beside the contributions of a stream; it leads to the cemetery †
    - `tau`: temperature; a contribution is chosen with probability `∝ c^{1/τ}`
    - `risk`, `input_variance`: gates show `V_λ = μ + λσ` under input noise σ², ReLU and its like no less than 0.
      σ² → 0 gives the game without risk. λ → 0 at fixed σ² does not on ReLU networks: it shows `E ReLU(z + noise) > 0`
      at every gate, the shut ones too
    - `attention_risk`: λ_sm, negative shuns keys that the same noise makes uncertain; `attention_score` says how that
      is measured: `"key"` by the deviation of the key, `"relative"` by that over its size, `"logit"` by that of the
      logit
    - `entropy_bias`: λ_ent, gates of neurons that listen to many predecessors alike are shown lower
    - `gate`, `gate_noise`: `"noisy"` ReLU gates are open with probability `Φ(z / gate_noise)`
    - `residual`: a sum splits its mass in halves (`"uniform"`) or by the size of its operands (`"proportional"`)
    - `bias`: biases stand aside (`"ignore"`) or take their share of the mass to † (`"absorb"`)
    - `empty_stream`: mass of a stream without contributions ends in † (`"cemetery"`) or takes the other stream
      (`"reroute"`)
    - `attention`: mass goes through the values (`"value"`), or through the whole block by gradient times input
      (`"gradient"`, maps only)
    - `tau_forward`, `risk_forward`: players who know τ or λ change the forward pass too
    - `output`: maps are in units of the `"logit"`, or of `"one"`
    - `layers`: keywords that hold in some modules instead, by patterns of their paths:
      `layers={"features.*": {"tau": 0.5}, "features.0": {"tau": 1.0}}`. A pattern means all that lies in the modules
      it fits; of several the later ones win. At attention the modes of the mixing hold, projection included
    """

    modes_type: ClassVar[type[Modes]] = RoutingModes
    streams: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        *,
        alpha: float = 2.0,
        beta: float = 1.0,
        epsilon: float = 0.5,
        tau: float = 1.0,
        risk: float = 0.0,
        input_variance: float = 0.0,
        attention_risk: float = 0.0,
        attention_score: Literal["key", "relative", "logit"] = "key",
        entropy_bias: float = 0.0,
        gate: Literal["exact", "noisy"] = "exact",
        gate_noise: float = 1.0,
        residual: Literal["uniform", "proportional"] = "uniform",
        bias: Literal["ignore", "absorb"] = "ignore",
        empty_stream: Literal["cemetery", "reroute"] = "cemetery",
        attention: Literal["value", "gradient"] = "value",
        tau_forward: bool = False,
        risk_forward: bool = False,
        output: Literal["logit", "one"] = "logit",
        layers: Mapping[str, Mapping[str, Any]] | None = None,
        **unknown: Any,
    ) -> None:
        streams = {"alpha": alpha, "beta": beta, "epsilon": epsilon, "tau": tau}
        averse = {"risk": risk, "input_variance": input_variance, "risk_forward": risk_forward}
        oracle = {"attention": attention, "attention_risk": attention_risk, "attention_score": attention_score}
        gates = {"entropy_bias": entropy_bias, "gate": gate, "gate_noise": gate_noise}
        mass = {"residual": residual, "bias": bias, "empty_stream": empty_stream}
        rest = {"tau_forward": tau_forward, "output": output, "layers": layers}
        super().__init__(model, **streams, **averse, **oracle, **gates, **mass, **rest, **unknown)

    def forward_key(self) -> tuple[Any, ...]:
        modes = self.modes
        if modes.risk_forward and modes.anywhere("risk") != {0}:
            return ("risk", modes.risk, modes.input_variance, *modes.varied("risk"))
        if modes.tau_forward and modes.anywhere("tau") != {1}:
            return ("tau", modes.tau, modes.epsilon, *modes.varied("tau", "epsilon"))
        return ()

    def known(self, shared: Shared) -> Values:
        modes = self.modes
        risky = modes.anywhere("risk") != {0}
        variance = modes.input_variance if risky or modes.anywhere("attention_risk") != {0} else None
        match self.forward_key():
            case ("risk", *_) as key:
                return shared.deformed(key, self.averse, filtering=modes.input_variance)
            case ("tau", *_) as key:
                values = shared.deformed(key, self._tempered_forward, variance)
            case _:
                values = shared.values(variance)
        if risky or modes.anywhere("entropy_bias") != {0} or self._sees_tails():
            values.observed = Observed(values, lambda gate: self._shown(gate, values))
        return values

    def _sees_tails(self) -> bool:
        """Whether it matters how small a value is: a high temperature lifts it, and rerouting asks if there is any."""
        return max(self.modes.anywhere("tau")) > 1 or "reroute" in self.modes.anywhere("empty_stream")

    def _shown(self, gate: Gate, values: Values) -> Tensor | None:
        """What a gate shows the players; None for its real value (S20, S37)."""
        z, risk = self.pre_activation(gate, values), self.modes.at(gate).risk
        if risk != 0:
            assert values.moments is not None
            if not values.moments.reaches(gate.operand):
                return None
            return lower_confidence(gate, values.moments.of_gate(gate, z), risk)
        if z is not values[gate.operand]:
            return gate.on(z, values)
        return accurate_tail(gate, values, values.form(gate)) if self._sees_tails() else None

    def _tempered_forward(self, node: Node, values: Values) -> Tensor | None:
        """Players who know τ (app:abl-tau-forward, S19): affine values are differences of the streams' soft values."""
        tau = self.modes.at(node).tau
        if not isinstance(node, Affine) or tau == 1:
            return None
        if isinstance(node, (Mix, Held)) and node not in values.network.reached:
            return None  # means inside a norm, scores inside an oracle: computed anew
        if isinstance(node, Mix) and node.unsigned:
            return None
        if isinstance(node, Attention) and node.projection is not None:
            bias = self._key_bias(node, values)
        else:
            bias = values.bias(node)
        sums, unit = self._stream_sums(node, values)
        plus, minus = ((s + self._outside(node, unit)).pow(tau) * unit for s in sums)
        return plus - minus if bias is None else plus - minus + bias

    def _stream_sums(self, node: Affine, values: Values) -> tuple[Streams, Tensor]:
        """The sums of both streams, contributions to the power `1/τ`, and the unit in which these are counted."""
        if isinstance(node, Attention) and node.projection is not None:
            keys = self._keys(node, values)
            return keys.sums, keys.unit
        _, sums, unit = self._contributions(node, values)
        return sums, unit

    def state_values(self, node: Node, values: Values) -> StateValues:
        """Log-values of streams, of going on and of the state (thm:routing-forward).

        Going on is worth `ℓ(z)` of the real pre-activation: players know neither τ nor ε (S13), nor that a bias stands
        aside (S15).
        """
        about = decided(node)
        plus, minus = self._stream_values(about, values) if isinstance(about, Affine) else (None, None)
        seen = values.observed
        return StateValues(
            plus,
            minus,
            seen[about].double().log(),
            seen[node].double().log(),
            continuing(self, node, values),
            oracle_value(node, values),
        )

    def _stream_values(self, node: Affine, values: Values) -> tuple[Tensor | None, Tensor | None]:
        """`τ log(ε^{1/τ} + Σ c^{1/τ})` of both streams (eq:soft-bellman, eq:routing-linear-value), or None."""
        by_gradient = isinstance(node, Attention) and self.modes.at(node).attention == "gradient"
        by_keys = isinstance(node, Attention) and node.projection is not None
        if by_gradient or (isinstance(node, Mix) and node.unsigned and not by_keys):
            return None, None
        sums, unit = self._stream_sums(node, values)
        modes, log_unit = self.modes.at(node), unit.double().log()
        outside = (math.log(modes.epsilon) if modes.epsilon > 0 else -math.inf) - log_unit  # far from any unit
        tau = modes.tau
        plus, minus = (tau * torch.logaddexp(s.double().log(), outside / tau) + log_unit for s in sums)
        return plus, minus

    def reads(self, node: Node) -> tuple[Node, ...] | None:
        modes = self.modes.at(node)
        averse = modes.risk != 0 or modes.attention_risk != 0 or modes.entropy_bias != 0
        others = modes.residual != "uniform" or modes.attention != "value"
        if self.forward_key() or averse or others or self._sees_tails():
            return None
        match node:
            case Gate():
                return (node.operand,)
            case Diagonal() | Norm() | Product() | Halves() | Sum():
                return ()
            case Affine():
                contributing = node.projection if isinstance(node, Attention) and node.projection is not None else node
                # `tempered._net` takes Z⁺ − Z⁻ from its value: at τ = 1, of a projection (`KeyChoice.of`) at any τ
                net = (contributing,) if modes.tau == 1 or contributing is not node else ()
                return (contributing.operand, *net, *looked_at(node))
            case _:
                return looked_at(node)

    def kernel(self, node: Node, values: Values) -> Kernel:
        modes = self.modes.at(node)
        match node:
            case Attention() if modes.attention == "gradient":
                return GradientBlock(node, values, values[node])
            case Attention() if node.projection is not None:
                return self._attention(node, values)
            case Mix() if node.unsigned:
                weight, _, _ = split_weight(node, values, modes.tau)
                value, _ = temper(values.observed[node.operand], node.operand.layout, modes.tau)
                return Sharing.of(node, weight, value)
            case Affine():
                contributions, sums, unit = self._contributions(node, values)
                plus, minus = self._streams(node, sums, unit, self._absorbed(node, values, unit))
                return RoutingLinear(contributions=contributions, plus=plus, minus=minus)
            case Gate():
                return Gating(self._probability(node, values))
            case Halves() | Product():
                return evenly(len(node.carriers))
            case Sum():
                return self._sum(node, values)
            case Diagonal() | Norm():
                return PassThrough()
            case _:
                return moving_kernel(node, values)

    def _probability(self, node: Gate, values: Values) -> Tensor:
        """`c(z)`, as noise, risk and entropy bias change it (S8, S20, S21)."""
        modes, form = self.modes.at(node), values.form(node)
        if modes.gate == "noisy" and form.name == "relu":
            return self.noisy(node, values)
        if modes.risk != 0 and node.nonnegative:
            return above(values.observed[node], 0)
        z = self.pre_activation(node, values)
        if z is values[node.operand]:
            return routing_probability(node, values, form)
        return routing_probability(node, Overlay({node.operand: z, node: values.observed[node]}, values), form)

    def map_root(self, aim: Aim, logits: Tensor) -> Tensor | None:
        return None if aim.index is not None or self.modes.output == "one" else aim.relevance(logits)

    def finish(self, difference: Tensor, source: Node, play: Play) -> Tensor:
        """`Γ₊ − Γ₋` follows the recursion of αβ-LRP (eq:lrp-recovery, eq:lrp-eps-recovery); here come its units.

        Relevance is seeded with the logit (thm:lrp-recovery, eq:lrp-eps-recursion).
        """
        if self.modes.output == "one" or play.aim.index is None:  # weights are in the root (S26b)
            return difference
        return difference * play.value.view([-1] + [1] * (difference.ndim - 1))

    def _sum(self, node: Sum, values: Values) -> Kernel:
        """The addition oracle (def:routing-addition); what a sum is worth says prop:routing-addition-val."""
        if self.modes.at(node).residual == "uniform":
            return evenly(2)
        left, right = (values.observed[n].abs() for n in node.inputs)
        both = left + right
        return Split((torch.where(both > 0, left / both, 0.5), torch.where(both > 0, right / both, 0.5)))

    def _contributions(self, node: Affine, values: Values) -> tuple[Contributions, Streams, Tensor]:
        """Contributions to the power `1/τ`, their sums, and the unit in which both are counted."""
        tau, below = self.modes.at(node).tau, values.observed[node.operand]
        value, unit = temper(below, node.operand.layout, tau)
        real = tau == 1 and below is values[node.operand] and not values.deformed
        contributions, sums, rows = contribute(node, values, value, tau, real)
        return contributions, sums, rows if unit is None else rows * node.layout.spread(unit, sums[0])

    def _outside(self, node: Affine, unit: Tensor) -> Tensor:
        """`ε^{1/τ}` in the units of the contributions, cut to what a float holds where these are tiny."""
        modes = self.modes.at(node)
        return (modes.epsilon / unit).pow(1 / modes.tau).clamp(max=torch.finfo(unit.dtype).max / 4)

    def _attention(self, node: Attention, values: Values) -> Kernel:
        """Key policy `(A_qk ṽ^σ_kd)^{1/τ}`, then input policy; the outside option stands once, at the keys (S23).

        prop:attn-value-policy and, with the oracle's weights as reference, eq:attn-branch-policy.
        """
        keys = self._keys(node, values)
        absorbed = self._split_bias(node, self._key_bias(node, values), keys.unit)
        plus, minus = self._streams(node, keys.sums, keys.unit, absorbed)
        return ValueRouting(
            node=node,
            scope=values,
            weight=keys.weight,
            values=keys.values,
            projection=keys.projection,
            totals=keys.totals,
            plus=plus,
            minus=minus,
        )

    def _keys(self, node: Attention, values: Values) -> KeyChoice:
        tau, players_know = self.modes.at(node).tau, values.deformed and self.modes.tau_forward
        return KeyChoice.of(node, values, self._oracle(node, values), tau, players_know)

    def _oracle(self, node: Attention, values: Values) -> Tensor:
        """The oracle's reference policy (prop:attn-qk-oracle, eq:attn-qk-policy), averse if asked (S24)."""
        modes = self.modes.at(node)
        if modes.attention_risk == 0 or values.moments is None:  # the oracle of a forward pass is never averse
            return node.weight(values)
        return averse_weights(node, values, values.moments, modes.attention_risk, modes.attention_score)

    def _key_bias(self, node: Attention, values: Values) -> Tensor | None:
        """The projection's bias as it reaches the output of the mixing: weights of a query sum to 1."""
        projection = node.projection
        assert projection is not None
        if projection.bias is None:
            return None
        spread = projection.bias(values).expand(values.shape(projection))
        return node.map.apply(node.through(spread, values), node.weight(values))

    def _absorbed(self, node: Affine, values: Values, unit: Tensor) -> Streams | None:
        """A bias is absorbed at affine nodes alone (S15)."""
        if self.modes.at(node).bias == "ignore" or isinstance(node, Mix):
            return None
        return self._split_bias(node, values.bias(node), unit)

    def _split_bias(self, node: Affine, bias: Tensor | None, unit: Tensor) -> Streams | None:
        """`|b^σ|^{1/τ}`, which `bias="absorb"` adds to the denominators."""
        modes = self.modes.at(node)
        if bias is None or modes.bias == "ignore":
            return None
        bias, power = bias / unit, 1 / modes.tau
        return bias.clamp(min=0).pow(power), (-bias).clamp(min=0).pow(power)

    def _streams(self, node: Affine, sums: Streams, unit: Tensor, absorbed: Streams | None) -> list[Stream]:
        """The two stream states (S13); under "reroute" a stream whose twin is empty takes all of the mass (S16)."""
        modes, dtype, outside = self.modes.at(node), sums[0].dtype, self._outside(node, unit)
        streams: list[Stream] = []
        # a stream is entered half of the time, so that twice α pays α; one that stands alone under "reroute" is always
        # entered, and pays what both pay together: α − β
        for k, (discount, turn) in enumerate(((2 * modes.alpha, 1.0), (2 * modes.beta, -1.0))):
            bias = None if absorbed is None else absorbed[k]
            aside = outside if bias is None else outside + bias
            entry: Tensor | float = 0.5
            if modes.empty_stream == "reroute":
                empty, alone = is_empty(sums[k]), is_empty(sums[1 - k])
                entry = torch.where(alone & ~empty, 1.0, torch.where(empty & ~alone, 0.0, 0.5)).to(dtype)
                discount = torch.where(alone, modes.alpha - modes.beta, discount).to(dtype)
                turn = torch.where(alone & ~empty, 1.0, turn).to(dtype)
            streams.append(Stream(total=sums[k], aside=aside, absorbed=bias, entry=entry, discount=discount, turn=turn))
        return streams
