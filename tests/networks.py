"""Networks and images for tests: statistics that are not degenerate, torchvision families by name."""

import copy

import torch
from torch import nn


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


def photo(batch, size, dtype=torch.float64):
    """Smooth random images: sums of waves, both signs, no two pixels alike."""
    generator = torch.Generator().manual_seed(7)
    grid = torch.linspace(0, 3, size, dtype=torch.float64)
    image = torch.zeros(batch, 3, size, size, dtype=torch.float64)
    for _ in range(6):
        fx, fy, phase, height = (
            torch.randn(batch, 3, 1, 1, generator=generator, dtype=torch.float64) for _ in range(4)
        )
        image += height * torch.sin(2 * fx * grid[None, None, None, :] + 2 * fy * grid[None, None, :, None] + phase)
    return (image + 0.1 * torch.randn(image.shape, generator=generator, dtype=torch.float64)).to(dtype)


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
