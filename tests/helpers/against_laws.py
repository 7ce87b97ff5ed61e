"""`bp.hellinger` against two trajectory laws written out (S27-S31): what all such tests compare."""

import numpy as np
import torch

import backplay as bp
from closeness import assert_near
from oracles import laws


def compare(a, b, pairs):
    """Numbers, maps and ends of two plays, by every route, against the laws of each pair of samples."""
    h, reverse = bp.hellinger(a, b), bp.hellinger(b, a)
    kernel_side = bp.hellinger(a, b, conditioning="kernel")
    assert_near(h.distance**2, reverse.distance**2, 1e-13, scale=1.0, what="H², either way round")
    assert_near(h.disagreement, reverse.disagreement, 1e-13, scale=1.0, what="h², either way round")
    assert h.distance.dtype == h.bc.dtype == h.surviving.dtype == torch.float64
    bc = np.array([laws.overlap(p, q) for p, q in pairs])
    assert_near(h.bc, bc, scale=1.0, what="BC")
    assert_near(h.distance**2, 1 - bc, scale=1.0, what="H²")
    assert_near(h.bc_forward(), bc, scale=1.0, what="BC, forward pass")
    given = [(laws.given_survival(p), laws.given_survival(q)) for p, q in pairs]
    for k, ((p, z_p), (q, z_q)) in enumerate(given):
        for found in (h, kernel_side):
            assert_near(found.survival_a[k], z_p, scale=1.0, what="Z_A")
            assert_near(found.survival_b[k], z_q, scale=1.0, what="Z_B")
            if z_p == 0 or z_q == 0:
                assert torch.isnan(found.surviving[k])
            else:
                assert_near(found.bc_surviving[k], laws.overlap(p, q), scale=1.0, what="BC given survival")
    compare_ends(h, pairs)
    compare_divergences(h, pairs)
    compare_maps(h, kernel_side, pairs, given)
    return h


def compare_ends(h, pairs):
    for k, (p, q) in enumerate(pairs):
        dagger = laws.overlap_at(p, q, lambda s: s == laws.DAGGER)
        assert_near(h.cemetery_overlap[k], dagger, scale=1.0, what="β(†)")
        constant = laws.overlap_at(p, q, lambda s: s == laws.CONSTANT)
        assert_near(h.constant_overlap[k], constant, scale=1.0, what="β(constants)")
    total = h.disagreement.flatten(1).sum(1) + h.cemetery_disagreement + h.constant_disagreement
    assert_near(total, h.distance**2, scale=1.0, what="Σ h² = H² (thm:per-pixel)")


def compare_divergences(h, pairs):
    """KL and Jeffreys, the bounds of total variation and the distance of the ends (sec:lmp-hellinger-distance)."""
    low, high = h.total_variation
    for k, (p, q) in enumerate(pairs):
        forth, back = laws.relative_entropy(p, q), laws.relative_entropy(q, p)
        for found, expected, what in ((h.kl, forth, "KL"), (h.jeffreys, forth + back, "Jeffreys")):
            assert bool(torch.isinf(found[k])) == np.isinf(expected), what
            if np.isfinite(expected):
                assert_near(found[k], expected, scale=1.0 + expected, what=what)
        assert h.distance[k] ** 2 <= h.kl[k] / 2 + 1e-12
        assert low[k] - 1e-12 <= laws.total_variation(p, q) <= high[k] + 1e-12
        assert_near(low[k], h.distance[k] ** 2, scale=1.0)
        assert high[k] <= np.sqrt(2) * h.distance[k] + 1e-12
        shadow = laws.ends_distance(p, q, tag_of(h.a))
        assert_near(h.marginal_distance[k] ** 2, shadow**2, scale=1.0, what="distance of the ends")
        assert h.marginal_distance[k] ** 2 <= h.distance[k] ** 2 + 1e-12


def tag_of(play):
    """What a pixel is told apart by: in the Routing Game the stream crossed last, else the player (S29)."""
    return laws.stream_tag if isinstance(play.game, bp.RoutingGame) else laws.player_tag


def maps_of(p, q, size, tag):
    """Trajectory, marginal and fraction map of two laws, tags summed (S29)."""
    trajectory, marginal, mass = np.zeros(size), np.zeros(size), np.zeros(size)
    for of, which in ((trajectory, laws.player_tag), (marginal, tag)):
        ends_p, ends_q = laws.ends(p, which), laws.ends(q, which)
        for state in (set(ends_p) | set(ends_q)) - {laws.DAGGER, laws.CONSTANT}:
            u, v = ends_p.get(state, 0.0), ends_q.get(state, 0.0)
            if of is trajectory:
                of[state[1]] += (u + v) / 2 - laws.overlap_at(p, q, lambda s, state=state: s == state)
                mass[state[1]] += (u + v) / 2
            else:
                of[state[1]] += (u + v) / 2 - np.sqrt(u * v)
    fraction = np.divide(trajectory, mass, out=np.zeros(size), where=mass > 0)
    return {"trajectory": trajectory, "marginal": marginal, "fraction": fraction}


def compare_maps(h, kernel_side, pairs, given):
    size = h.a.x[0].numel()
    for k, (p, q) in enumerate(pairs):
        for kind, expected in maps_of(p, q, size, tag_of(h.a)).items():
            # a fraction of tiny masses has no digits left of the passes' rounding
            scale = 1.0 if kind != "fraction" else 1e5
            assert_near(h.map(kind)[k].flatten(), expected, scale=scale, what=f"{kind} map")
        (alive_p, z_p), (alive_q, z_q) = given[k]
        if z_p == 0 or z_q == 0:
            continue
        for kind, expected in maps_of(alive_p, alive_q, size, tag_of(h.a)).items():
            scale = 1.0 if kind != "fraction" else 1e5
            for found in (h, kernel_side):
                assert_near(found.map(kind, conditioned=True)[k].flatten(), expected, scale=scale, what=f"live {kind}")
