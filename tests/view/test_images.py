"""Images are shown in their own colours, whatever they were made into."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from backplay import models, zoo
from backplay.photographs import IMAGENET_MEAN, IMAGENET_STD
from backplay.view.images import looks_of, planes, shown_image, shown_images


def normalised(colours, mean, std):
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
    return (colours - mean) / std


@pytest.fixture
def colours():
    found = torch.rand(2, 3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found[0, 0, 0, 0], found[0, 1, 0, 0] = 0.0, 1.0
    return found


def same(shown, colours):
    return all(np.allclose(s, c.movedim(0, -1), atol=1e-12) for s, c in zip(shown, colours, strict=True))


def test_zoo_knows_its_colours(batch, model):
    shown = shown_images(batch.x, looks_of(model))
    assert same(shown, zoo.picture(batch.x).double())
    assert looks_of(model).class_name(int(batch.target[1])) == zoo.CLASSES[int(batch.target[1])]


def test_a_network_that_plays_knows_its_colours(play):
    assert looks_of(play.network) == looks_of(play.network.model)


def test_loaded_models_know_theirs(colours):
    loaded = models.load("zoo:vgg", weights="random")
    assert loaded.colours == ((0.5,) * 3, (0.25,) * 3)
    assert looks_of(loaded) == looks_of(loaded.model)  # the module alone remembers
    assert looks_of(loaded.model).classes == tuple(zoo.CLASSES)
    pytest.importorskip("torchvision")
    loaded = models.load("torchvision:resnet18", weights="random")
    assert same(shown_images(normalised(colours, IMAGENET_MEAN, IMAGENET_STD), looks_of(loaded.model)), colours)


def test_timm_knows_its_colours(colours):
    timm = pytest.importorskip("timm")
    net = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    assert looks_of(net).mean == (0.5, 0.5, 0.5)
    loaded = models.load("timm:vit_tiny_patch16_224", weights="random")
    assert loaded.colours == ((0.5,) * 3, (0.5,) * 3)


def test_given_mean_and_std_come_first(colours, model):
    x = normalised(colours, (0.1, 0.2, 0.3), (2.0, 3.0, 4.0))
    assert same(shown_images(x, looks_of(model, (0.1, 0.2, 0.3), (2.0, 3.0, 4.0))), colours)


def test_colours_are_recognised(colours):
    assert same(shown_images(colours, looks_of()), colours)
    bytes_ = (colours * 255).round().to(torch.uint8)
    assert same(shown_images(bytes_, looks_of()), bytes_.double() / 255)
    assert same(shown_images(bytes_.double(), looks_of()), bytes_.double() / 255)
    assert same(shown_images(normalised(colours, (0.5,) * 3, (0.5,) * 3), looks_of()), colours)
    assert same(shown_images(normalised(colours, IMAGENET_MEAN, IMAGENET_STD), looks_of()), colours)


def test_numbers_of_unknown_origin_are_stretched():
    x = torch.linspace(-50, 150, 3 * 4 * 5, dtype=torch.float64).view(3, 4, 5)
    shown = shown_images(x, looks_of())[0]
    assert shown.min() == 0 and shown.max() == 1 and shown.shape == (4, 5, 3)


def test_layouts(colours):
    last = colours[0].movedim(0, -1).numpy()
    assert np.allclose(shown_image(last, looks_of(), 0), last)
    assert shown_image(colours[0, 0], looks_of(), 0).shape == (8, 6)
    assert shown_image(colours[:, :1], looks_of(), 1).shape == (8, 6)
    pil = pytest.importorskip("PIL.Image")
    assert shown_image(pil.fromarray((last * 255).astype(np.uint8)), looks_of(), 0).shape == (8, 6, 3)


def test_maps_are_planes():
    four = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    assert np.allclose(np.stack(planes(four)), four.sum(1))
    assert len(planes(four[:, 0])) == 2  # (B, H, W)
    assert len(planes(four[0])) == 1 and np.allclose(planes(four[0])[0], four[0].sum(0))  # (C, H, W)
    assert len(planes(torch.zeros(3, 4, 5), 3)) == 3  # of three images
    assert planes(four[0, 0])[0].shape == (4, 5)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: looks_of(None, "red", 1), "mean='red'"),
        (lambda: looks_of(None, 0.5, 0), "positive"),
        (lambda: looks_of("vgg"), "model=str"),
        (lambda: shown_images(torch.zeros(2, 2, 2, 2, 2), looks_of()), r"\(B, C, H, W\)"),
        (lambda: shown_images([], looks_of()), "empty"),
        (lambda: shown_images("cat.jpg", looks_of()), "got str"),
        (lambda: shown_image(torch.zeros(2, 3, 4, 4), looks_of(), 2), "samples 0 to 1"),
        (lambda: planes(torch.zeros(4)), r"\(4,\)"),
        (lambda: planes(torch.zeros(0, 3, 4, 4)), "nothing to draw"),
        (lambda: planes({"a": 1}), "type dict"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(bp.BackplayError, match=says) as error:
        call()
    assert str(error.value).count("\n") <= 1


def test_module_without_a_word():
    assert looks_of(nn.Linear(2, 2)).mean is None
