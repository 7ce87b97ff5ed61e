"""What every kernel can do: carry mass at one node's output back to the node's inputs.

A kernel is built once from the values of a play and then pulls any measure. All measures follow the same transitions;
they differ in whether the trajectory discount is paid and in whether the two players' masses are added or subtracted.
A new kernel is one subclass of `Kernel` in one file, and a line in `kernel` of the game that gives it to a node, or in
`kernels.moves.moving_kernel`, which serves both games. `pull` alone is enough for maps. Beyond them a kernel overrides
`lost` if mass ends here and `ending` to say why, `constant` if it ends in constants, `pull_players` if the turn can go
over, `one_each` if a state leads to at most one state of each carrier, `push` for survival, `geometric` for distances,
`divergence` for `kl` and `draw` for sampling; passes, sampling and health never look at its class. What asks about
players' decisions does: `certify`, the bounds of distances and the explorer's entropy know the kernels at which a
player decides.

What lies *behind* a node is computed from it and is nearer the network's output: walks have been there before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.kernels.draws import Draw, Standing
from backplay.network.indicator import inverse
from backplay.network.mass import Mass
from backplay.network.nodes import Affine, Node

if TYPE_CHECKING:
    from backplay.kernels.divergence import Divergence

# why a walk ends in †: the words of `play.health()`
OUTSIDE, EMPTY, BIASES = "ε outside options", "empty streams", "biases"
GATES, ZEROS = "shut gates", "zero weights and factors"


@dataclass(frozen=True)
class Measure:
    """What a pass carries: discounted (eq:routing-discount) or not, the players' difference (`signed`) or their sum."""

    signed: bool
    discounted: bool


DIFFERENCE = Measure(signed=True, discounted=True)  # Γ₊ − Γ₋, carried by signed discounts (rem:signed-discount-alt)
TOTAL = Measure(signed=False, discounted=True)  # Γ₊ + Γ₋
WALK = Measure(signed=False, discounted=False)  # probability that a walk visits an element, with either player (Π, S27)
WALK_DIFFERENCE = Measure(signed=True, discounted=False)  # that with + in turn minus that with −


@dataclass(frozen=True)
class Way:
    """One way of leaving a state that no other way can be mistaken for: a stream and a player, or the way to †."""

    moved: Sequence[Tensor]  # for each carrier, in its shape
    ends: Tensor | None  # what goes to † on this way, shaped like the output


