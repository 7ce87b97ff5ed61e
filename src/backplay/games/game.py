"""What both games share: a captured network, frozen keywords, plays."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from backplay.entry import entry
from backplay.games.inputs import Inputs, Target, read_inputs, read_target
from backplay.games.modes import Modes
from backplay.games.play import Play
from backplay.kernels.kernel import Kernel
from backplay.network import Model, Network, Node, capture, read_model
from backplay.network.nodes import Gate
from backplay.values.forward import Values
from backplay.values.moments import Moments
from backplay.values.normal import normal_cdf
from backplay.values.observed import entropy_shift
from backplay.values.risk import lower_confidence
from backplay.values.shared import Shared

M = TypeVar("M", bound=Modes)


class _Board:
    """The network that games share: captured at first use and kept."""

    def __init__(self, given: Model) -> None:
        model = read_model(given)
        self.model = model
        self.lock = threading.RLock()
        self.warned = False
        self.network = model if isinstance(model, Network) else None

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: the model. It is captured again there."""
        return {"given": self.model, "warned": self.warned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["given"])
        self.warned = state["warned"]

    def get(self, example: Any) -> Network:
        with self.lock:
            if self.network is None:
                assert isinstance(self.model, nn.Module)
                self.network = capture(self.model, example)
            return self.network


class Game(ABC, Generic[M]):
    """A game on a network: which kernel each node gets from the values and the modes."""

    modes_type: ClassVar[type[Modes]]

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
        said = self.modes.warning()
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

    def network(self, example: Any) -> Network:
        """The captured network; `example` is followed at first use."""
        return self._board.get(example)

    @entry
    def together(self, x: Tensor) -> int:
        """How many samples like these are best played at once."""
        return self.network(x).together(x)

    def settled(self, x: Tensor) -> AbstractContextManager[None]:
        """While many inputs like these are played: the model's tensors are looked at once."""
        return self.network(x).settled()

    @entry
    def play(self, x: Inputs, target: Target = None, additional_forward_args: Any = None) -> Play:
        """Solve the game on an input: values, kernels and the difference pass."""
        network, inputs = self.prepare(x, additional_forward_args)
        with torch.inference_mode(False), torch.no_grad():
            return Play(self, network, inputs, target)

    @entry
    def attribute(
        self,
        x: Inputs,
        target: Target = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:
        """The map, a tensor of the input's shape; captum's extra keywords are understood.

        With `return_convergence_delta` also (B,) the sum of the map minus the target's logit.
        """
        network, inputs = self.prepare(x, additional_forward_args)
        with torch.inference_mode(False), torch.no_grad():
            play = Play(self, network, inputs, target, keep=False)
            result = play.attribution()
            if not return_convergence_delta:
                return result
            return result, result.flatten(1).sum(1) - play.value

    @entry
    def targets(self, x: Inputs, target: Target = None) -> Tensor:
        """(B, n) the index of the output that is explained in each sample."""
        network, inputs = self.prepare(x)
        with torch.inference_mode(False), torch.no_grad():
            logits = network.model_logits(inputs)
            return torch.stack(torch.unravel_index(read_target(target, logits), logits.shape[1:]), 1)

    def prepare(self, x: Inputs, extra: Any = None) -> tuple[Network, dict[Any, Any]]:
        """The captured network, and the forward arguments checked against it."""
        keywords = read_inputs(x, extra)
        network = self._board.get(keywords)
        return network, network.check(keywords)

    # ---------------------------------------------------------------- what players know

    @abstractmethod
    def forward(self) -> tuple[Any, ...]:
        """The modes that the game's own forward pass rests on; empty where that is the network's."""

    @abstractmethod
    def values(self, shared: Shared) -> Values:
        """Forward values of the game, with what its players observe."""

    def pre_activation(self, gate: Gate, values: Values) -> Tensor:
        """`z − λ_ent H̃`: what a gate's decision rests on (S20)."""
        z = values[gate.operand]
        if self.modes.entropy_bias == 0:
            return z
        shift = entropy_shift(gate, values)
        return z if shift is None else z - self.modes.entropy_bias * shift.to(z.dtype)

    def noisy(self, gate: Gate, values: Values) -> Tensor:
        """`Φ((μ_z + λ σ_z) / noise)` (eq:noisy-gate-weighted, S21)."""
        z = self.pre_activation(gate, values)
        if self.modes.risk != 0:
            assert values.moments is not None
            z = z + self.modes.risk * values.moments.variance(gate.operand).sqrt()
        return normal_cdf(z / self.modes.gate_noise)

    def averse_forward(self, shared: Shared) -> Values:
        """A forward pass in which every gate shows `V_λ`; variances are filtered along the way (ablation A2)."""

        def deform(node: Node, values: Values) -> Tensor | None:
            if values.moments is None:
                values.moments = Moments(values, self.modes.input_variance)
            if not isinstance(node, Gate) or node not in values.network.carrying:
                return None  # what no mass can reach, such as the powers inside a spelled-out norm, stays as it is
            return lower_confidence(node, values.moments.advance(through=node)[node], self.modes.risk)

        return shared.deformed(self.forward(), deform)

    @abstractmethod
    def kernel(self, node: Node, values: Values) -> Kernel:
        """The kernel of a node on solved values."""

    @abstractmethod
    def finish(self, difference: Tensor, play: Play) -> Tensor:
        """From `Γ₊ − Γ₋` at the input to the map."""
