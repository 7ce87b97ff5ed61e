"""Growth: seconds and ratio to the gradient along the batch, the image's side, the depth, the length of a text."""

from collections.abc import Callable
from functools import lru_cache, partial

import backplay as bp
from cases import Case
from networks import Subject, subject
from rounds import Pace, Row, Say, Timed, measure

DEPTHS = (18, 34, 50, 101, 152)
Reading = tuple[Subject, bp.Network]  # a network on its largest batch, and its capture


def cases(small: bool) -> list[Case]:
    if small:
        return [
            *_batches("tiny CNN", (1, 2)),
            *(_case("tiny CNN", "side", n, partial(_read, "tiny CNN", side=n)) for n in (8, 12)),
            *(_case("tiny BERT", "tokens", n, partial(_read, "tiny BERT", tokens=n)) for n in (4, 8)),
        ]
    return [
        *_batches("ResNet-50", (1, 2, 4, 8, 16, 32)),
        *(_case("ResNet-50", "side", n, partial(_read, "ResNet-50", side=n)) for n in (112, 160, 224, 320, 448)),
        *(_case("ResNet", "layers", n, partial(_read, f"ResNet-{n}")) for n in DEPTHS),
        *(_case("BERT", "tokens", n, partial(_read, "BERT", tokens=n)) for n in (16, 64, 256, 1024)),
    ]


def _batches(name: str, sizes: tuple[int, ...]) -> list[Case]:
    """One capture plays every batch."""
    read = lru_cache(maxsize=1)(lambda: _read(name, batch=max(sizes)))

    def first(size: int) -> Reading:
        asked, network = read()
        if size == max(sizes):
            read.cache_clear()
        return asked.of(size), network

    return [_case(name, "batch", n, partial(first, n)) for n in sizes]


def _read(name: str, **size: int) -> Reading:
    asked = subject(name, **size)
    return asked, bp.capture(asked.model, asked.of(1).given)


def _case(name: str, axis: str, size: int, read: Callable[[], Reading]) -> Case:
    def run(pace: Pace, say: Say) -> list[Row]:
        return measure(_calls(*read()), "gradient", pace, say)

    return Case("growth", name, axis, size, run)


def _calls(asked: Subject, network: bp.Network) -> dict[str, Timed]:
    one = asked.of(1)

    def timed(game: bp.StoppingGame | bp.RoutingGame) -> Timed:
        return Timed(lambda: game.attribute(asked.given, 0), warm=lambda: game.attribute(one.given, 0))

    return {
        "gradient": Timed(asked.gradient, warm=one.gradient),
        "Stopping map": timed(bp.StoppingGame(network)),
        "Routing anchor": timed(bp.RoutingGame(network)),
    }