class Kernel(ABC):
    """Transitions from the states of one node to the states of its carriers.

    A state is an element with the player in turn (def:adf-game-states); what ends in † is `lost`.
    """

    ending: ClassVar[str] = ZEROS  # why mass ends in † here, where there is one reason
    walks: ClassVar[bool] = True  # whether its moves have probabilities; a kernel without is good for maps alone
    # whether a state leads to at most one state of each carrier; which carrier, or whether the walk ends, may be chance
    one_each: ClassVar[bool] = False

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        """Where mass moves to; None for the node's own carriers."""
        return None

    @abstractmethod
    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        """Mass at the node carried back to each of its carriers."""

    def once(self) -> Kernel:
        """The same for a single pull, which may write over what the kernel is made of."""
        return self

    def push(self, values: Sequence[Tensor]) -> Tensor:
        """Expectation, over the walk's next state, of a function on the carriers' states; 0 where the walk ends.

        The function is the same for both players, and so is its expectation. `push` is the transpose of `pull`.
        """
        raise UnsupportedError(f"{type(self).__name__} has no forward expectation; only maps can be made with it.")

    # ---------------------------------------------------------------- where a walk ends

    def lost(self, mass: Tensor) -> Tensor | None:
        """Walk mass that ends in † here, shaped like the output; None where nothing does."""
        return None

    def leaked(self, mass: Tensor) -> Tensor | None:
        """The part of `lost` that biases absorb (S15)."""
        return None

    def constant(self, mass: Tensor) -> Tensor | None:
        """Walk mass that ends in constant elements (S26)."""
        return None

    def causes(self, mass: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What of the mass ends in †, by the reason; the sum is `lost`."""
        lost = self.lost(mass)
        if lost is not None:
            yield self.ending, lost

    # ---------------------------------------------------------------- players and streams apart (S27, S29)

    def pull_players(self, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Walk masses of both players carried back to each carrier, by sums of non-negative terms only.

        By default every player keeps the turn: a kernel with negative coefficients must override this.
        """
        return list(zip(self.pull(plus, WALK), self.pull(minus, WALK), strict=True))

    def pull_streams(self, tagged: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Walk masses that last crossed the + stream, the − stream, or none, carried back to each carrier.

        By default no stream is crossed, and every mass keeps its tag (S29): the stream that its walks crossed last.
        """
        return list(zip(*(self.pull(mass, WALK) for mass in tagged), strict=True))

    def ways(self, plus: Tensor, minus: Tensor) -> list[Way]:
        """Where the masses of both players at a root go, each way by itself."""
        moved = self.pull_players(plus, minus)
        return [Way([p for p, _ in moved], self.lost(plus + minus)), Way([m for _, m in moved], None)]

    # ---------------------------------------------------------------- two plays, and single walks

    def geometric(self, other: Any) -> Kernel:
        """`√(T_A T_B)` of this kernel and the same node's in another play, of the same class; † and all (S28)."""
        raise UnsupportedError(f"{type(self).__name__} is no walk that could be compared.")

    def divergence(self, other: Any) -> Divergence:
        """`KL(row_A ‖ row_B)` of this kernel's rows and the same node's in another play, of the same class; † and all.

        Rows of both players have the same.
        """
        raise UnsupportedError(f"{type(self).__name__} is no walk that could be compared.")

    def draw(self, walks: Standing) -> Draw:
        """One step of every walk (S32).

        If `walks` have a `future`, a function `h ≥ 0` on the carriers' states, moves are drawn in proportion to
        `T(s → s') h(s')` and no walk ends; every state must have such a move.
        """
        raise UnsupportedError(f"{type(self).__name__} is no walk that could be sampled.")

    # ---------------------------------------------------------------- states that a walk crosses on its way

    # Only attention has them (S23): its walk goes from the mixing's output to the V projection's input in one step, and
    # on the way crosses the projection's states and those of the wires between.

    @property
    def crossed(self) -> Affine | None:
        """A node whose states the walk crosses on its way to the carriers; None where it goes there directly."""
        return None

    def crosses(self, node: Node) -> bool:
        """Whether walks cross a node's states on their way to the carriers: of `crossed`, or of a wire behind it."""
        return False

    def crossings(self, between: Tensor) -> Iterable[tuple[Node, Tensor]]:
        """All nodes that drawn walks cross, wires included, and the states there, from what `draw` says of them."""
        return ()

    def cross(self, mass: Tensor, measure: Measure, future: Tensor | None = None, wire: Node | None = None) -> Tensor:
        """Mass at the node as it comes through the states of `crossed`, or of a `wire` behind it, in their shape.

        With a `future`, a function of the carrier's states, each part times what it may expect of that function.
        """
        raise UnsupportedError(f"{type(self).__name__} crosses no other node's states.")

    def narrowed(self, mask: Tensor, at: Node) -> Kernel:
        """The same with each move times the mask at the state of a crossed node that it comes through (S26c)."""
        raise UnsupportedError(f"{type(self).__name__} crosses no other node's states.")


def switch_players(kernel: Kernel, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
    """`pull_players` of an elementwise kernel: the turn goes over where its signed coefficient is negative."""
    moved: list[tuple[Tensor, Tensor]] = []
    for signed in kernel.pull(torch.ones_like(plus), WALK_DIFFERENCE):
        kept, switched = signed.clamp(min=0), (-signed).clamp(min=0)
        moved.append((kept * plus + switched * minus, kept * minus + switched * plus))
    return moved


@dataclass(frozen=True, eq=False)
class Conditioned(Kernel):
    """`T(s → s') h(s') / h(s)`: the walk given that it survives, which never ends (eq:conditioned-kernel, S30)."""

    kernel: Kernel
    inverse: Tensor  # 1 / h(s), 0 where no surviving walk passes, on the scale that h(s) has
    below: Sequence[Tensor]  # h(s') of each carrier on that scale

    @classmethod
    def on(cls, kernel: Kernel, here: Mass, below: Sequence[Mass]) -> Conditioned:
        """The Doob transform of a kernel by `h` at its node and at its carriers."""
        small = torch.finfo(here.value.dtype).tiny  # no surviving walk passes below it
        # `h` below and here differ by one step of the walk: both on one scale, the dtype holds it. Where `h` is 0 its
        # exponent means nothing, and may be far off; bounded, it leaves the 0 a 0
        bound = 2 * (math.frexp(torch.finfo(here.value.dtype).max)[1] - 3)
        scaled = [b.times((b.exponent - here.exponent).clamp(-bound, bound)) for b in below]
        return cls(kernel, inverse(here.value, small), scaled)

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return self.kernel.carriers

    @property
    def crossed(self) -> Affine | None:
        return self.kernel.crossed

    def crosses(self, node: Node) -> bool:
        return self.kernel.crosses(node)

    def crossings(self, between: Tensor) -> Iterable[tuple[Node, Tensor]]:
        return self.kernel.crossings(between)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        moved = self.kernel.pull(mass * self.inverse, measure)
        return [m * b for m, b in zip(moved, self.below, strict=True)]

    def draw(self, walks: Standing) -> Draw:
        return self.kernel.draw(replace(walks, future=self.below))
