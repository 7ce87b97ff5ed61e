"""How long each game takes, as a multiple of one gradient (forward and input gradient) measured in the same run.

    python benchmarks/speed.py [--model vgg16] [--size 224] [--batch 1] [--repeat 9]

Rounds are interleaved, so that a busy machine slows all of them alike; each figure is the median of its rounds.
"""

import argparse
from collections.abc import Callable

import torch
from rounds import medians, seconds
from torch import Tensor, nn

import backplay as bp
from backplay.interop.torchvision import ensure


def gradient(model: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    logits = model(x)
    chosen = logits.gather(1, logits.argmax(1, keepdim=True)).sum()
    return torch.autograd.grad(chosen, x)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg16", help="a classifier of torchvision, freshly initialised")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()

    torch.manual_seed(0)
    model: nn.Module = ensure().models.get_model(options.model, weights=None).eval().requires_grad_(False)
    x = torch.randn(options.batch, 3, options.size, options.size)
    stopping, routing = bp.StoppingGame(model), bp.RoutingGame(model)
    calls: dict[str, Callable[[], object]] = {
        "gradient (autograd)": lambda: gradient(model, x),
        "StoppingGame.attribute": lambda: stopping.attribute(x),
        "RoutingGame.attribute": lambda: routing.attribute(x),
    }
    for name, call in calls.items():  # the first call captures the network and prepares its weights
        print(f"{name:24} first call {seconds(call):7.3f} s", flush=True)
    found = medians(calls, options.repeat)
    print(f"\n{options.model}, input {tuple(x.shape)}, {torch.get_num_threads()} threads")
    one = found["gradient (autograd)"]
    for name, median in found.items():
        print(f"{name:24} {median:7.3f} s  {median / one:5.2f} × gradient")


if __name__ == "__main__":
    main()
