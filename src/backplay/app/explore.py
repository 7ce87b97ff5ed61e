"""The first tab: one scene, with everything that can be asked of its play."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

import numpy as np
import torch

import backplay as bp
from backplay.app import html
from backplay.app.grounds import Pixels, Words
from backplay.app.paint import draw_walks, shades
from backplay.app.solved import Passing, Solved
from backplay.app.work import StoppedError
from backplay.errors import BackplayError
from backplay.games.subplay import SubPlay
from backplay.view.colours import number, scale_of, share
from backplay.view.walks import Trail

CHANNELS = 6  # of a layer that are shown
_ENDING = 30  # walks to a chosen pixel that are drawn

At = tuple[int, ...] | None  # a chosen pixel (row, column) or token (number,)


def first_look(solved: Solved, at: At = None) -> str:
    """The map, beside its picture: what a slider changes first."""
    name = escape(solved.ground.class_name(solved.target))
    told = f"<b>Red</b> speaks for {name}, <b>blue</b> against it."
    if isinstance(solved.ground, Words):
        plain = [abs(s) for s, special in zip(solved.heat, solved.ground.tokens.special, strict=True) if not special]
        chosen = at[0] if at is not None and len(at) == 1 else None
        reach = max(plain, default=0.0) or float(np.abs(solved.heat).max())
        body = html.tokens(solved.ground.tokens, solved.heat.tolist(), reach, chosen)
        body += f"<figcaption>{html.bar(scale_of([np.array([[-reach, reach]])], signed=True))}</figcaption>"
        return html.card("Map", f"{told} Choose a token to see the walks that end there.", body + value(solved), "map")
    scale = scale_of([solved.heat], signed=True)
    left = html.picture(shades(solved.ground.shown), "the picture as the network sees it", "the picture")
    right = html.pickable(solved.heat, scale, f"map for {solved.ground.class_name(solved.target)}", at)
    hint = f"{told} Click a pixel, or move with the arrow keys and press Enter, to see the walks that end there."
    return html.card("Map", hint, f'<div class="bp-main">{left}{right}{value(solved)}</div>', "map")


def value(solved: Solved) -> str:
    """What is explained."""
    asked, answer = solved.target, solved.ground.predicted
    answered = "which the model answers" if asked == answer else f"the model answers {solved.ground.class_name(answer)}"
    words = f"{solved.ground.class_name(asked)}, {answered}"
    return html.facts({"class": words, "value (logit)": number(solved.value), "sum of the map": number(_sum(solved))})


def _sum(solved: Solved) -> float:
    return float(solved.heat.sum())


def details(solved: Solved, at: At = None, layer: str = "") -> str:
    """Everything else: players, walks, layers, health, and what was chosen."""
    parts = [_told("Health", health, solved)]
    if at is not None:
        parts.append(_told("Walks that end there", lambda s: ending(s, at), solved))
    if layer:
        parts.append(_told(f"Channels of {layer}", lambda s: channels(s, layer), solved))
    three = (("Both players", players), ("Arriving walks", walks), ("Layer by layer", by_layer))
    kind = "bp-wide" if isinstance(solved.ground, Words) else "bp-three"
    return "".join([*parts, html.grid([_told(title, panel, solved) for title, panel in three], kind)])


def _told(title: str, panel: Callable[[Solved], str], solved: Solved) -> str:
    """A panel, or a line that says why there is none."""
    try:
        return panel(solved)
    except StoppedError:
        raise
    except BackplayError as error:
        return html.card(title, "", html.error(" ".join(str(error).split())))


def players(solved: Solved) -> str:
    """Both players' discounted visits."""
    plus, minus, log_scale = solved.players
    largest = max(float(plus.max()), float(minus.max()))
    power = math.floor(log_scale / math.log(10) + math.log10(largest)) if largest > 0 else 0
    factor = math.exp(log_scale - power * math.log(10)) if largest > 0 else 1.0
    plus, minus = plus * factor, minus * factor
    about = "How often each comes to the input, discounts included. The map is their difference."
    if isinstance(solved.ground, Words):
        reach = max(float(plus.max()), float(minus.max()))
        rows = [
            f"<p>player {sign}</p>{html.tokens(solved.ground.tokens, (turn * part).tolist(), reach, pick=False)}"
            for sign, turn, part in (("+", 1, plus), ("−", -1, minus))
        ]
        return html.card("Both players", about, "".join(rows), "players")
    body = "".join(
        html.heat(part, scale_of([plus, minus], palette, False, power), f"player {sign}", f"player {sign} ")
        for part, palette, sign in ((plus, "Reds", "+"), (minus, "Blues", "−"))
    )
    return html.card("Both players", about, f'<div class="bp-stack">{body}</div>', "players")


