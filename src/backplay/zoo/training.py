"""How the stored weights come about: `train`.

Each network learns from a pool of generated pictures, drawn once and turned and mirrored at random. The first part of the
steps sees them at half size, where that costs a quarter. Beside the label, the network without the spurious cue learns
which of its cells lie on the object: a second loss that makes it look there and that is dropped afterwards.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backplay.zoo import networks, scenes
from backplay.zoo.networks import Classifier
from backplay.zoo.shapes import CLASSES

Progress = Callable[[str, int, int], None]  # what is being done, how many steps of it, of how many
PIECE = 500  # pictures drawn between two reports


class Recipe(NamedTuple):
    build: Callable[[], Classifier]
    pool: int  # pictures
    steps: int
    small: float  # share of the steps at half size
    rate: float  # the largest learning rate
    finish: Callable[[Classifier], Classifier] = nn.Module.eval  # type: ignore[assignment]
    batch: int = 64


RECIPES = {
    "vgg": Recipe(lambda: networks.vgg(normalised=True), 12000, 900, 0.6, 4e-3, networks.fold),
    "resnet": Recipe(networks.resnet, 12000, 900, 0.5, 4e-3),
    "vit": Recipe(networks.vit, 16000, 1600, 0.0, 1.5e-3),
}


def train(
    name: str, spurious: bool = False, seed: int = 0, progress: Progress | None = None, steps: int | None = None
) -> Classifier:
    """The network `name`, trained from nothing, in eval mode."""
    recipe = RECIPES[name]
    steps = steps or recipe.steps
    report = progress or (lambda *_: None)
    pool = _pool(min(recipe.pool, steps * recipe.batch), spurious, seed, report)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = recipe.build().to(memory_format=torch.channels_last)
        model.train()
        cells = nn.LazyLinear(1 + len(CLASSES))
        _cell_logits(model, cells, pool.x[:2].float())
        _fit(model, cells, pool, recipe, steps, np.random.Generator(np.random.PCG64(seed)), not spurious, report)
    return recipe.finish(model).to(memory_format=torch.contiguous_format).eval()


def _pool(n: int, spurious: bool, seed: int, report: Progress) -> scenes.Batch:
    parts: list[scenes.Batch] = []
    for start in range(0, n, PIECE):
        report("drawing", start, n)
        part = scenes.images(
            min(PIECE, n - start), "train", seed, spurious=True if spurious else "random", start=start
        )
        parts.append(part._replace(x=part.x.half()))
    return scenes.Batch(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _cell_logits(model: Classifier, cells: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the picture (B, classes) and of its cells (B, 1 + classes, height, width); class 0 is the ground."""
    features = model.features(x)
    logits = model.head(features)
    if features.ndim == 3:  # tokens, the class token first
        side = round((features.shape[1] - 1) ** 0.5)
        features = features[:, 1:].transpose(1, 2).unflatten(2, (side, side))
    return logits, cells(features.movedim(1, -1)).movedim(-1, 1)


def _fit(model, cells, pool, recipe, steps, lots, dense, report) -> None:
    parameters = [*model.parameters(), *cells.parameters()]
    optimiser = torch.optim.AdamW(parameters, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.2)
    for step in range(steps):
        chosen = torch.from_numpy(lots.integers(len(pool.x), size=recipe.batch))
        x, mask = pool.x[chosen].float(), pool.mask[chosen].float()
        quarters, mirror = lots.integers(4), lots.integers(2)
        x, mask = torch.rot90(x, quarters, (2, 3)), torch.rot90(mask, quarters, (1, 2))
        if mirror:
            x, mask = x.flip(3), mask.flip(2)
        if step < recipe.small * steps:
            x = F.avg_pool2d(x, 2)
        logits, ground = _cell_logits(model, cells, x.contiguous(memory_format=torch.channels_last))
        target = pool.target[chosen]
        loss = F.cross_entropy(logits, target, label_smoothing=0.05)
        if dense:
            covered = F.adaptive_avg_pool2d(mask[:, None], ground.shape[2:])[:, 0]
            cell_target = torch.where(covered > 0.3, target[:, None, None] + 1, 0)
            loss = loss + 0.5 * F.cross_entropy(ground, cell_target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        report(f"training, loss {loss.item():.3f}", step + 1, steps)


@torch.no_grad()
def accuracy(model: nn.Module, batch: scenes.Batch) -> float:
    """Share of the pictures that `model` gets right."""
    right = [model(x).argmax(1) == t for x, t in zip(batch.x.split(100), batch.target.split(100), strict=True)]
    return torch.cat(right).double().mean().item()
