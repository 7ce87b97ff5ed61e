"""VGG-16 against VGG-16, both random: the paper's row of tab:double-random-hellinger, and walks drawn at full size."""

import gc

import pytest
import torch
from torch import nn

import backplay as bp

pytestmark = pytest.mark.slow

ROUNDS = 5
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cat():
    """scikit-image's cat at 224×224 with ImageNet normalisation."""
    data = pytest.importorskip("skimage.data")
    image = torch.as_tensor(data.chelsea()).permute(2, 0, 1)[None].float() / 255
    image = nn.functional.interpolate(image, size=(256, 384), mode="bilinear", antialias=True)[..., 16:240, 80:304]
    return (image - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(SPREAD).view(3, 1, 1)


def fresh(seed):
    """Kaiming-normal weights, zero biases."""
    import torchvision.models as models

    torch.manual_seed(seed)
    with torch.device("meta"):  # nothing is drawn twice
        model = models.vgg16(weights=None, init_weights=False)
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return model.eval()


def one_round(network, k, x):
    """`H`, `H_surv`, `β(†)` of both games on two fresh copies."""
    copies = [network.on(fresh(2 * k + side)) for side in (0, 1)]
    found = []
    for game, options in ((bp.StoppingGame, {}), (bp.RoutingGame, {"epsilon": 0.0})):
        h = bp.hellinger(*(game(c, **options).play(x, k) for c in copies))
        found.append((float(h.distance), float(h.surviving), float(h.cemetery_overlap)))
    return found


@pytest.mark.longest
def test_figures():
    """Stopping: H = 0.939 ± 0.006 and a cemetery overlap near 0.117; Routing: H above 0.9999; both: H_surv too."""
    x = cat()
    network = bp.capture(fresh(0), x)
    found = []
    for k in range(ROUNDS):
        found.append(one_round(network, k, x))
        gc.collect()  # two copies of half a gigabyte each, and what was prepared from them
    stopping, routing = torch.tensor(found, dtype=torch.float64).mean(0)
    assert abs(stopping[0] - 0.939) <= 0.006
    assert stopping[1] > 0.9999 and 0.10 < stopping[2] < 0.13
    assert routing[0] > 0.9999 and routing[1] > 0.9999


@pytest.mark.parametrize("game, options", [(bp.StoppingGame, {}), (bp.RoutingGame, {"epsilon": 0.0})])
def test_ten_thousand_trajectories(game, options):
    """Visits agree with the marginals at every node (χ²)."""
    drawn = game(fresh(0), **options).play(cat(), 5).sample(10_000)
    p = [float(drawn.check(name)) for name in drawn.states]
    assert min(p) > 1e-4 and sum(p) / len(p) > 0.2
