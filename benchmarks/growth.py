"""Growth: seconds and ratio to the gradient along the batch, the image's side, the depth, the length of a text."""

from collections.abc import Callable

import backplay as bp
from cases import Case
from networks import Subject, subject
from rounds import Pace, Row, Say, Timed, measure

DEPTHS = (18, 34, 50, 101, 152)


def cases(small: bool) -> list[Case]:
    if small:
        return [
            *(_case("tiny CNN", "batch", n, lambda n=n: subject("tiny CNN", n)) for n in (1, 2)),
            *(_case("tiny CNN", "side", n, lambda n=n: subject("tiny CNN", side=n)) for n in (8, 12)),
            *(_case("tiny BERT", "tokens", n, lambda n=n: subject("tiny BERT", tokens=n)) for n in (4, 8)),
        ]
    batches, sides, lengths = (1, 2, 4, 8, 16, 32), (112, 160, 224, 320, 448), (16, 64, 256, 1024)
    return [
        *(_case("ResNet-50", "batch", n, lambda n=n: subject("ResNet-50", n)) for n in batches),
        *(_case("ResNet-50", "side", n, lambda n=n: subject("ResNet-50", side=n)) for n in sides),
        *(_case("ResNet", "layers", n, lambda n=n: subject(f"ResNet-{n}")) for n in DEPTHS),
        *(_case("BERT", "tokens", n, lambda n=n: subject("BERT", tokens=n)) for n in lengths),
    ]


def _case(name: str, axis: str, size: int, build: Callable[[], Subject]) -> Case:
    def run(pace: Pace, say: Say) -> list[Row]:
        return measure(_calls(build()), "gradient", pace, say)

    return Case("growth", name, axis, size, run)


def _calls(asked: Subject) -> dict[str, Timed]:
    one, network = asked.of(1), bp.capture(asked.model, asked.given)

    def timed(game: bp.StoppingGame | bp.RoutingGame) -> Timed:
        return Timed(lambda: game.attribute(asked.given, 0), warm=lambda: game.attribute(one.given, 0))

    return {
        "gradient": Timed(asked.gradient, warm=one.gradient),
        "Stopping map": timed(bp.StoppingGame(network)),
        "Routing anchor": timed(bp.RoutingGame(network)),
    }
