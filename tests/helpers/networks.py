"""Networks and images for tests: statistics that are not degenerate, torchvision families by name."""

import copy
import math

import torch
from torch import nn

SIDE = 12  # of the images that `small` takes


def revive(model):
    """Re-initialise all-zero weight matrices: an all-zero head makes every map 0 and every ratio 0/0."""
    for parameter in model.parameters():
        if parameter.dim() >= 2 and not parameter.detach().any():
            nn.init.normal_(parameter, std=0.02)
    return model


def calibrate(model, x):
    """Random scales and shifts for batch norms, then the statistics of `x`, so that signals neither die nor explode."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    with torch.no_grad():
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
            norm.weight.copy_(0.5 + torch.rand_like(norm.weight))
            norm.bias.copy_(0.2 * torch.randn_like(norm.bias))
        model(x)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum
            norm.running_var.mul_(0.9 + 0.2 * torch.rand_like(norm.running_var))
            norm.running_var.clamp_(min=0.2 * float(norm.running_var.mean()))  # a dead channel is not blown up
    return model


def lively(model, size, dtype=torch.float64):
    """`model` in eval mode and `dtype`, revived and calibrated on images of this size."""
    model = revive(model).to(dtype).eval()
    return calibrate(model, photo(8, size, dtype))


def steady(model):
    """Weights scaled by their fan-in, so that signals keep their size: in a deep network with torchvision's, ε = 0.5
    outweighs every contribution, and at τ = 0.3 the map is too small for float32."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(math.sqrt(2 / module.weight[0].numel()) / module.weight.std())
    return model


def photo(batch, size, dtype=torch.float64):
    """Smooth random images, both signs, no two pixels alike; image k is the same in every batch."""
    return torch.stack([_waves(torch.Generator().manual_seed(7 + k), size) for k in range(batch)]).to(dtype)


def _waves(generator, size):
    """A sum of waves and a little noise, shape (3, size, size)."""
    options = {"generator": generator, "dtype": torch.float64}
    grid = torch.linspace(0, 3, size, dtype=torch.float64)
    image = 0.1 * torch.randn(3, size, size, **options)
    for _ in range(6):
        along, across, phase, height = (torch.randn(3, 1, 1, **options) for _ in range(4))
        image += height * torch.sin(2 * along * grid[None, None, :] + 2 * across * grid[None, :, None] + phase)
    return image


def twin(model, dtype):
    """A copy in another precision."""
    return copy.deepcopy(model).to(dtype)


def family(name, classes=10):
    """A torchvision CNN with random weights; VGG's huge hidden layers are made small, auxiliary heads are left out."""
    import torchvision.models as models

    options = {"weights": None, "num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": False, "transform_input": name == "googlenet"}
    model = getattr(models, name)(**options)
    if name.startswith("vgg"):
        model.classifier = nn.Sequential(
            nn.Linear(512 * 49, 32),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(32, 32),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(32, classes),
        )
    return model


def side(name):
    """A small image side that the family still accepts."""
    return 80 if name == "inception_v3" else 64 if name == "googlenet" else 32


class Small(nn.Module):
    """A little of everything: batch norm, in-place ReLU, a residual sum, dropout, pooling."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6 * 36, 5)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.block(x) + x)
        return self.head(self.drop(self.pool(x).flatten(1)))


def small():
    model = Small().double().eval()
    return calibrate(model, torch.randn(8, 3, SIDE, SIDE, dtype=torch.float64))


def without_biases(model):
    """zennit puts biases into the denominators; the paper's rule has none."""
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias.zero_()
    return model


def small_vgg(dtype=torch.float64):
    """VGG in small: convolutions, ReLUs, max pools and a classifier."""
    layers, channels = [], 3
    for width in (8, "pool", 12, 12, "pool", 16):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
    head = [nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10)]
    return without_biases(nn.Sequential(*layers, *head)).to(dtype).eval()


def mlp_layers(model):
    return [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in model.modules() if isinstance(m, nn.Linear)]
