"""What the controls of the game cost, as multiples of the anchor's map measured in the same run.

    python benchmarks/modes.py [--model vgg16] [--size 224] [--repeat 5] [--draws 50]

Rounds are interleaved, so that a busy machine slows all of them alike; each figure is the median of its rounds. What is
prepared once from the weights (powers, squares) is made in the first call and stated apart. A sweep makes the powers of
each temperature but 1 anew in every round, as a play at a temperature does that was not the network's last: a sweep is
stated against that, and against a play with its powers at hand.
"""

import argparse
import copy
import itertools
from collections.abc import Callable

import torch
from rounds import medians, seconds
from torch import nn

import backplay as bp
from backplay.interop.torchvision import ensure

TAUS = [0.3, 0.5, 0.7, 1.0, 2.0, 5.0]
OTHERS = [0.4, 0.8, 1.5, 3.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg16", help="a classifier of torchvision, freshly initialised")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--draws", type=int, default=50, help="draws of the Reynolds average; 0 leaves it out")
    options = parser.parse_args()

    torch.manual_seed(0)
    model: nn.Module = ensure().models.get_model(options.model, weights=None).eval().requires_grad_(False)
    for parameter in model.parameters():  # a ViT's head is born as zeros, and plays nothing
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    x = torch.randn(1, 3, options.size, options.size)
    anchor = bp.RoutingGame(model)
    tempered, averse = anchor.replace(tau=0.7), anchor.replace(risk=-1.0, input_variance=1.0)
    other = bp.RoutingGame(copy.deepcopy(model))  # a network keeps the powers of one temperature at hand
    others = itertools.cycle([other.replace(tau=tau) for tau in OTHERS])
    calls: dict[str, Callable[[], object]] = {
        "anchor, map": lambda: anchor.attribute(x),
        "anchor, play": lambda: anchor.play(x),
        "tau=0.7, map": lambda: tempered.attribute(x),
        "tau=0.7, play": lambda: tempered.play(x),
        "another tau, play": lambda: next(others).play(x),
        "risk=-1, variance 1, map": lambda: averse.attribute(x),
        f"sweep of {len(TAUS)} tau": lambda: bp.sweep(anchor, x, tau=TAUS),
    }
    for name, call in calls.items():
        print(f"{name:28} first call {seconds(call):7.3f} s", flush=True)
    found = medians(calls, options.repeat)
    if options.draws:
        average = bp.Reynolds(anchor, n=options.draws, progress=False)
        found[f"Reynolds, {options.draws} draws"] = seconds(lambda: average.attribute(x))
    print(f"\n{options.model}, input {tuple(x.shape)}, {torch.get_num_threads()} threads")
    one, sweep = found["anchor, map"], found[f"sweep of {len(TAUS)} tau"]
    for name, median in found.items():
        print(f"{name:28} {median:7.3f} s  {median / one:6.2f} × anchor's map")
    print(f"tau=0.7: {found['tau=0.7, play'] / found['anchor, play']:.2f} × the anchor, play by play")
    for play, powers in (("another tau, play", "made"), ("tau=0.7, play", "at hand")):
        print(f"sweep: {sweep / found[play]:.2f} × one play with its powers {powers}, {len(TAUS)} plays in it")


if __name__ == "__main__":
    main()
