"""Whole trajectories one by one, and what those of them add up to that stand in chosen states (S26c)."""

from dataclasses import dataclass

import numpy as np

from .walks import CONSTANT, PLUS, Outcome, TooManyTrajectories


@dataclass
class Trajectory:
    """One walk: its visits (node, element, player, discount so far), its probability, and how it ends."""

    visits: list
    probability: float
    end: str  # "input", "†" or "constant"

    def place(self, node):
        """The element of a node that it stands at, None where it does not come there."""
        return next((element for n, element, _, _ in self.visits if n == node), None)


def trajectories(walk, target, limit=200_000, player=PLUS):
    """Every trajectory from the target's state to its end."""
    found = []

    def visit(state, visits, probability, discount):
        if state == CONSTANT or state[0] == "†":
            found.append(Trajectory(visits, probability, "constant" if state == CONSTANT else "†"))
        else:
            if len(state) == 3:
                visits = [*visits, (state[0], state[1], state[2], discount)]
            elif len(state) == 5:  # a V-projection state inside a composite
                visits = [*visits, (walk.nodes[state[0]].inputs[0], state[1], state[2], discount)]
            if walk.nodes[state[0]].kind == "input":
                found.append(Trajectory(visits, probability, "input"))
            else:
                for to, p, d in walk.transitions(state):
                    if p > 0:
                        visit(to, visits, probability * p, discount * d)
        if len(found) > limit:
            raise TooManyTrajectories

    visit((len(walk.nodes) - 1, target, player), [], 1.0, 1.0)
    return found


def share_of(trajectory, masks):
    """How much of a trajectory counts: the product of the masks where it stands, 0 if it misses one of their nodes."""
    share = 1.0
    for node, mask in masks.items():
        element = trajectory.place(node)
        share *= 0.0 if element is None else float(mask[element])
    return share


def passing(walk, target, masks, limit=200_000):
    """What the trajectories through chosen states add up to: an outcome, and their share of all.

    `masks` maps nodes to arrays over their elements.
    """
    live = [i for i, node in enumerate(walk.nodes) if node.kind != "folded"]
    outcome = Outcome(
        {i: np.zeros((2, walk.nodes[i].size)) for i in live}, {i: np.zeros(walk.nodes[i].size) for i in live}
    )
    share = 0.0
    for trajectory in trajectories(walk, target, limit):
        weight = trajectory.probability * share_of(trajectory, masks)
        share += weight
        outcome.cemetery += weight * (trajectory.end == "†")
        outcome.constant += weight * (trajectory.end == "constant")
        for node, element, player, discount in trajectory.visits:
            outcome.occupation[node][player, element] += weight * discount
            outcome.marginal[node][element] += weight
    return outcome, share


def circuit_of(walk, target, layers, kept):
    """Edges of the attribution graph, added up trajectory by trajectory: {(source, target): [mass, total, difference]}.

    `layers` maps nodes to (name, group of each element); `kept` are the names of the groups that are followed.
    Discounts are not followed to the ends, so their edges have a mass alone.
    """
    edges = {}

    def add(source, to, *held):
        edges[source, to] = [a + b for a, b in zip(edges.get((source, to), [0.0] * len(held)), held, strict=True)]

    for trajectory in trajectories(walk, target):
        source, p = "output", trajectory.probability
        for node, element, player, discount in trajectory.visits:
            if node not in layers:
                continue
            name, groups = layers[node]
            to = f"{name}[{groups[element]}]"
            to = to if to in kept else f"{name}[rest]"
            add(source, to, p, p * discount, p * discount * (1 if player == PLUS else -1))
            source = to
            if to not in kept:
                break
        else:
            if not (trajectory.end == "input" and trajectory.visits[-1][0] in layers):
                add(source, {"input": "input", "†": "†", "constant": "constants"}[trajectory.end], p)
    return edges
