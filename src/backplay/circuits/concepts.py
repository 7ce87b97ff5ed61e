"""Concepts: the channels of a layer that most relevance passes through, and what each of them stands for (S26c)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backplay.circuits.tracing import choose
from backplay.entry import entries, entry
from backplay.errors import InputError, InputTypeError, MissingFileError, list_words
from backplay.games import Play
from backplay.kernels.kernel import DIFFERENCE
from backplay.keywords import Number
from backplay.network import Node
from backplay.network.groups import Groups, check_by, groups_of
from backplay.network.mass import Mass
from backplay.pictured import Pictured
from backplay.progress import Progress
from backplay.trajectory.passes import no_mass, pull


@dataclass(frozen=True, repr=False)
class Strongest:
    """The reference images in which one group is strongest, the strongest first."""

    index: Tensor  # (n,) their numbers among the references
    x: Tensor  # (n, …) the images
    relevance: Tensor  # (n,) what passes the group in each, float64
    maps: Tensor  # like x: the part of each image's map that comes through the group

    def __repr__(self) -> str:
        return f"Strongest(images {list_words(self.index.tolist())})"


@entries
@dataclass(frozen=True, repr=False)
class Concepts(Pictured):
    """Groups of a layer by the relevance that passes through them, the largest in size first.

    `maps` has one entry for each rank: the part of the map that comes through the group of that rank, like the input.
    """

    play: Play
    layer: str
    by: str
    index: Tensor  # (B, k) the number of each group
    relevance: Tensor  # (B, k) what passes through it, in the units of the map, float64
    total: Tensor  # (B,) what passes through all groups of the layer
    maps: list[Any]
    strongest: Mapping[int, Strongest] = field(default_factory=dict[int, Strongest])  # by the number of the group

    def __repr__(self) -> str:
        ranked = [f"{int(i)} ({float(r):.3g})" for i, r in zip(self.index[0], self.relevance[0], strict=True)]
        several = f" of sample 0 of {len(self.index)}" if len(self.index) > 1 else ""
        return f"Concepts({self.by}s {list_words(ranked)} of {self.layer!r}{several})"


@entry
def concepts(
    play: Play, node: str | Node, k: int = 8, by: str = "channel", references: Any = None, n: int = 4
) -> Concepts:
    """The `k` channels, heads or tokens of a layer that most relevance passes through, each with its part of the map.

    With `references`, a batch of images, one of the zoo or a folder, also the `n` of them in which each is strongest:
    every reference is explained for its own class. A folder asks for a model that `backplay.models.load` has loaded.

    >>> bp.concepts(play, "features.2", k=2).plot()
    """
    if not isinstance(play, Play):
        raise InputTypeError(f"concepts takes a play, game.play(x); got {type(play).__name__}.")
    k, n = Number(8, 1).check("k", k), Number(4, 1).check("n", n)
    chosen = choose(play, node, check_by(by))
    images = None if references is None else read_references(references, play)
    groups = groups_of(play.network, chosen, by, play.solved)
    sums = relevance_of(play, groups)
    index = sums.abs().topk(min(k, groups.count), 1).indices
    maps = [_through(play, groups, index[:, rank]) for rank in range(index.shape[1])]
    layer = node if isinstance(node, str) else node.name
    strongest = {} if images is None else _strongest(play, layer, by, images, index, n)
    return Concepts(play, layer, by, index, sums.gather(1, index), sums.sum(1), maps, strongest)


def relevance_of(play: Play, groups: Groups) -> Tensor:
    """(B, groups) the part of the map that stands in each group on its way to the input, float64."""
    root = play.game.map_root(play.aim, play.solved.logits)
    if root is None:
        mass = play.mass(groups.node, DIFFERENCE)
    else:
        passed = pull(play.network, play.kernel, play.start, root, DIFFERENCE)
        mass = passed.masses.get(groups.node) or no_mass(play, groups.node)
    if getattr(play.game.modes, "multiply_by_input", False):  # gradient times input: here, times what stands here
        return groups.sums(Mass(mass.value * play.solved[groups.node], mass.exponent, mass.layout))
    return play.game.finish(groups.sums(mass), groups.node, play)


def _through(play: Play, groups: Groups, index: Tensor) -> Any:
    """The part of the map through one group a sample."""
    mask = groups.labels == groups.node.layout.spread(index, play.solved[groups.node])
    return play.through(groups.node, mask).attribution()


# ---------------------------------------------------------------- references


def _strongest(play: Play, layer: str, by: str, images: Tensor, index: Tensor, n: int) -> dict[int, Strongest]:
    """For each group that was found the references in which most relevance passes through it."""
    game = play.game
    size = game.together(images[:1])
    known: list[Tensor] = []
    with Progress("playing references", len(images)) as progress:
        for part in images.split(size):
            one = game.play(part)
            groups = groups_of(one.network, choose(one, layer, by), by, one.solved)
            known.append(relevance_of(one, groups).cpu())
            progress.advance(len(part))
        sums = torch.cat(known)
        if sums.shape[1] <= int(index.max()):
            raise InputError(f"the references have {sums.shape[1]} {by}s at {layer!r}; give images of the play's size.")
        strongest: dict[int, Strongest] = {}
        for group in index.unique().tolist():
            best = sums[:, group].topk(min(n, len(images)))
            x = images[best.indices]
            maps = game.play(x).through(layer, group, by).attribution()
            strongest[group] = Strongest(best.indices, x, best.values, maps)
    return strongest


_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")


def read_references(given: Any, play: Play) -> Tensor:
    """(N, …) images as the play's model takes them."""
    if len(play.network.inputs) != 1 or not isinstance(play.inputs.pack([play.x]), Tensor):
        raise InputError("references need a model that takes one tensor of images; leave them out.")
    if isinstance(given, (str, Path)):
        images = _folder(Path(given), play)
    elif isinstance(given, (list, tuple)):
        images = torch.stack(list(given)) if given and all(isinstance(g, Tensor) for g in given) else None
    else:
        images = getattr(given, "x", given)  # a batch of the zoo
    if not isinstance(images, Tensor):
        raise InputTypeError(
            f"references of type {type(given).__name__}: give a batch of images, a list of them, or a folder."
        )
    if images.ndim != play.x.ndim or not len(images):
        raise InputError(
            f"references of shape {tuple(images.shape)}: give a batch of images like {tuple(play.x.shape[1:])}."
        )
    return images.detach().to(play.x)


def _folder(path: Path, play: Play) -> Tensor:
    from backplay.models.loaded import loaded_from  # with libraries of pictures, which others need not have

    loaded = loaded_from(play.network.model)
    if loaded is None:
        raise InputError(
            f"nobody knows how pictures in {path} are made ready for this model; load it with backplay.models.load, "
            "or give a tensor."
        )
    if not path.is_dir():
        raise MissingFileError(f"{path} is no folder; give a folder of photographs.")
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES)
    if not files:
        raise MissingFileError(f"{path} holds no photographs; give a folder with JPEG, PNG, TIFF, WebP or BMP files.")
    return torch.stack([loaded.photograph(file) for file in files])
