"""What is asked of every random network: the dense reference, and what must hold for any network at all."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

import backplay as bp
from fuzz.generator import Case, draw
from fuzz.reference import Rules, Tape


class Difference(AssertionError):
    """A number is not what it should be."""


def near(found: Tensor, expected: Tensor, scale: Tensor | float, what: str, relative: float = 1e-9) -> None:
    """Largest error of each sample relative to the size of its numbers."""
    if found.shape != expected.shape:
        raise Difference(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    error = (found.double() - expected).abs().flatten(1).amax(1) if found.ndim > 1 else (found - expected).abs()
    allowed = relative * torch.as_tensor(scale, dtype=torch.float64) + 1e-300
    if not bool((error <= allowed).all()):
        raise Difference(
            f"{what}: off by {float((error / allowed * relative).max()):.3g} of its size\n"
            f"  found    {[round(v, 6) for v in found.flatten()[:12].tolist()]}\n"
            f"  expected {[round(v, 6) for v in expected.flatten()[:12].tolist()]}"
        )


def sizes(mass: Tensor) -> Tensor:
    """(B,) what a difference may be off by: its own size, or a few roundings of the masses that cancelled."""
    largest = mass.abs().flatten(2).amax(2)
    return torch.maximum(largest[0], 1e-4 * largest[1]).clamp(min=1e-5)  # a root of 1 rounds to 1e-15


def unscaled(values: Tensor, log_scale: Tensor) -> Tensor:
    return values * log_scale.exp().reshape(-1, *[1] * (values.ndim - 1))


def games(case: Case, network: object) -> list[tuple[Rules, bp.StoppingGame | bp.RoutingGame]]:
    stopping = replace(case.rules, game="stopping")
    return [(stopping, bp.StoppingGame(network)), (case.rules, bp.RoutingGame(network, **case.rules.options))]


def failure(seed: int, thorough: bool = False, playing: bool = True) -> str:
    """What is wrong with the network of a seed; "ok" if nothing is, "delicate" if rounding could decide."""
    try:
        return check(draw(seed), thorough, playing)
    except Difference as different:
        return str(different)
    except bp.BackplayError as refused:
        return f"refused: {refused}"
    except Exception as other:  # no call may raise anything but a BackplayError
        return f"{type(other).__name__}, which is no BackplayError: {other}"


def outcome(seed: int) -> tuple[int, str, str]:
    """A seed, what came of it, and its description if that is a difference."""
    found = failure(seed, thorough=seed % 10 == 0)
    return seed, found, "" if found in ("ok", "delicate") else draw(seed).describe()


def check(case: Case, thorough: bool = False, playing: bool = True) -> str:
    """Raises `Difference` where a game is not what the reference says; returns "ok" or "delicate"."""
    x = case.inputs[0] if len(case.inputs) == 1 else case.inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            logits = case.program(*case.inputs)
        if not bool(torch.isfinite(logits).all()):
            return "delicate"
        tapes = [reference(case, rules, logits) for rules in (replace(case.rules, game="stopping"), case.rules)]
        if any(t.delicate for t, _ in tapes):
            return "delicate"
        if not playing:
            return "ok"
        network = bp.capture(case.program, x)
        both, plays = games(case, network), []
        for (rules, game), (tape, sources) in zip(both, tapes, strict=True):
            play = game.play(x, case.target)
            plays.append(play)
            compare(case, rules, play, tape, sources, logits)
        if thorough:
            for (_, game), play in zip(both, plays, strict=True):
                invariants(case, game, play, x)
            decomposition = bp.decompose(network, x, kind="stopping")[network.output.name]
            found = unscaled(decomposition.plus - decomposition.minus, decomposition.log_scale)
            size = unscaled(decomposition.plus, decomposition.log_scale).amax(1)
            near(found, logits, size.clamp(min=1e-3), "decomposition")
    return "ok"


def reference(case: Case, rules: Rules, logits: Tensor) -> tuple[Tape, list]:
    tape = Tape(rules)
    with torch.no_grad():
        output, sources = case.program.reference(tape, *case.inputs)
        near(output.value, logits, logits.abs().amax(1).clamp(min=1e-3), "the reference's own forward pass", 1e-8)
        tape.pull(output, case.weights(logits))
    return tape, sources


def compare(case: Case, rules: Rules, play, tape: Tape, sources: list, logits: Tensor) -> None:
    """Value, maps, occupation, marginals and ends."""
    weights = case.weights(logits)
    value = (weights * logits).sum(1)
    near(play.value, value, logits.abs().amax(1), f"{rules.game}: value")
    names = ["input"] if len(sources) == 1 else ["x", "y"]
    maps = play.attribution()
    maps = maps if isinstance(maps, tuple) else (maps,)
    if not rules.stopping:  # the map's root is w·logit (S26b)
        tape.pull(tape.nodes[-1], weights * logits)
    for name, source, found in zip(names, sources, maps, strict=True):
        mass = source.mass.reshape(3, *source.value.shape)
        near(found, mass[0], sizes(mass), f"{rules.game}: map at {name}")
    tape.pull(tape.nodes[-1], weights)
    for name, source in zip(names, sources, strict=True):
        mass = source.mass.reshape(3, *source.value.shape)
        occupation = play.occupation(name)
        difference = unscaled(occupation.difference, occupation.difference_log_scale)
        near(difference, mass[0], sizes(mass), f"{rules.game}: difference at {name}")
        total = unscaled(occupation.plus + occupation.minus, occupation.log_scale)
        near(total, mass[1], mass[1].flatten(1).amax(1).clamp(min=1e-5), f"{rules.game}: both players at {name}")
        near(play.marginal(name), mass[2], mass[2].flatten(1).amax(1).clamp(min=1e-6), f"{rules.game}: walk at {name}")
    near(play.constant, tape.constant, 1.0, f"{rules.game}: mass of constants")
    near(play.cemetery, tape.cemetery, 1.0, f"{rules.game}: †")
    health = play.health()
    if not health.ok:
        raise Difference(f"{rules.game}: health is not ok: {health}")


def invariants(case: Case, game, play, x) -> None:
    """What holds for every network: batches, distances, sampling."""
    name = type(game).__name__
    itself = bp.hellinger(play, play)
    if bool(itself.distance.any()):
        raise Difference(f"{name}: a play is {itself.distance.tolist()} from itself")
    shifted = tuple(v + 0.1 for v in case.inputs)
    other = game.play(shifted[0] if len(shifted) == 1 else shifted, case.target)
    there, back = bp.hellinger(play, other), bp.hellinger(other, play)
    near(there.bc, back.bc, 1.0, f"{name}: BC, either way round", 1e-10)
    near(there.bc_forward(), there.bc, 1.0, f"{name}: BC by the forward pass", 1e-9)
    near(there.distance**2, 1 - there.bc, 1.0, f"{name}: H²", 1e-12)
    maps, again = (m if isinstance(m, tuple) else (m,) for m in (play.attribution(), game.attribute(x, case.target)))
    for first, second in zip(maps, again, strict=True):
        near(second, first, first.abs().flatten(1).amax(1), f"{name}: attribute and play.attribution", 1e-11)
    one = tuple(v[:1] for v in case.inputs)
    target = case.target if isinstance(case.target, int) else case.target[:1]
    alone = game.attribute(one[0] if len(one) == 1 else one, target)
    for first, single in zip(maps, alone if isinstance(alone, tuple) else (alone,), strict=True):
        size = (
            first[:1].abs().flatten(1).amax(1).clamp(min=1e-5)
        )  # a map that cancels is made of roundings, as in `sizes`
        near(single, first[:1], size, f"{name}: a sample alone", 1e-9)
    parts(name, play)
    n = 400
    drawn = play.sample(n, seed=1)
    for code, mass in ((-1, play.cemetery), (-2, play.constant)):
        share, sigma = (drawn.ends == code).double().mean(1), (mass * (1 - mass) / n).clamp(min=1e-12).sqrt()
        if bool(((share - mass).abs() > 6 * sigma + 1e-6).any()):
            raise Difference(f"{name}: sampled ends {share.tolist()}, expected {mass.tolist()}")


def parts(name: str, play) -> None:
    """Walks through some states of a node and those through its others are all that pass it (S26c)."""
    inputs, nodes = play.network.inputs, [n for n in play.network.nodes if n in play.network.reached]
    for node in nodes[:: max(1, len(nodes) // 4)]:
        value = play.solved[node]
        mask = (torch.arange(value.numel()) % 3 == 1).view(value.shape)
        one, other, both = (play.through(node, chosen) for chosen in (mask, ~mask, mask | ~mask))
        where = f"{name} through {node.name}"
        near(one.share + other.share, node.layout.sum(play.marginal(node)), 1.0, f"{where}: shares")
        here = node.layout.rows(one.marginal(node))
        near(here, node.layout.rows(play.marginal(node) * mask), 1.0, f"{where}: marginal there")
        ends = one.cemetery + one.constant + sum(one.marginal(n).flatten(1).sum(1) for n in inputs)
        near(ends, one.share, 1.0, f"{where}: ends")
        for k, whole in enumerate(both.maps()):
            size = play.occupation(inputs[k]).difference.abs().flatten(1).amax(1) * (1 + play.value.abs()) + 1e-6
            near(one.maps()[k] + other.maps()[k], whole, size, f"{where}: maps")
        for n in nodes[:: max(1, len(nodes) // 3)]:
            found, whole = (n.layout.rows(m) for m in (one.marginal(n) + other.marginal(n), both.marginal(n)))
            near(found, whole, 1.0, f"{where}: marginals at {n.name}")
