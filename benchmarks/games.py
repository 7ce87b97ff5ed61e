"""Games: what every part of a game costs beside one gradient of the same network on the same input.

Games are captured and prepared before the rounds. A sweep overwrites the powers of temperatures, and six plays in a row
make them anew; both run on a capture of their own, so that τ = 0.5 finds its powers ready.
"""

import torch

import backplay as bp
from cases import Case
from networks import Subject, subject
from rounds import Pace, Row, Say, Timed, measure

TAUS = [0.3, 0.5, 0.7, 1.0, 2.0, 5.0]
DRAWS = 4  # of the Reynolds average
WALKS = 1000
LARGE, SMALL = ("VGG-16", "ResNet-50", "ViT-B/16"), ("SqueezeNet", "ViT-Ti/16", "zoo VGG", "zoo ResNet", "zoo ViT")


def cases(small: bool) -> list[Case]:
    if small:
        return [_case("tiny CNN", 1), _case("tiny CNN", 2)]
    return [*(_case(name, 1) for name in LARGE + SMALL), *(_case(name, 8) for name in LARGE)]


def _case(name: str, batch: int) -> Case:
    def run(pace: Pace, say: Say) -> list[Row]:
        return measure(_single(name) if batch == 1 else _batched(name, batch), "gradient", pace, say)

    return Case("games", name, "batch", batch, run)


class Board:
    """The games that are timed, on one capture of a network."""

    def __init__(self, network: bp.Network) -> None:
        self.stopping, self.anchor = bp.StoppingGame(network), bp.RoutingGame(network)
        self.tempered = self.anchor.replace(tau=0.5)
        self.averse = self.anchor.replace(risk=-1.0, input_variance=1.0)


def _maps(asked: Subject, board: Board) -> dict[str, Timed]:
    """Forward, gradient and the four maps. What is prepared is the same for every batch: one sample prepares it."""
    one, given, least = asked.of(1), asked.given, 5 if len(asked.x) == 1 else 1

    def timed(game: bp.StoppingGame | bp.RoutingGame) -> Timed:
        return Timed(lambda: game.attribute(given, 0), warm=lambda: game.attribute(one.given, 0), least=least)

    return {
        "forward": Timed(lambda: forward(asked), warm=lambda: forward(one)),
        "gradient": Timed(asked.gradient, warm=one.gradient),
        "Stopping map": timed(board.stopping),
        "Routing anchor": timed(board.anchor),
        "τ = 0.5": timed(board.tempered),
        "risk": timed(board.averse),
    }


def forward(asked: Subject) -> object:
    with torch.no_grad():
        return asked.logits()


def _batched(name: str, batch: int) -> dict[str, Timed]:
    asked = subject(name, batch)
    return _maps(asked, Board(bp.capture(asked.model, asked.given)))


def _single(name: str) -> dict[str, Timed]:
    asked = subject(name)
    board = Board(bp.capture(asked.model, asked.given))
    return _maps(asked, board) | _more(asked, board) | _temperatures(asked) | _distances(asked, board)


def _more(asked: Subject, board: Board) -> dict[str, Timed]:
    average, single = (bp.Reynolds(board.anchor, n=n, progress=False) for n in (DRAWS, 1))
    play = board.anchor.play(asked.given, 0)
    return {
        "Reynolds, a draw": Timed(
            lambda: average.attribute(asked.x, 0), warm=lambda: single.attribute(asked.x, 0), parts=DRAWS
        ),
        f"sample({WALKS})": Timed(lambda: play.sample(WALKS)),
        "certify": Timed(lambda: bp.certify(play)),
    }


def _temperatures(asked: Subject) -> dict[str, Timed]:
    games = bp.RoutingGame(bp.capture(asked.model, asked.given))

    def one_by_one() -> None:
        for tau in TAUS:
            games.replace(tau=tau).attribute(asked.given, 0)

    def prepare() -> None:  # nothing but the weights at τ = 1 is ready when a sweep begins
        games.attribute(asked.given, 0)

    return {
        "sweep of six τ": Timed(lambda: bp.sweep(games, asked.given, 0, tau=TAUS), warm=prepare),
        "six maps, one for each τ": Timed(one_by_one, warm=prepare),
    }


def _distances(asked: Subject, board: Board) -> dict[str, Timed]:
    """Two networks that differ in their weights, on one input; the plays are there before, as for whoever compares."""
    other = subject(asked.name, seed=1)
    if asked.name.startswith("zoo"):  # trained weights do not depend on a seed: those of the other training
        from backplay import zoo

        other = Subject(asked.name, zoo.load(asked.name.split()[1].lower(), spurious=True), asked.given)
    plays = [game.play(asked.given, 0) for game in (board.anchor, bp.RoutingGame(other.model))]

    def with_maps() -> None:
        h = bp.hellinger(*plays)
        h.map(), h.map("fraction"), h.map(conditioned=True)

    note = "against a pair of gradients; plays at hand"
    return {
        "hellinger": Timed(lambda: bp.hellinger(*plays).distance, against=2, why=note),
        "hellinger and its maps": Timed(with_maps, against=2, why=note),
    }
