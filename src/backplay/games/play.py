"""A play: a game solved on an input."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from backplay.entry import current_call, entries
from backplay.errors import InputError, KeywordError, UnsupportedError, list_words
from backplay.games.batches import check_finite
from backplay.games.health import Health, examine
from backplay.games.neurons import Neuron, names_neurons, read_neurons
from backplay.games.occupation import Occupation
from backplay.games.state_values import StateValues
from backplay.games.subplay import SubPlay
from backplay.inputs import Aim, Target, check_hidden, read_target
from backplay.kernels.attention import NO_WALK
from backplay.kernels.kernel import DIFFERENCE, TOTAL, WALK, WALK_DIFFERENCE, Kernel, Measure
from backplay.keywords import SEED, Number
from backplay.network import Network, Node
from backplay.network.arguments import Arguments
from backplay.network.groups import attention_inside
from backplay.network.mass import Mass
from backplay.network.nodes import Gate, Input
from backplay.pictured import Pictured
from backplay.trajectory.passes import Passed, crossing, no_mass, pull
from backplay.trajectory.sampling import Trajectories, sample
from backplay.values.forward import Values
from backplay.values.shared import Shared

if TYPE_CHECKING:
    from backplay.games.game import Game


@entries
class Play(Pictured):
    """The solved game: values, policies, measures of the walk."""

    def __init__(
        self,
        game: Game[Any],
        network: Network,
        inputs: Arguments,
        target: Target,
        keep: bool = True,
        shared: Shared | None = None,
    ) -> None:
        self.game, self.network = game, network
        self.inputs = inputs
        needed = None if keep else game.needed(network)
        self.solved, self.aim = _solve(
            game, inputs, target, shared or Shared(network, inputs, network.weights(), needed)
        )
        self._looked = current_call()  # in which the model was last seen to be as it was solved
        self._kernels: dict[Node, Kernel] = {}
        self._released = False
        self.value: Tensor = self.aim.value(self.solved[self.start])
        self._passes: dict[Measure, Passed] = {}
        self._map: Passed | None = None
        if keep:
            self.passed(DIFFERENCE)
        elif not self._carry(careful=False).finite:
            self.solved, _ = _solve(game, inputs, target, Shared(network, inputs, network.weights(), needed))
            self._carry(careful=True)
        masses = (self._map or self._passes[DIFFERENCE]).masses
        check_hidden(inputs, [masses[n].value for n in network.inputs if n in masses], self.aim)

    def _carry(self, careful: bool) -> Passed:
        """What a map alone needs: kernels and values are dropped on the way."""

        def kernel(node: Node) -> Kernel:
            made = self.game.kernel(node, self.solved)
            self.solved.forget(node)  # nodes behind it have been left, and those before it do not look ahead
            return made.once()

        root = self.game.map_root(self.aim, self.solved.logits)
        first = self.root(DIFFERENCE) if root is None else root
        self._map = pull(
            self.network, kernel, self.start, first, DIFFERENCE, keep=False, done=self.solved.forget, careful=careful
        )
        if root is None:
            self._passes[DIFFERENCE] = self._map
        return self._map

    def __repr__(self) -> str:
        explained = "weights" if self.aim.index is None else f"targets {list_words(self.aim.index.tolist())}"
        if isinstance(self.aim, Neuron):
            explained += f" of {self.start.name!r}"
        return f"Play({self.game!r}, batch of {len(self.value)}, {explained})"

    @property
    def target(self) -> Tensor:
        """(B,) the flat index of each sample's target in what the walk starts at, or its weights over the logits."""
        target = self.aim.weights if self.aim.index is None else self.aim.index
        assert target is not None
        return target

    @property
    def x(self) -> Tensor:
        """The explained input."""
        return self.inputs[self.network.keys[self.network.inputs.index(self.network.input)]]

    @property
    def start(self) -> Node:
        """The node that the walk starts at: the output, or that of a hidden neuron (S26b)."""
        return self.aim.node if isinstance(self.aim, Neuron) else self.network.output

    def root(self, measure: Measure = WALK) -> Tensor:
        """Mass at the start (S26b), of logits `w` where discounts count, `|w| / Σ|w|` for the walk; players by sign.

        Weights of the other sign start with the other player (rem:starting-player).
        """
        signed = self.aim.signed(self.value) if measure.discounted else self.aim.walk(self.value)
        return signed if measure.signed else signed.abs()

    def towards(self, target: Target) -> Play:
        """The same solved game with another target: values and kernels are shared, its passes are its own."""
        twin = copy.copy(self)
        vars(twin).pop("_health", None)
        if names_neurons(target):
            twin.aim = read_neurons(target, self.network, self.inputs.batch)
        else:
            logits = self.replayed_logits() if target is None else self.solved.logits
            twin.aim = read_target(target, logits, self.inputs)
        twin.value = twin.aim.value(self.solved[twin.start])
        twin._passes, twin._map = {}, None
        check_hidden(self.inputs, [twin._arrived(n).value for n in self.network.inputs], twin.aim)
        return twin

    def on(self, network: Network) -> Play:
        """The same game, input and target on another copy of the network."""
        return Play(self.game, network, self.inputs, self.aim.given)

    def kernel(self, node: Node, keep: bool = True) -> Kernel:
        """How mass leaves a node in this play; a kernel that is not there yet is made, and kept or not."""
        if node in self._kernels:
            return self._kernels[node]
        self._look()  # what is made now must be of the model that was solved
        if not keep or not self.solved.weights.keeps:
            return self.game.kernel(node, self.solved)
        again = [node]
        if self._released:  # whole again, and at once: the model may change between one question and the next
            self._released = False
            again += [n for n in self.network.nodes if n in self.network.reached and not isinstance(n, Input)]
        for each in again:
            self._kernels[each] = self.game.kernel(each, self.solved)
        return self._kernels[node]

    def release(self) -> Self:
        """Drop kernels and passes, most of a play's memory; what is asked for later is made again.

        >>> bp.hellinger_matrix([game.play(x).release() for x in images], plays)

        A play keeps what it was solved with; a released one needs its model unchanged for what is made again (S1).
        """
        self._kernels = {}  # plays of other targets keep theirs
        self._passes.clear()
        self._map = None
        self._released = True
        return self

    def check_can_remake(self) -> None:
        """Refuse a changed model where kernels have to be made again: they must be of the model that was solved (S1).

        That is so after `release`, and for models of half precision, whose kernels are not kept.
        """
        if self._released or not self.solved.weights.keeps:
            self._look()

    def _look(self) -> None:
        """Refuse a model that is not what was solved; one look is enough for each public call."""
        if self._looked is not None and self._looked is current_call():
            return
        self.check_unchanged("ask it more")
        self._looked = current_call()

    def knows(self, measure: Measure) -> bool:
        """Whether the pass of a measure has been run."""
        return measure in self._passes

    def passed(self, measure: Measure) -> Passed:
        """The pass of one measure, run once."""
        if measure not in self._passes:
            self.check_can_remake()
            self._passes[measure] = pull(self.network, self.kernel, self.start, self.root(measure), measure)
        return self._passes[measure]

    def visited(self) -> Mapping[Node, Mass]:
        """The nodes that the walk can come to, with their walk mass."""
        return self.passed(WALK).masses

    def mass(self, name: str | Node, measure: Measure) -> Mass:
        """Mass of a measure at the output of a node or module, at a V projection `Γ^V` included (S23)."""
        node = self.network.find(name)
        masses = self.passed(measure).masses
        through = crossing(self, node, measure)
        here = masses.get(node, through) or no_mass(self, node)
        return here if through is None or node not in masses else here.plus(through)

    def _arrived(self, source: Node) -> Mass:
        """What the map is made of, at an input; nothing where the output does not depend on it."""
        if self._map is None:
            root = self.game.map_root(self.aim, self.solved.logits)
            if root is None and DIFFERENCE in self._passes:
                self._map = self._passes[DIFFERENCE]
            else:
                self.check_can_remake()
                first = self.root(DIFFERENCE) if root is None else root
                self._map = pull(self.network, self.kernel, self.start, first, DIFFERENCE, keep=False)
        return self._map.masses[source] if source in self._map.masses else no_mass(self, source)

    def maps(self) -> list[Tensor]:
        """The map of each explained input, in its shape."""
        return [self.game.finish(self._arrived(n).plain(), n, self) for n in self.network.inputs]

    def attribution(self) -> Any:
        """The map: what `attribute` returns."""
        return self.inputs.pack(check_finite(self.maps()))

    def occupation(self, name: str | Node) -> Occupation:
        """Both players' discounted visits at the output of a node or module."""
        return Occupation.of(self.mass(name, TOTAL), self.mass(name, DIFFERENCE))

    def marginal(self, name: str | Node = "input", log: bool = False) -> Tensor:
        """Probability that walks visit each element, with either player (eq:lmp-alpha); its logarithm with `log`."""
        mass = self.mass(name, WALK)
        return mass.log() if log else mass.plain()

    @property
    def cemetery(self) -> Tensor:
        """(B,) probability of ending in †."""
        return self.passed(WALK).losses.cemetery.clamp(max=1)

    @property
    def constant(self) -> Tensor:
        """(B,) probability of ending in constant elements (S26)."""
        return self.passed(WALK).losses.constant

    @property
    def bias_leak(self) -> Tensor:
        """(B,) the part of the cemetery that biases absorb (S15)."""
        return self.passed(WALK).losses.leaked

    def observed(self, name: str | Node) -> Tensor:
        """The value that players see at a node (S20)."""
        return self.solved.observed[self.network.find(name)]

    def values(self, name: str | Node) -> StateValues:
        """The game's own values at a node: streams, going on, the state, and `V_QK`, in the paper's units.

        >>> play.values("fc").plus  # of the positive stream
        """
        self.check_unchanged("read its values")
        node = self.network.find(name)
        if not torch.is_floating_point(self.solved[node]):
            raise InputError(
                f"{node.name!r} holds {self.solved[node].dtype}, no values of the game; name another node."
            )
        return self.game.state_values(node, self.solved)

    def attention(self, name: str | Node) -> Tensor:
        """The oracle's reference policy `A` in a module or node, (B, heads, queries, keys) as the model lays it out."""
        node = attention_inside(self.network, name)
        self.check_can_remake()
        weight = node.weight(self.solved)
        return node.queries_first(weight)

    def policy(self, name: str | Node, element: tuple[int, ...] | None = None) -> Any:
        """What players do at a node.

        At a gate: the probability of going on, for every element. Elsewhere `element` names one state (its index in
        the node's output, sample first); the answer is, for each operand, the probability of moving to each of its
        elements with the turn kept and with the turn switched. What is missing to 1 ends in †.
        """
        self.check_can_remake()
        node = self.network.find(name)
        if isinstance(node, Gate):
            ones = torch.ones_like(self.solved[node])
            return self.kernel(node).pull(ones, WALK)[0]
        if isinstance(node, Input):
            raise InputError("the input is terminal: no player moves there.")
        shape = tuple(self.solved[node].shape)
        if not isinstance(element, tuple) or len(element) != len(shape):
            raise InputError(
                f"{node.name!r} is of kind {node.kind}: name one element of its output {shape} by {len(shape)} "
                f"indices, e.g. element={(0,) * len(shape)}; got {element!r}."
            )
        root = torch.zeros_like(self.solved[node])
        try:
            root[tuple(element)] = 1.0
        except IndexError as error:
            raise InputError(
                f"element {element} lies outside the output {tuple(root.shape)} of {node.name!r}."
            ) from error
        both, signed = (self.kernel(node).pull(root, m) for m in (WALK, WALK_DIFFERENCE))
        carriers = self.kernel(node).carriers or node.carriers
        return {
            operand.name: (((b + s) / 2).clamp(min=0), ((b - s) / 2).clamp(min=0))
            for operand, b, s in zip(carriers, both, signed, strict=True)
        }

    def sample(self, n: int, seed: int = 0, arriving: bool = False) -> Trajectories:
        """`n` trajectories of the walk for each sample; a seed fixes every draw (S32).

        With `arriving` only trajectories that reach the input are drawn, however few of all do (S30); `share` of the
        result says how many.
        """
        self.check_can_remake()
        n, seed = Number(1, 1).check("n", n), SEED.check("seed", seed)
        if not isinstance(arriving, bool):
            raise KeywordError(f"arriving={arriving!r} is out of range: it must be True or False.")
        return sample(self, n, seed, arriving)

    def through(self, name: str | Node, states: Any, by: str = "channel") -> SubPlay:
        """The walks that stand in chosen states of a node or module, discounts and players included (S26c).

        `states` are numbers of channels, of heads with `by="head"`, of tokens or positions; or a mask, of bool or
        within [0, 1], that broadcasts against the node's output. Over states that every walk passes, such as a block's
        output, the maps add up to the whole one.

        >>> play.through("features.2", [1, 3]).attribution()
        """
        nodes = [n for n in self.passed(DIFFERENCE).masses if not isinstance(n, Input)]
        if not all(self.kernel(n).walks for n in nodes):
            raise UnsupportedError(NO_WALK)
        return SubPlay(self, {}).through(name, states, by)

    def health(self) -> Health:
        """Forward error, mass error, bias leak and finiteness of this play (S38)."""
        self.check_unchanged("examine it")
        return self._health

    def check_unchanged(self, purpose: str) -> None:
        """Refuse what reads the model itself if that is no longer what the play was solved with (S1)."""
        name = self.network.changed_since(self.solved.weights)
        if name is None:
            return
        if name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked"):
            raise UnsupportedError(
                f"the model has changed since this play was solved: a forward pass in train mode has moved {name!r}.\n"
                f"Call model.eval() and play again to {purpose}."
            )
        raise UnsupportedError(
            f"the model has changed since this play was solved: {name!r} is not what it was; play again to {purpose}."
        )

    @cached_property
    def _health(self) -> Health:
        return examine(self)

    def replayed_logits(self) -> Tensor:
        """The captured program's answer, undeformed by any mode."""
        if not self.solved.deformed:
            return self.solved.logits
        return Values(self.network, self.inputs, self.solved.weights).logits

    def model_logits(self) -> Tensor:
        """What the model itself says to this input."""
        return self.network.model_logits(self.inputs)


def _solve(game: Game[Any], inputs: Arguments, target: Target, shared: Shared) -> tuple[Values, Aim]:
    """The game's values, and what it explains: without a target, the model's own answer."""
    if names_neurons(target):
        aim = read_neurons(target, shared.network, inputs.batch)
        return game.values(shared), aim
    values = game.values(shared)
    return values, read_target(target, shared.answer() if target is None else values.logits, inputs)
