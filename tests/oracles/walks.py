"""Both games as explicit Markov chains, solved by walking every trajectory one by one.

A state is `(node, element, player)`, or `(node, element, player, stream)` inside an affine node of the Routing Game, or
one of the ends `("†", reason)` and `("constant",)`. `transitions` lists `(next state, probability, discount)`;
`enumerate_walks` recurses over all of them. No matrix product, no sharing between trajectories.
"""

from dataclasses import dataclass, field

import numpy as np

from . import gates

PLUS, MINUS = 0, 1
CONSTANT = ("constant",)


def cemetery(reason):
    """The cemetery †, with the reason why the walk ended there."""
    return ("†", reason)


def other(player):
    """The opponent p′."""
    return 1 - player


class Walk:
    """What both games share: the graph, the values, and the kernels without weights."""

    def __init__(self, nodes, values):
        self.nodes = nodes
        self.values = values

    def transitions(self, state):
        node = self.nodes[state[0]]
        return getattr(self, node.kind)(node, state)

    def operand(self, node, k=0):
        return self.values[node.inputs[k]]

    def has_streams(self, node):
        """Whether a sign oracle stands at a node."""
        return False

    def max(self, node, state):
        """S7: the winner of smallest index, discount 1."""
        _, j, player = state
        group = node.data["groups"][j]
        best = max(self.operand(node, k)[i] for k, i in group)
        k, i = next((k, i) for k, i in group if self.operand(node, k)[i] == best)
        return [((node.inputs[k], i, player), 1.0, 1.0)]

    def wire(self, node, state):
        """S7: relabelling; S26: constants are terminals."""
        _, j, player = state
        source = node.data["sources"][j]
        if source is None:
            raise AssertionError("a walk reached a padded zero")
        k, i = source
        return [(CONSTANT if k == "constant" else (node.inputs[k], i, player), 1.0, 1.0)]


class Stopping(Walk):
    """The Stopping Game, S6-S8."""

    game = "stopping"

    def __init__(self, nodes, values, softplus=None):
        super().__init__(nodes, values)
        self.softplus = softplus

    def affine(self, node, state):
        """eq:adf-kernel."""
        _, j, player = state
        row = node.data["weight"][j]
        gamma = sum(abs(w) for w in row)
        if gamma == 0:
            return [(cemetery("no predecessor"), 1.0, 1.0)]
        return [
            ((node.inputs[0], i, player if w > 0 else other(player)), abs(w) / gamma, gamma)
            for i, w in enumerate(row)
            if w != 0
        ]

    mix = affine

    def scaled(self, state, factor):
        """One predecessor with a signed factor: discount |factor|, player switched where it is negative."""
        if factor == 0:
            return (cemetery("scale 0"), 1.0, 1.0)
        n, i, player = state
        return ((n, i, player if factor > 0 else other(player)), 1.0, abs(factor))

    def diagonal(self, node, state):
        _, j, player = state
        return [self.scaled((node.inputs[0], j, player), node.data["scale"][j])]

    def gate(self, node, state):
        _, j, player = state
        g = float(gates.passing(node.data["name"], self.operand(node)[j], "stopping"))
        if g < 0:
            player = other(player)
        probability = min(abs(g), 1.0)
        goes_on = ((node.inputs[0], j, player), probability, max(abs(g), 1.0))
        return [goes_on, (cemetery("gate"), 1.0 - probability, 1.0)]

    def sum(self, node, state):
        """def:addition-subgame; subtraction is a diagonal −1 on its operand."""
        _, j, player = state
        moves = []
        for i, sign in zip(node.inputs, node.data["signs"], strict=True):
            moves.append(((i, j, player if sign > 0 else other(player)), 0.5, 2.0))
        return moves

    def product(self, node, state):
        """The carrying factors share the probability; the discount makes up for the share (S7)."""
        _, j, player = state
        carriers = node.data["carriers"]
        moves = []
        for k in carriers:
            to, _, discount = self.scaled((node.inputs[k], j, player), self.operand(node, 1 - k)[j])
            moves.append((to, 1.0 / len(carriers), len(carriers) * discount))
        return moves


