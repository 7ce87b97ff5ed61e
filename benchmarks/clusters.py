"""Do distances between walks tell networks that look at tiles from those that look at objects, image by image?

    python benchmarks/clusters.py [--networks vgg resnet vit] [--images 10] [--triples 12]

The zoo has two networks of each kind: one learned from objects, one from pictures whose tile in the corner gives the
label away. Two questions are put to them, in both games, by `H` and by `H` of the walks that arrive.

Groups: the same pictures are played on both networks for one class, and all plays are cut into two groups (medoids).
How many plays are in the group of their network? The control is the object network beside a copy whose channels change
places: it is the same function, so what tells these two apart is not what a network looks at.

Triples: three pictures on one network, explained for one class: A shows its object and its tile, B is A with the tile
of another class, C shows another object with A's tile in the same corner. Is A nearer to B, which shows the same
object, or to C, which shows the same tile? And which network's walk does the exchange of the tile move more?
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import backplay as bp
from backplay import zoo

GAMES = {"Stopping": (bp.StoppingGame, {}), "Routing": (bp.RoutingGame, {"epsilon": 0.0})}
MEASURES = {"distance": "H", "surviving": "H_surv"}
POOL = 200  # pictures that triples are looked for in


def grouped(plays: Sequence[bp.Play], others: Sequence[bp.Play], measure: str) -> int:
    """How many plays of two networks are in the group of theirs."""
    labels = bp.hellinger_matrix([*plays, *others]).medoids(2, surviving=measure == "surviving").labels
    first = torch.arange(len(labels)) < len(plays)
    right = int(((labels == 0) == first).sum())
    return max(right, len(labels) - right)


def groups(name: str, images: int) -> None:
    batch = zoo.images(images, spurious=True)
    objects, tiles = zoo.load(name), zoo.load(name, spurious=True)
    renamed = bp.transforms.permute_neurons(objects, batch.x[:1], seed=1)
    for game, (kind, options) in GAMES.items():
        plays = [
            [kind(net, **options).play(x[None], 0).release() for x in batch.x] for net in (objects, tiles, renamed)
        ]
        for measure, symbol in MEASURES.items():
            found = [grouped(plays[0], other, measure) for other in plays[1:]]
            print(
                f"{name:7} {game:9} {symbol:7} objects against tiles {found[0]}/{2 * images}, "
                f"against a renamed copy {found[1]}/{2 * images}",
                flush=True,
            )


def corner(cue: Tensor) -> tuple[int, int]:
    """In which corner a tile lies."""
    y, x = cue.nonzero()[0].tolist()
    return 2 * y // len(cue), 2 * x // len(cue)


def triples(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures A, B and C, and the class that all three are explained for."""
    own, wrong = zoo.images(POOL, spurious=True), zoo.images(POOL, spurious="wrong")
    corners = [corner(c) for c in own.cue]
    found: list[tuple[int, int]] = []
    for i in range(POOL):
        same = [
            j
            for j in range(POOL)
            if corners[j] == corners[i] and wrong.cue_class[j] == own.target[i] and j not in [k for _, k in found]
        ]
        if same:
            found.append((i, same[0]))
        if len(found) == count:
            break
    first, second = (torch.tensor(k) for k in zip(*found, strict=True))
    return own.x[first], wrong.x[first], wrong.x[second], own.target[first]


def nearer(name: str, count: int) -> None:
    a, b, c, target = triples(count)
    for game, (kind, options) in GAMES.items():
        moved: dict[tuple[bool, str], Tensor] = {}
        for spurious in (False, True):
            net: nn.Module = zoo.load(name, spurious)
            played = [kind(net, **options).play(x, target) for x in (a, b, c)]
            found = [bp.hellinger(played[0], other) for other in played[1:]]
            for measure, symbol in MEASURES.items():
                to_object, to_tile = (getattr(h, measure) for h in found)
                moved[spurious, measure] = to_object
                print(
                    f"{name:7} looks at {'tiles  ' if spurious else 'objects'} {game:9} {symbol:7} "
                    f"same object {float(to_object.mean()):.3f}, same tile {float(to_tile.mean()):.3f}, "
                    f"nearer to the object {int((to_object < to_tile).sum())}/{count}",
                    flush=True,
                )
        for measure, symbol in MEASURES.items():
            more = int((moved[True, measure] > moved[False, measure]).sum())
            print(f"{name:7} {game:9} {symbol:7} another tile moves the tile network's walk more: {more}/{count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["vgg", "resnet", "vit"])
    parser.add_argument("--images", type=int, default=10, help="of the groups; 0 leaves them out")
    parser.add_argument("--triples", type=int, default=12, help="0 leaves them out")
    options = parser.parse_args()
    for name in options.networks:
        if options.triples:
            nearer(name, options.triples)
        if options.images:
            groups(name, options.images)


if __name__ == "__main__":
    main()
