"""Class activation maps: formulas, layers, sizes."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp
from backplay.methods.maps import feature_maps, find_map, last_map
from backplay.network.attention import Attention
from closeness import array, assert_near
from nets import F64, TARGETS, build
from networks import photo
from oracles import rivals
from toys import picture, tiny_vit

CAMS = ("gradcam", "gradcam_pp", "layercam", "hirescam")
LAYERS = {"plain": "4", "residual": "block", "reused": "second"}


def observed(case, layer):
    """Activations and gradients at a module, by hooks on the model."""
    kept = {}

    def keep(module, args, output):
        output.retain_grad()
        kept["output"] = output

    handle = case.model.get_submodule(layer).register_forward_hook(keep)
    with torch.enable_grad():
        case.scores(case.x.clone().requires_grad_()).sum().backward()
    handle.remove()
    case.model.zero_grad()
    return kept["output"].detach(), kept["output"].grad


def enlarged(small, case):
    return functional.interpolate(small, case.x.shape[-2:], mode="bilinear", align_corners=False)


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("name, layer", LAYERS.items())
@pytest.mark.parametrize("method", CAMS)
def test_slow_formula(method, name, layer, rectify):
    """Each formula written out, on what hooks see; the ReLU at its end only if asked for."""
    case = build(name)
    slow = {
        "gradcam": lambda a, g: sum(g[k].mean() * a[k] for k in range(len(a))),
        "gradcam_pp": rivals.grad_cam_pp,
        "layercam": rivals.layer_cam,
        "hirescam": lambda a, g: (a * g).sum(0),
    }[method]
    small = torch.stack(
        [torch.from_numpy(slow(array(a), array(g))) for a, g in zip(*observed(case, layer), strict=True)]
    )
    assert (small < 0).any() or method != "gradcam"
    small = small.clamp(min=0) if rectify else small
    found = case.explain(method, layer=layer, rectify=rectify)
    assert found.shape == (3, 1, *case.x.shape[2:])
    assert_near(found, enlarged(small[:, None], case))


@pytest.mark.parametrize("name, layer", LAYERS.items())
def test_captum(name, layer):
    """captum's Grad-CAM and its gradient times activation, summed over channels, which is HiResCAM."""
    from captum.attr import LayerGradCam, LayerGradientXActivation

    case = build(name)
    module, targets = case.model.get_submodule(layer), list(TARGETS)
    expected = LayerGradCam(case.model, module).attribute(case.x, targets)
    assert_near(case.explain("gradcam", layer=layer), enlarged(expected, case).detach())
    expected = LayerGradientXActivation(case.model, module).attribute(case.x, targets).sum(1, keepdim=True)
    assert_near(case.explain("hirescam", layer=layer), enlarged(expected, case).detach())


def test_a_map_that_adds_up():
    """With a mean and a linear head HiResCAM and Grad-CAM are the class map of CAM: their mean is the logit."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3, bias=False),
    )
    model, x = model.to(F64).eval(), photo(2, 8)
    for method in ("gradcam", "hirescam"):
        found = bp.explain(model, x, 2, method=method)  # as large as the input: no enlargement
        expected = (model[:4](x) * model[6].weight[2].view(-1, 1, 1)).sum(1, keepdim=True) / 64
        assert_near(found, expected.detach())
        assert_near(found.flatten(1).sum(1), model(x)[:, 2].detach())


@pytest.mark.parametrize("name, layer", [("plain", "4"), ("residual", "relu"), ("reused", "maximum")])
def test_default_layer(name, layer):
    """The last feature map before pooling and flattening; a maximum of two maps is one, max pooling is not."""
    case = build(name)
    assert_near(case.explain("layercam"), case.explain("layercam", layer=layer))
    assert_near(case.explain("hirescam"), case.explain("hirescam", layer=layer))


class ChannelsLast(nn.Module):
    """Two convolutions, then a dense layer over the channels as the last dimension, as ConvNeXt has it."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.mix, self.norm, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.relu(self.deep(torch.relu(self.stem(x))))
        x = x + self.mix(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.head(self.norm(x.mean((2, 3))))


def test_channels_last():
    """(B, h, w, C) has four dimensions too and is no feature map."""
    model, x = ChannelsLast().to(F64).eval(), photo(2, 8)
    network = bp.capture(model, x)
    maps = [n.name for n in feature_maps(network)]
    assert maps[-1] == last_map(network).name == "add"
    assert not {"norm", "mix"} & set(maps)
    assert maps[0] == "input"
    for layer in ("norm#1", "mix"):
        with pytest.raises(ValueError, match=rf"layer='{layer}' has outputs \(-1, 8, 8, 6\).*'stem', .*'deep'"):
            bp.explain(network, x, 1, method="hirescam", layer=layer)


def test_attention_is_no_map():
    """(B, heads, tokens, width) has four dimensions too."""
    network = bp.capture(tiny_vit(), picture())
    (layer, *_) = [n.name for n in network.nodes if isinstance(n, Attention)]
    with pytest.raises(ValueError, match="no feature maps"):
        find_map(network, layer)


class TestRefusals:
    def test_no_feature_map(self):
        """A ViT has none, and a map of a single place shows nothing; both are refused before any work."""
        with pytest.raises(bp.BackplayError, match=r"feature maps, and this network has none; these do: .*gradient"):
            build("vit").explain("gradcam")
        points = nn.Sequential(nn.Conv2d(3, 4, 8), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(4, 2)).eval()
        with pytest.raises(RuntimeError, match="more than one place"):
            bp.explain(points, torch.randn(2, 3, 8, 8), method="hirescam")

    def test_layer(self):
        """A layer that is not there, or has no feature map, is named; those that have one are listed."""
        case = build("plain")
        with pytest.raises(bp.BackplayError, match=r"layer='7' has outputs \(-1, 16\), which are no feature maps.*'4'"):
            case.explain("gradcam", layer="7")
        with pytest.raises(ValueError, match="no node or module named 'features'"):
            case.explain("gradcam", layer="features")
        with pytest.raises(ValueError, match="rectify=1 is out of range"):
            case.explain("gradcam", rectify=1)
