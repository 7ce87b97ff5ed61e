"""What both games share: a captured network, frozen keywords, plays."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

from backplay.entry import entry
from backplay.games.batches import check_finite, check_size, in_parts, targets_of
from backplay.games.inspection import Inspection, inspect
from backplay.games.modes import Modes
from backplay.games.play import Play
from backplay.games.state_values import StateValues
from backplay.inputs import Aim, Target, read_targets
from backplay.kernels.kernel import Kernel
from backplay.network import Model, Network, Node, read_model
from backplay.network.arguments import Arguments, Inputs
from backplay.network.captures import Captures
from backplay.network.nodes import Gate, Input
from backplay.network.wires import Wire
from backplay.values.forward import Values
from backplay.values.gaussian import normal_cdf
from backplay.values.observed import entropy_shift
from backplay.values.risk import lower_confidence
from backplay.values.shared import Shared

M = TypeVar("M", bound=Modes)
Misfit = Callable[[Network], str | None]


class _Board:
    """What games share that come of one another: the captures of their model, and whether they have warned."""

    def __init__(self, given: Model) -> None:
        model = read_model(given)
        self.model = model
        self.captures = Captures(model)
        self.needed = WeakKeyDictionary[Network, dict[Modes, frozenset[Node] | None]]()  # see `Game.needed`
        self.warned = False
        self.misfit: Misfit | None = None  # why the modes are not meant for a network, asked once

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: the model. It is captured again there."""
        return {"given": self.model, "warned": self.warned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["given"])
        self.warned = state["warned"]