def walks(solved: Solved) -> str:
    """Walks that arrive."""
    drawn = solved.walks
    about = f"{drawn.n} of the {share(float(drawn.share[0]))} of walks that arrive"
    if isinstance(solved.ground, Words):
        about += ", by the token at which each ends."
        counts = solved.ground.gather(drawn.frequencies(drawn.play.network.input)) * drawn.n
        return html.card("Arriving walks", about, _counted(solved.ground, counts), "walks")
    about += ". Red steps are player +'s."
    trail = Trail(drawn, 0, torch.arange(drawn.n), solved.ground.shown)
    body = html.picture(draw_walks(trail, solved.ground.shown), "walks over the picture, and where they end")
    return html.card("Arriving walks", about, f'<div class="bp-one">{body}</div>', "walks")


def _counted(ground: Words, counts: np.ndarray) -> str:
    """How many walks end at each token, as bars."""
    most = max(float(counts.max()), 1.0)
    rows = "".join(
        f'<tr><th>{escape(piece)}</th><td class="bp-flow"><i class="bp-plus" style="width:{100 * count / most:.1f}%">'
        f"</i></td><td>{count:.0f}</td></tr>"
        for piece, count in zip(ground.tokens.pieces, counts.tolist(), strict=True)
    )
    return f'<table class="bp-rows">{rows}</table>'


def by_layer(solved: Solved) -> str:
    """Flow and policy entropy of each layer."""
    rows = solved.rows
    most = max((row.bits for row in rows if math.isfinite(row.bits)), default=0.0) or 1.0
    inputs = {node.name for node in solved.play.network.inputs}
    body = "".join(_row(row, most, row.name not in inputs) for row in rows)
    ended = float(solved.play.cemetery[0])
    body += f'<tr><th>† stopped</th><td class="bp-flow"><i style="width:{100 * ended:.2f}%"></i></td>'
    body += f"<td>{share(ended)}</td><td></td><td></td></tr>"
    about = (
        "Flow: the share of walks that pass, red in player +'s turn. Policy entropy: the bits that a walk decides on "
        "from here to the next layer. Choose a layer to see its channels."
    )
    head = "<tr><th>layer</th><th>flow</th><th></th><th>policy entropy</th><th></th></tr>"
    table = f'<div class="bp-scroll"><table class="bp-rows"><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    return html.card("Layer by layer", about, table, "layers")


def _row(row: Passing, most: float, opens: bool) -> str:
    name = escape(row.name)
    if opens:
        name = f'<button class="bp-layer" data-layer="{name}" data-key="layer {name}">{name}</button>'
    flow = f'<i class="bp-plus" style="width:{100 * row.plus:.2f}%"></i>'
    flow += f'<i class="bp-minus" style="width:{100 * row.minus:.2f}%"></i>'
    known = opens and math.isfinite(row.bits)  # nobody decides at the input; of a resizing it is not known
    bits = f'<i class="bp-bits" style="width:{100 * row.bits / most:.2f}%"></i>' if known else ""
    return (
        f'<tr><th>{name}</th><td class="bp-flow">{flow}</td><td>{share(row.plus + row.minus)}</td>'
        f'<td class="bp-entropy">{bits}</td><td>{_bits(row.bits) if known else "–" * opens}</td></tr>'
    )


def _bits(bits: float) -> str:
    return f"{bits:.2f}" if abs(bits) >= 0.005 else "0"


def health(solved: Solved) -> str:
    """Whether the numbers are sound, and where walks end."""
    found = solved.play.health()
    rows = {
        "numbers": "sound" if found.ok else "NOT SOUND",
        "arrives": share(found.arrives),
        "forward error": f"{found.forward_error:.1e}",
        "mass error": f"{found.mass_error:.1e}",
    }
    rows |= {f"ends in {cause}": share(part) for cause, part in found.ends.items()}
    warning = solved.play.game.modes.warning()
    lines = [f"To let more arrive, try {' or '.join(found.advice)}."] if found.advice else []
    lines += [warning[:1].upper() + warning[1:]] if warning else []
    body = html.facts(rows) + "".join(map(html.note, lines))
    return html.card("Health", "Is this result sound, and how much of the walk reaches the input?", body, "health")


# ---------------------------------------------------------------- what was chosen


