"""What a distance between two calculations costs, as multiples of one Routing map measured in the same run.

    python benchmarks/distances.py [--model vgg16] [--size 224] [--repeat 5] [--walks 10000]

Two freshly initialised networks are compared on one input. The distance includes its three maps; the plays are made
beforehand, for whoever compares has them. Rounds are interleaved, each figure is the median of its rounds.
"""

import argparse

import torch
from rounds import medians, seconds
from torch import nn

import backplay as bp
from backplay.interop.torchvision import ensure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg16", help="a classifier of torchvision, freshly initialised")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--walks", type=int, default=10_000, help="walks to draw in each game; 0 leaves them out")
    options = parser.parse_args()

    def fresh(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return ensure().models.get_model(options.model, weights=None).eval().requires_grad_(False)

    x = torch.randn(1, 3, options.size, options.size)
    first, second = (bp.RoutingGame(fresh(seed)) for seed in (0, 1))
    plays = first.play(x, 0), second.play(x, 0)

    def distance() -> None:
        h = bp.hellinger(*plays)
        h.map(), h.map("fraction"), h.map(conditioned=True)

    found = medians({"one Routing map": lambda: first.attribute(x, 0), "distance and maps": distance}, options.repeat)
    print(f"{options.model}, input {tuple(x.shape)}, {torch.get_num_threads()} threads")
    for name, median in found.items():
        print(f"{name:28} {median:7.3f} s  {median / found['one Routing map']:6.2f} × one map", flush=True)
    if options.walks:
        for game in (bp.StoppingGame(first.network(x)), first):
            play = game.play(x, 0)
            taken = seconds(lambda play=play: play.sample(options.walks))
            print(f"{options.walks} walks, {type(game).__name__:14} {taken:7.3f} s")


if __name__ == "__main__":
    main()
