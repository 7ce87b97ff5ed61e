"""Working memory of a Routing map against one gradient on ViT-B/16: peak resident size above the loaded model.

Each is measured in a process of its own. Weights prepared for the game are reported apart, since they serve every
later map too.  Usage: python benchmarks/memory.py [--json]
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import threading
import time

import torch

from backplay.interop.torchvision import ensure


def resident(trim: bool = False) -> int:
    if trim:  # what was freed before goes back, so that it does not hide what is taken now
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Peak:
    """Largest resident size while it is entered."""

    def __enter__(self) -> "Peak":
        self.bytes, self._running = resident(), True
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._running:
            self.bytes = max(self.bytes, resident())
            time.sleep(0.001)

    def __exit__(self, *args: object) -> None:
        self._running = False
        self._thread.join()


def measure(what: str) -> dict[str, float]:
    """Megabytes of one gradient or of one Routing map."""
    models = ensure().models
    torch.manual_seed(0)
    model = models.vit_b_16().eval().requires_grad_(False)
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)
    x, prepared = torch.randn(1, 3, 224, 224), 0
    with torch.no_grad():
        model(x)  # threads and library buffers are there before the counting starts
    loaded = resident(trim=True)
    if what == "gradient":
        with Peak() as peak:
            y = x.clone().requires_grad_()
            torch.autograd.grad(model(y)[0, 0], y)
    else:
        import backplay as bp

        game = bp.RoutingGame(model)
        network = game.network(x)
        loaded = resident(trim=True)
        with Peak() as peak:
            game.attribute(x, 0)
        prepared = network.weights().nbytes()
    parameters = sum(p.nbytes for p in model.parameters())
    found = {"peak": peak.bytes - loaded, "prepared": prepared, "parameters": parameters}
    return {name: size / 1e6 for name, size in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=["gradient", "routing"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    found = {
        what: json.loads(subprocess.check_output([sys.executable, __file__, "--one", what]).decode().splitlines()[-1])
        for what in ("gradient", "routing")
    }
    working = found["routing"]["peak"] - found["routing"]["prepared"]
    ratio = working / found["gradient"]["peak"]
    share = found["routing"]["prepared"] / found["routing"]["parameters"]
    if options.json:
        print(json.dumps({**found, "working": working, "ratio": ratio, "prepared_over_parameters": share}))
        return
    print(f"gradient     {found['gradient']['peak']:7.0f} MB above the loaded model")
    print(f"Routing map  {working:7.0f} MB, {ratio:.2f} times the gradient")
    print(f"prepared     {found['routing']['prepared']:7.0f} MB, {share:.2f} times the parameters")


if __name__ == "__main__":
    main()
