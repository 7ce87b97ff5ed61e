"""Maps of whole networks in log space, which take minutes: kept in files, since they depend on no line of backplay.

A file is read where the source of `logspace` and every bit of the weights and of the image are those it was made from,
else the map is made anew. `make references` writes the files again.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch

from networks import photo, twin
from oracles import logspace

KEPT = Path(__file__).parents[1] / "oracles" / "kept"
TEMPERATURES = [0.3, 0.5, 0.7, 1.0, 2.0, 5.0]
EPSILON, TARGET = 0.5, 1


def drawn(build, gain):
    """A float32 model whose weights are the same bits on every processor, where normal numbers and sums are not.

    Matrices have the variance `gain` / fan-in, which keeps signals at their size; biases and norms a little noise.
    """
    with torch.device("meta"):  # nothing is drawn twice
        model = build()
    model.to_empty(device="cpu")
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            deviation = math.sqrt(gain / parameter[0].numel()) if parameter.ndim >= 2 else 0.05
            parameter.uniform_(generator=generator).sub_(0.5).mul_(math.sqrt(12) * deviation)
        for norm in norms:
            norm.weight.add_(1)
    return model.eval()


def vgg16():
    """All of its weights on an image of 32 × 64: one or two values are averaged in each of 7 × 7 windows."""
    from torchvision.models import vgg16

    return drawn(lambda: vgg16(init_weights=False), 2.0), rounded(photo(1, 64)[..., :32, :])


def vit_b_16():
    """All of its weights on one patch and the class token: the reference takes every pair of features one by one."""
    from torchvision.models import vit_b_16

    return drawn(lambda: vit_b_16(image_size=16), 1.0), rounded(photo(1, 16))


def rounded(x):
    """Without the last digits, in which processors differ."""
    return (x * 1024).round().div(1024).float()


def made_from(model, x):
    """Hashes of the source that makes a map, and of what it is given."""
    given = hashlib.sha256(repr((TEMPERATURES, EPSILON, TARGET)).encode())
    for tensor in (*model.state_dict().values(), x):
        given.update(tensor.contiguous().numpy())
    return source(), given.hexdigest()


def source():
    return hashlib.sha256(Path(logspace.__file__).read_bytes()).hexdigest()


def make(model, x):
    """(T, 3, H, W), one map for each temperature."""
    return logspace.attribution(twin(model, torch.float64), x.double(), TARGET, TEMPERATURES, epsilon=EPSILON)


def reference(name, model, x):
    """The map that is kept under this name if it was made from the same, else a new one."""
    with np.load(KEPT / f"{name}.npz") as kept:
        if tuple(kept["made_from"]) == made_from(model, x):
            return torch.from_numpy(kept["maps"])
    return make(model, x)


def main():
    from backplay.interop.torchvision import ensure

    ensure()
    for build in (vgg16, vit_b_16):
        model, x = build()
        np.savez(KEPT / f"{build.__name__}.npz", maps=make(model, x).numpy(), made_from=made_from(model, x))


if __name__ == "__main__":
    main()