def ending(solved: Solved, at: tuple[int, ...]) -> str:
    """The walks that end at a pixel or token."""
    sub = solved.ending_at(at)
    part = float(sub.share[0])
    here = {"share of all walks": share(part), "map here": number(float(solved.heat[at]))}
    if isinstance(solved.ground, Words):
        title = f"Walks that end at token {at[0]}, “{solved.ground.tokens.pieces[at[0]]}”"
        body = html.facts(here) + (_positions(solved, sub) if part > 0 else html.note("No walk ends here."))
        return html.card(title, "Where these walks stood in each layer, token by token.", body, "chosen")
    title = f"Walks that end at row {at[0]}, column {at[1]}"
    if part <= 0:
        return html.card(title, "", html.facts(here) + html.note("No walk ends at this pixel."), "chosen")
    drawn = sub.sample(_ENDING, seed=0, arriving=True)
    trail = Trail(drawn, 0, torch.arange(drawn.n), solved.ground.shown)
    body = html.picture(draw_walks(trail, solved.ground.shown), "walks that end at the chosen pixel", "their ways")
    for name, plane in _passed(solved, sub):
        scale = scale_of([plane], signed=False)
        body += html.heat(plane, scale, f"where they pass {name}", f"at {escape(name)} ")
    about = f"{_ENDING} of them, and where all of them stood in some layers on their way."
    return html.card(title, about, html.facts(here) + f'<div class="bp-strip">{body}</div>', "chosen")


def _passed(solved: Solved, sub: SubPlay) -> list[tuple[str, np.ndarray]]:
    """Where walks stood in a few layers that are laid out like the picture."""
    ground = solved.ground
    assert isinstance(ground, Pixels)
    ratio = ground.x.shape[2] / ground.x.shape[3]
    maps = [
        name
        for name in solved.layer_names()
        if len(shape := solved.play.network.find(name).shape) == 4 and shape[2] > 1 and shape[2] == ratio * shape[3]
    ]
    chosen = maps[:: max(1, -(-len(maps) // 4))]
    return [(name, sub.marginal(name)[0].double().sum(0).cpu().numpy()) for name in chosen]


def _positions(solved: Solved, sub: SubPlay) -> str:
    """A row for each layer that has tokens, a column for each token: the share of these walks that stood there."""
    ground, whole = solved.ground, float(sub.share[0])
    assert isinstance(ground, Words)
    head = "".join(f"<th>{escape(piece)}</th>" for piece in ground.tokens.pieces)
    length, rows = ground.batch.arguments["inputs_embeds"].shape[1], ""
    for name in solved.layer_names():
        found = sub.marginal(name)[0]
        if found.ndim != 2 or len(found) != length:
            continue
        shares = (found.double().sum(-1) / whole)[ground.start : ground.start + len(ground.tokens)].tolist()
        cells = "".join(f'<td title="{share(s)}"><i style="opacity:{min(1, s):.3f}"></i></td>' for s in shares)
        rows += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    return f'<div class="bp-scroll"><table class="bp-cells"><tr><th></th>{head}</tr>{rows}</table></div>'


def channels(solved: Solved, layer: str) -> str:
    """The channels of a layer that most relevance passes through (`bp.concepts`), with their walks' share."""
    found = bp.concepts(solved.play, layer, k=CHANNELS)
    about = "The channels that most relevance passes through, each with its part of the map and its share of walks."
    body = ""
    planes = [solved.ground.gather(_tensor(part)) for part in found.maps]
    scale = scale_of([np.atleast_2d(p) for p in planes], signed=True)
    for rank, plane in enumerate(planes):
        index, relevance = int(found.index[0, rank]), float(found.relevance[0, rank])
        chance = float(solved.play.through(layer, [index]).share[0])
        words = f"channel {index}: {number(relevance)}, {share(chance)} of walks"
        if isinstance(solved.ground, Words):
            body += f"<p>{words}</p>{html.tokens(solved.ground.tokens, plane.tolist(), scale.reach, pick=False)}"
        else:
            body += html.heat(plane, scale, words, f"{words} ")
    total = f"{number(float(found.total[0]))} passes all channels of {layer}."
    wrapped = body if isinstance(solved.ground, Words) else f'<div class="bp-strip">{body}</div>'
    return html.card(f"Channels of {layer}", f"{about} {escape(total)}", wrapped, "channels")


def _tensor(part: object) -> torch.Tensor:
    found = next(iter(part.values())) if isinstance(part, dict) else part
    assert isinstance(found, torch.Tensor)
    return found
