"""The distance up to a renaming of hidden units, by trying every renaming (S33)."""

import itertools
import math

from . import laws


def renamed(law, orders):
    """A law with other names: unit `j` of a node becomes `orders[node][j]`."""
    found = {}
    for path, probability in law.items():
        named = tuple((s[0], orders[s[0]][s[1]], *s[2:]) if s[0] in orders and len(s) > 2 else s for s in path)
        found[named] = found.get(named, 0.0) + probability
    return found


def overlaps(left, right, groups):
    """BC of one law with every renaming of another; `groups` are (nodes that share their units, number of units)."""
    for chosen in itertools.product(*(itertools.permutations(range(size)) for _, size in groups)):
        orders = {node: order for (nodes, _), order in zip(groups, chosen, strict=True) for node in nodes}
        yield laws.overlap(left, renamed(right, orders))


def smallest_distance(left, right, groups):
    """H_perm."""
    return math.sqrt(max(0.0, 1 - max(overlaps(left, right, groups))))
