"""Games averaged over moved images (`Reynolds`), under whatever name a model takes its image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backplay.games import Reynolds, RoutingGame, StoppingGame
from backplay.methods.subject import Subject


def averaged(subject: Subject, game: RoutingGame | StoppingGame, **average: Any) -> Tensor:
    """The game's map, averaged; what stands beside the image stays as it is."""
    maps = [Reynolds(_Sample(one, game), **average).attribute(one.x, one.target) for one in subject.samples()]
    return torch.cat(maps)


class _Sample:
    """A game on one sample: it takes the image alone, as `Reynolds` moves it, and puts it among the sample's inputs."""

    def __init__(self, subject: Subject, game: RoutingGame | StoppingGame) -> None:
        self.subject, self.game = subject, game

    def together(self, x: Tensor) -> int:
        return self.subject.network.together(x)

    def targets(self, x: Tensor, target: Tensor) -> Tensor:
        return target

    def attribute(self, x: Tensor, target: Any = None) -> Tensor:
        return self.game.attribute(self.subject.beside([x]), target)
