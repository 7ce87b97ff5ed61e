"""Trajectory laws written out: every trajectory of a play with its probability, and what follows from two such laws.

A trajectory is the tuple of its states behind the common root (S27). The cemetery is one state; a stream that holds
nothing is a stream state all the same, from which the walk ends (S28).
"""

import math

from .walks import CONSTANT, MINUS, PLUS, TooManyTrajectories, other

DAGGER = ("†",)


def moves(walk, state):
    """`(next state, probability)`, empty streams spelled out as states."""
    node = walk.nodes[state[0]]
    if len(state) == 4 and walk.is_empty(node, state[1], state[3]):
        return [(DAGGER, 1.0)]
    found = walk.transitions(state)
    empty = [to for to, _, _ in found if to == ("†", "empty")]
    if empty and len(state) == 3 and walk.has_streams(node):
        n, j, player = state
        return [((n, j, player, PLUS), 0.5), ((n, j, other(player), MINUS), 0.5)]
    return [(DAGGER if to[0] == "†" else to, p) for to, p, _ in found if p > 0]


def law(walk, target, limit=50_000, player=PLUS):
    """`{trajectory: probability}` from the target's state with a player, + unless told, which itself is left out."""
    found, last = {}, len(walk.nodes) - 1

    def visit(path, state, probability):
        if state in (DAGGER, CONSTANT) or walk.nodes[state[0]].kind == "input":
            found[path] = found.get(path, 0.0) + probability
            if len(found) > limit:
                raise TooManyTrajectories
            return
        for to, p in moves(walk, state):
            # the streams of the target's logit are the streams of the common root
            name = (to[0], "root", *to[2:]) if to[0] == last else to
            visit((*path, name), to, probability * p)

    visit((), (len(walk.nodes) - 1, target, player), 1.0)
    return found


def mixture(walk, weights, limit=50_000):
    """The law from weighted logits: `|w|/Σ|w|` of each one's, player − where the weight is negative (S26b)."""
    found, total = {}, math.fsum(abs(w) for w in weights)
    for k, w in enumerate(weights):
        if w != 0:
            for path, p in law(walk, k, limit, MINUS if w < 0 else PLUS).items():
                found[path] = found.get(path, 0.0) + abs(w) / total * p
    return found


def overlap(left, right):
    """BC of two laws (eq:bc-def)."""
    return math.fsum(math.sqrt(p * right[path]) for path, p in left.items() if path in right)


def survived(found):
    """The part of a law that ends at an input element; constants are no input elements (S26)."""
    return {path: p for path, p in found.items() if path[-1] not in (DAGGER, CONSTANT)}


def given_survival(found):
    """The law given survival, and Z."""
    alive = survived(found)
    z = math.fsum(alive.values())
    return {path: p / z for path, p in alive.items()} if z > 0 else {}, z


def prefix(found, node):
    """The law of what is known once the kernel of `node` has acted: states up to the first below it."""
    cut = {}
    for path, p in found.items():
        n = 0
        while n < len(path) and path[n] not in (DAGGER, CONSTANT) and path[n][0] >= node:
            n += 1
        cut[path[: n + 1]] = cut.get(path[: n + 1], 0.0) + p
    return cut


def player_tag(path):
    """The last state: a pixel with the player who arrives there (eq:adf-T)."""
    return path[-1]


def stream_tag(path):
    """A pixel with the sign of the last stream state on the path, None if there is none (eq:rg-T-pixel)."""
    if path[-1] in (DAGGER, CONSTANT):
        return path[-1]
    crossed = [state[3] for state in path if len(state) > 3]
    return (*path[-1][:2], crossed[-1] if crossed else None)


def ends(found, tag=player_tag):
    """`{last state: probability}`, pixels by their tags."""
    total = {}
    for path, p in found.items():
        total[tag(path)] = total.get(tag(path), 0.0) + p
    return total


def overlap_at(left, right, where):
    """`β` of the trajectories with `where(last state)`."""
    return math.fsum(math.sqrt(p * right[path]) for path, p in left.items() if path in right and where(path[-1]))


def relative_entropy(left, right):
    """`KL(left ‖ right)` in nats, ∞ where `right` lacks a trajectory."""
    if any(path not in right or right[path] == 0 for path, p in left.items() if p > 0):
        return math.inf
    return math.fsum(p * (math.log(p) - math.log(right[path])) for path, p in left.items() if p > 0)


def total_variation(left, right):
    """Half the sum of the differences."""
    return math.fsum(abs(left.get(path, 0.0) - right.get(path, 0.0)) for path in {*left, *right}) / 2


def ends_distance(left, right, tag):
    """Hellinger distance of the laws of the last state, pixels by their tags."""
    p, q = ends(left, tag), ends(right, tag)
    return math.sqrt(math.fsum((math.sqrt(p.get(s, 0.0)) - math.sqrt(q.get(s, 0.0))) ** 2 for s in {*p, *q}) / 2)