class Game(ABC, Generic[M]):
    """A game on a network: which kernel each node gets from the values and the modes."""

    modes_type: ClassVar[type[Modes]]
    streams: ClassVar[bool] = False  # whether a pixel's tag is the stream crossed last, not the player (S29)

    def __init__(self, model: Model, **keywords: Any) -> None:
        self.modes_type.check_names(keywords)
        self.modes: M = self.modes_type(**keywords)  # type: ignore[assignment]
        self._board = _Board(model)
        self._warn(caller=4)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in getattr(self, "__dict__", {}) or name in {f.name for f in fields(self.modes_type)}:
            raise AttributeError(f"{name} is frozen in the game; game.replace({name}=…) gives a new game.")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """A keyword of the game, by its name."""
        modes = self.__dict__.get("modes")
        if modes is not None and hasattr(modes, name):
            return getattr(modes, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A game is frozen: its copy is itself."""
        return self

    def replace(self, **keywords: Any) -> Self:
        """A new game on the same capture with some keywords changed."""
        self.modes_type.check_names(keywords)
        twin = object.__new__(type(self))
        twin.modes = type(self.modes)(**(self.modes.to_dict() | keywords))
        twin._board = self._board
        twin._warn(caller=3)
        return twin

    def _warn(self, caller: int) -> None:
        """Warn of the modes, once for all games that come of one another."""
        self._say(self.modes.warning(), caller + 1)

    def _say(self, said: str | None, caller: int) -> None:
        if said is not None and not self._board.warned:
            self._board.warned = True
            warnings.warn(said, stacklevel=caller)

    def to_dict(self) -> dict[str, Any]:
        """The game's keywords as a plain dict, for configurations: `type(game)(model, **game.to_dict())`."""
        return self.modes.to_dict()

    def __repr__(self) -> str:
        model = self._board.model
        name = type(model.model if isinstance(model, Network) else model).__name__
        words = [f"{k}={v!r}" for k, v in self.modes.changed().items()]
        return f"{type(self).__name__}({', '.join([name, *words])})"

    def network(self, example: Inputs) -> Network:
        """The captured network for inputs like these; a new shape is followed once more, the last few are kept."""
        return self._board.captures.get(self._board.captures.read(example))

    @entry
    def inspect(self, x: Inputs) -> Inspection:
        """Name, kind and shape of every node for inputs like these, and which modes the game has there.

        >>> print(bp.RoutingGame(model, layers={"features.*": {"tau": 0.5}}).inspect(x))
        """
        return inspect(self.modes, self.network(x))

    @entry
    def together(self, x: Inputs) -> int:
        """How many inputs like these are best played at once."""
        given = self._board.captures.read(x)
        return self._board.captures.get(given).together(given.x)

    @entry
    def refresh(self) -> Self:
        """Forget what was prepared from the model's weights: the next play looks at every one of them again (S1)."""
        for network in self._board.captures.networks:
            network.unprepare()
        return self

    @entry
    def play(self, x: Inputs, target: Target = None, additional_forward_args: Any = None) -> Play:
        """Solve the game on an input: values, kernels and the difference pass.

        `target` is a class, one for each sample, a whole index, weights over the logits, or `("layer3.1", index)`: a
        hidden neuron, by its index without the batch (S26b). None is the class with the largest logit.
        """
        network, inputs = self.prepare(x, additional_forward_args)
        return Play(self, network, inputs, target)

    @entry
    def plays(self, x: Inputs, targets: Sequence[Any] | Tensor, additional_forward_args: Any = None) -> list[Play]:
        """A play for each target, all on one forward pass: values and kernels are made once and shared.

        >>> [play.attribution() for play in game.plays(x, targets=[1, 3, 4])]
        """
        wanted = read_targets(targets)
        first = self.play(x, wanted[0], additional_forward_args)
        return [first, *(first.towards(target) for target in wanted[1:])]

    @entry
    def attribute(
        self,
        x: Inputs,
        target: Target = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        internal_batch_size: int | None = None,
    ) -> Any:
        """The map, like the input; captum's extra keywords are understood.

        Of one explained input a tensor of its shape, of several a tuple or dict as they were given.
        `additional_forward_args` follow `x` in `forward` and are held fixed. `internal_batch_size` samples are played
        at once, by default as many as memory likes.
        With `return_convergence_delta` also (B,) the sum of the map minus the value that is explained.
        """
        check_size(internal_batch_size)
        network, inputs = self.prepare(x, additional_forward_args)

        def explain(part: Arguments, wanted: Any) -> list[Tensor]:
            play = Play(self, network, part, wanted, keep=False)
            maps = check_finite(play.maps())
            return [*maps, sum((m.flatten(1).sum(1) for m in maps), -play.value)]

        *maps, delta = in_parts(network, inputs, target, explain, "playing", internal_batch_size)
        return (inputs.pack(maps), delta) if return_convergence_delta else inputs.pack(maps)

    @entry
    def targets(self, x: Inputs, target: Target = None, additional_forward_args: Any = None) -> Tensor:
        """(B, n) the index of the output that is explained in each sample, or its weights over the logits."""
        network, inputs = self.prepare(x, additional_forward_args)
        return targets_of(network, inputs, target)

    def prepare(self, x: Inputs, extra: Any = None) -> tuple[Network, Arguments]:
        """The captured network, and the forward arguments checked against it."""
        network, inputs = self._board.captures.prepare(x, extra)
        misfit, self._board.misfit = self._board.misfit, None
        said = None if misfit is None else misfit(network)
        if said is not None:
            warnings.warn(said, stacklevel=4)
        return network, inputs

    def meant_for(self, misfit: Misfit) -> Self:
        """Warn, at the first play, where `misfit` says why the modes are not meant for the network."""
        self._board.misfit = misfit
        return self

    # ---------------------------------------------------------------- what players know

    @abstractmethod
    def forward_key(self) -> tuple[Any, ...]:
        """What tells the game's forward pass from the network's: key of `Shared.deformed`; () where both are one."""

    def values(self, shared: Shared) -> Values:
        """Forward values of the game, with what its players observe: those of `known`, once the layers are checked."""
        self._say(self.modes.check_layers(shared.network), caller=6)
        return self.known(shared)

    @abstractmethod
    def known(self, shared: Shared) -> Values:
        """What `values` gives: here each game says what its forward pass is, and nothing is checked or warned of."""

    def pre_activation(self, gate: Gate, values: Values) -> Tensor:
        """`z − λ_ent H̃`: what a gate's decision rests on (S20)."""
        z, bias = values[gate.operand], self.modes.at(gate).entropy_bias
        if bias == 0:
            return z
        shift = entropy_shift(gate, values)
        return z if shift is None else z - bias * shift.to(z.dtype)

    def noisy(self, gate: Gate, values: Values) -> Tensor:
        """`Φ((μ_z + λ σ_z) / noise)` (eq:noisy-gate-defn, eq:noisy-gate-weighted, S21).

        How often `z` plus Gaussian noise of that deviation is positive (rem:noisy-gate-perception,
        eq:noisy-gate-marginal).
        """
        z, modes = self.pre_activation(gate, values), self.modes.at(gate)
        if modes.risk != 0:
            assert values.moments is not None
            z = z + modes.risk * values.moments.variance(gate.operand).sqrt()
        return normal_cdf(z / modes.gate_noise)

    def averse(self, node: Node, values: Values) -> Tensor | None:
        """`V_λ`, which a gate shows in a forward pass that variances are filtered along with (app:abl-full-risk)."""
        if not isinstance(node, Gate) or node not in values.network.reached:
            return None  # what no mass can reach, such as the powers inside a spelled-out norm, stays as it is
        risk = self.modes.at(node).risk
        if risk == 0:
            return None
        assert values.moments is not None
        return lower_confidence(node, values.moments.advance(through=node)[node], risk)

    def needed(self, network: Network) -> frozenset[Node] | None:
        """The nodes whose values a map keeps from its forward pass to the way back; None for all."""
        known = self._board.needed.setdefault(network, {})
        if self.modes not in known:
            known[self.modes] = self._needed(network)
        return known[self.modes]

    def _needed(self, network: Network) -> frozenset[Node] | None:
        wanted: set[Node] = set(network.inputs)
        for node in network.reached:
            read = () if isinstance(node, Input) else self.reads(node)
            if read is None:
                return None
            wanted.update(map(_made_from, read))
        return frozenset(wanted)

    @abstractmethod
    def reads(self, node: Node) -> tuple[Node, ...] | None:
        """The nodes whose values the kernel of a node is made from, shapes aside; None where that may be any.

        A value that is missing here is run again: that costs time and changes no number.
        """

    @abstractmethod
    def kernel(self, node: Node, values: Values) -> Kernel:
        """The kernel of a node on solved values."""

    @abstractmethod
    def state_values(self, node: Node, values: Values) -> StateValues:
        """What the game is worth at the states of a node."""

    @abstractmethod
    def map_root(self, aim: Aim, logits: Tensor) -> Tensor | None:
        """The mass at the start from which the map's own pass runs (S26b).

        None: the map is the play's pass of `DIFFERENCE`, and `finish` multiplies that by its factor, if there is one.
        """

    @abstractmethod
    def finish(self, difference: Tensor, source: Node, play: Play) -> Tensor:
        """From the pass that the map rests on, at an input, to the map."""


def _made_from(node: Node) -> Node:
    """What a value is quickly made again from: what a gate reads, what a wire moves."""
    while isinstance(node, Gate) or (isinstance(node, Wire) and len(node.inputs) == 1):
        node = node.inputs[0] if isinstance(node, Wire) else node.operand
    return node
