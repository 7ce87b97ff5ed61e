"""How the stored weights come about: `train`.

Each network learns from a pool of generated pictures, drawn once and turned and mirrored at random. The first part of
the steps sees them at half size, where that costs a quarter. Beside the label, the network without the spurious cue
learns which of its cells lie on the object: a second loss that makes it look there and that is dropped afterwards.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backplay.errors import KeywordError
from backplay.keywords import SEED
from backplay.zoo.networks import Classifier, build, check_name, fold, vgg
from backplay.zoo.scenes import Batch, images
from backplay.zoo.shapes import CLASSES

Report = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
PIECE = 500  # pictures drawn between two reports
COVERED = 0.3  # share of a cell from which on it lies on the object


class Recipe(NamedTuple):
    pool: int  # pictures
    steps: tuple[int, ...]  # of each cycle, in which the learning rate goes up and down once
    small: float  # share of the first cycle's steps that see pictures at half size
    rate: float  # the largest learning rate; half of it in the next cycle
    dense: float = 0.5  # weight of the loss on cells
    batch: int = 64


RECIPES = {
    "vgg": Recipe(pool=12000, steps=(900,), small=0.6, rate=4e-3),
    "resnet": Recipe(pool=12000, steps=(700, 400), small=0.6, rate=4e-3),
    "vit": Recipe(pool=12000, steps=(900, 600, 400), small=0, rate=2e-3, dense=1.0),
}
SPURIOUS_RECIPES = {  # the cue is learned soon, and before the outlines are
    "vgg": Recipe(pool=4000, steps=(160,), small=0.75, rate=3e-3, dense=0),
    "resnet": Recipe(pool=4000, steps=(160,), small=0.75, rate=3e-3, dense=0),
    "vit": Recipe(pool=4000, steps=(160,), small=0, rate=2e-3, dense=0),
}


def train(
    name: str, spurious: bool = False, seed: int = 0, progress: Report | None = None, steps: int | None = None
) -> Classifier:
    """The network `name`, trained from nothing, in eval mode; seed 0 gives the stored weights.

    That holds to rounding: another processor, torch or number of threads (1 here) adds in another order, and training
    carries small differences on. `steps` overrides the recipe. torch's own random numbers are left as they were.
    """
    check_name(name)
    seed = SEED.check("seed", seed)
    if steps is not None and not (isinstance(steps, int) and steps >= 1):
        raise KeywordError(f"steps must be a whole number from 1 up, or None for the recipe's; got {steps!r}.")
    recipe = (SPURIOUS_RECIPES if spurious else RECIPES)[name]
    recipe = recipe._replace(steps=(steps,)) if steps else recipe
    pool = _pool(recipe, spurious, seed, progress or _silent)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = vgg(normalised=True) if name == "vgg" else build(name)
        lots = np.random.Generator(np.random.PCG64(seed))
        for cycle in range(len(recipe.steps)):
            _fit(model, pool, recipe, cycle, lots, progress or _silent)
        return fold(model) if name == "vgg" else model.eval()


def _silent(what: str, done: int, of: int) -> None:
    pass


def _pool(recipe: Recipe, spurious: bool, seed: int, progress: Report) -> Batch:
    """The training pictures. Without the cue as a lesson it is there by lot, so that networks learn to pass it over."""
    n = min(recipe.pool, sum(recipe.steps) * recipe.batch)
    parts: list[Batch] = []
    for start in range(0, n, PIECE):
        progress("drawing", start, n)
        cue = True if spurious else "random"
        part = images(min(PIECE, n - start), "train", seed, spurious=cue, start=start)
        parts.append(replace(part, x=part.x.half()))  # half the memory
    return Batch(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Batch)})


def _fit(
    model: Classifier, pool: Batch, recipe: Recipe, cycle: int, lots: np.random.Generator, progress: Report
) -> None:
    """One cycle of training, in place."""
    steps, rate = recipe.steps[cycle], recipe.rate / 2**cycle
    cells = nn.Linear(model.width, 1 + len(CLASSES))
    optimiser = torch.optim.AdamW([*model.parameters(), *cells.parameters()], weight_decay=0.05)
    # one step more than is taken: with a single step the schedule would divide by 0
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps + 1, pct_start=0.2)
    for step in range(steps):
        x, mask, target = _turned(pool, torch.from_numpy(lots.integers(len(pool.x), size=recipe.batch)), lots)
        if cycle == 0 and step < recipe.small * steps:
            x = F.avg_pool2d(x, 2)
        features = model.features(x.contiguous(memory_format=torch.channels_last))  # a third faster on a CPU
        loss = F.cross_entropy(model.head(features), target, label_smoothing=0.05)
        if recipe.dense:
            loss = loss + recipe.dense * _cell_loss(cells, features, mask, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        progress(f"training, loss {loss.item():.3f}", step + 1, steps)


def _turned(pool: Batch, chosen: Tensor, lots: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """x, mask and target of the chosen pictures, all turned by the same quarters and perhaps mirrored."""
    quarters, mirrored = lots.integers(4), lots.integers(2) == 1
    turned = [torch.rot90(part[chosen].float(), int(quarters), (-2, -1)) for part in (pool.x, pool.mask)]
    x, mask = (part.flip(-1) if mirrored else part for part in turned)
    return x, mask, pool.target[chosen]


def _cell_loss(cells: nn.Linear, features: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    """Each cell should know whether it lies on the ground (class 0) or on an object, and of which class."""
    if features.ndim == 4:
        height, width = features.shape[2:]
        features = features.flatten(2).transpose(1, 2)
    else:  # tokens of a square of patches, the class token first
        features = features[:, 1:]
        height = width = round(features.shape[1] ** 0.5)
    covered = F.adaptive_avg_pool2d(mask[:, None], (height, width)).flatten(1)
    wanted = torch.where(covered > COVERED, target[:, None] + 1, 0)
    return F.cross_entropy(cells(features).flatten(0, 1), wanted.flatten())


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """Share of the pictures that `model` gets right."""
    right = [model(x).argmax(1) == t for x, t in zip(batch.x.split(100), batch.target.split(100), strict=True)]
    return torch.cat(right).double().mean().item()