class Routing(Walk):
    """The Routing Game, S12-S18."""

    game = "routing"

    def __init__(
        self,
        nodes,
        values,
        alpha=2.0,
        beta=1.0,
        epsilon=0.5,
        tau=1.0,
        residual="uniform",
        bias="ignore",
        empty_stream="cemetery",
    ):
        super().__init__(nodes, values)
        self.alpha, self.beta, self.epsilon, self.tau = alpha, beta, epsilon, tau
        self.residual, self.bias, self.empty_stream = residual, bias, empty_stream

    def affine(self, node, state):
        if len(state) == 4:
            return self.stream(node, state)
        n, j, player = state
        empty = [self.is_empty(node, j, sign) for sign in (PLUS, MINUS)]
        if all(empty):
            return [(cemetery("empty"), 1.0, 1.0)]
        if any(empty) and self.empty_stream == "reroute":
            left = PLUS if empty[MINUS] else MINUS
            return [((n, j, player, left), 1.0, self.alpha - self.beta)]
        moves = []
        for sign, turn, discount in ((PLUS, player, 2 * self.alpha), (MINUS, other(player), 2 * self.beta)):
            to = cemetery("empty") if empty[sign] else (n, j, turn, sign)
            moves.append((to, 0.5, discount))
        return moves

    def has_streams(self, node):
        return node.kind == "affine" or (node.kind == "mix" and not self.shares(node))

    def shares(self, node):
        """S18: a mix of non-negative things with non-negative weights has one stream."""
        return self.nodes[node.inputs[0]].non_negative and (node.data["weight"] >= 0).all()

    def is_empty(self, node, j, sign):
        """Whether a stream holds nothing (S16)."""
        return not self.contributions(node, j, sign).any()

    def contributions(self, node, j, sign):
        """[c_ij]^σ for every predecessor i (S12)."""
        c = self.operand(node) * node.data["weight"][j]
        return np.maximum(c, 0.0) if sign == PLUS else np.maximum(-c, 0.0)

    def stream(self, node, state):
        """S13: the policy over predecessors and the outside option; S15: the bias takes its share to †."""
        _, j, player, sign = state
        power = 1.0 / self.tau
        scores = [c**power if c > 0 else 0.0 for c in self.contributions(node, j, sign)]
        outside = self.epsilon**power if self.epsilon > 0 else 0.0
        bias = self.bias_score(node, j, sign)
        total = sum(scores) + outside + bias
        moves = [((node.inputs[0], i, player), s / total, 1.0) for i, s in enumerate(scores) if s > 0]
        return [*moves, (cemetery("outside"), outside / total, 1.0), (cemetery("bias"), bias / total, 1.0)]

    def bias_score(self, node, j, sign):
        if self.bias == "ignore" or "bias" not in node.data:
            return 0.0
        b = node.data["bias"][j] * (1 if sign == PLUS else -1)
        return b ** (1.0 / self.tau) if b > 0 else 0.0

    def mix(self, node, state):
        """S18: one stream where weights and operand are non-negative; an affine node otherwise."""
        if not self.shares(node):
            return self.affine(node, state)
        _, j, player = state
        scores = [c ** (1.0 / self.tau) if c > 0 else 0.0 for c in self.contributions(node, j, PLUS)]
        if sum(scores) == 0:
            return [(cemetery("empty"), 1.0, 1.0)]
        return [((node.inputs[0], i, player), s / sum(scores), 1.0) for i, s in enumerate(scores) if s > 0]

    def diagonal(self, node, state):
        _, j, player = state
        return [((node.inputs[0], j, player), 1.0, 1.0)]

    def gate(self, node, state):
        _, j, player = state
        c = float(gates.passing(node.data["name"], self.operand(node)[j], "routing"))
        return [((node.inputs[0], j, player), c, 1.0), (cemetery("gate"), 1.0 - c, 1.0)]

    def sum(self, node, state):
        """S17: each operand with probability 1/2, or by size."""
        _, j, player = state
        sizes = [abs(self.operand(node, k)[j]) for k in (0, 1)]
        if self.residual == "uniform" or sum(sizes) == 0:
            sizes = [1.0, 1.0]
        return [((i, j, player), s / sum(sizes), 1.0) for i, s in zip(node.inputs, sizes, strict=True)]

    def product(self, node, state):
        _, j, player = state
        carriers = node.data["carriers"]
        return [((node.inputs[k], j, player), 1.0 / len(carriers), 1.0) for k in carriers]


@dataclass
class Outcome:
    """What the trajectories of one game add up to.

    `occupation[node]` has shape (2, size): Γ of both players; `marginal[node]` the probability of a visit, tags summed.
    """

    occupation: dict
    marginal: dict
    cemetery: float = 0.0
    constant: float = 0.0
    reasons: dict = field(default_factory=dict)
    trajectories: int = 0

    def difference(self, node):
        """Γ₊ − Γ₋."""
        return self.occupation[node][PLUS] - self.occupation[node][MINUS]

    @property
    def bias_leak(self):
        """Probability of ending in † through a bias."""
        return self.reasons.get("bias", 0.0)


class TooManyTrajectories(Exception):
    """The network is too large to enumerate."""


def enumerate_walks(walk, target, limit=200_000, player=PLUS):
    """Follow every trajectory from the target's state with a player, + unless told, to its end."""
    live = [i for i, node in enumerate(walk.nodes) if node.kind != "folded"]
    outcome = Outcome(
        {i: np.zeros((2, walk.nodes[i].size)) for i in live}, {i: np.zeros(walk.nodes[i].size) for i in live}
    )
    moves = {}  # the list of moves of a state, written down once; trajectories are still walked one by one

    def visit(state, probability, discount):
        if state == CONSTANT:
            outcome.constant += probability
        elif state[0] == "†":
            outcome.cemetery += probability
            outcome.reasons[state[1]] = outcome.reasons.get(state[1], 0.0) + probability
        else:
            if len(state) == 3:
                outcome.occupation[state[0]][state[2], state[1]] += probability * discount
                outcome.marginal[state[0]][state[1]] += probability
            elif len(state) == 5:  # a V-projection state inside a composite: Γ^V stands at the projection
                projection = walk.nodes[state[0]].inputs[0]
                outcome.occupation[projection][state[2], state[1]] += probability * discount
                outcome.marginal[projection][state[1]] += probability
            if walk.nodes[state[0]].kind != "input":
                if state not in moves:
                    moves[state] = [move for move in walk.transitions(state) if move[1] > 0]
                for to, p, d in moves[state]:
                    visit(to, probability * p, discount * d)
                return
        outcome.trajectories += 1
        if outcome.trajectories > limit:
            raise TooManyTrajectories

    visit((len(walk.nodes) - 1, target, player), 1.0, 1.0)
    return outcome


def count_trajectories(walk, target):
    """Number of trajectories, counted state by state (to choose networks that can be enumerated)."""
    counts = {}

    def count(state):
        if state == CONSTANT or state[0] == "†" or walk.nodes[state[0]].kind == "input":
            return 1
        if state not in counts:
            counts[state] = sum(count(to) for to, p, _ in walk.transitions(state) if p > 0)
        return counts[state]

    return count((len(walk.nodes) - 1, target, PLUS))
