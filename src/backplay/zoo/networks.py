"""Three small networks for the zoo's pictures, in the styles of VGG, ResNet and ViT.

Each is a `Classifier`: `features` turns a picture into cells, `head` turns the cells into logits. The trained weights
come with the package, as safetensors files in the folder `trained`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from backplay.errors import ModelError
from backplay.zoo.scenes import SIZE
from backplay.zoo.shapes import CLASSES


class Classifier(nn.Module):
    """(B, 3, SIZE, SIZE) → (B, classes)."""

    def __init__(self, features: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.width = width  # of one cell
        self.features = features
        self.head = head
        self.classes = CLASSES

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def _average_head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, len(CLASSES)))


def vgg(normalised: bool = False) -> Classifier:
    """Convolutions, ReLUs and max pooling; `normalised` adds the batch norms that it is trained with (see `fold`)."""
    layers: list[nn.Module] = []
    inputs = 3
    for block in ((16,), (32,), (64, 64), (128, 128)):
        for outputs in block:
            norm = [nn.BatchNorm2d(outputs)] if normalised else []
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *norm, nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return Classifier(nn.Sequential(*layers), _average_head(inputs), inputs)


def fold(model: Classifier) -> Classifier:
    """A plain `vgg` that computes what the normalised `model` computes in eval mode."""
    layers = list(model.features.children())
    plain = vgg()
    for place, layer in zip(_convolutions(plain), _convolutions(model), strict=True):
        norm = layers[layers.index(layer) + 1]
        assert isinstance(norm, nn.BatchNorm2d)
        fused = fuse_conv_bn_eval(layer.eval(), norm.eval())
        place.load_state_dict(fused.state_dict())
    plain.head.load_state_dict(model.head.state_dict())
    return plain.eval()


def _convolutions(model: Classifier) -> list[nn.Conv2d]:
    return [layer for layer in model.features.children() if isinstance(layer, nn.Conv2d)]


class Residual(nn.Module):
    """Two convolutions with batch norm, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.relu2(inner + self.shortcut(x))


def resnet() -> Classifier:
    stem = [nn.Conv2d(3, 24, 5, 2, padding=2, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)]
    widths = ((24, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))
    return Classifier(nn.Sequential(*stem, *(Residual(*width) for width in widths)), _average_head(128), 128)


class Embedding(nn.Module):
    """Patches as tokens (B, 1 + patches, width): the class token first, positions added.

    A few convolutions come before the one that cuts patches of 16 × 16 pixels: with that one alone, a ViT learns
    outlines far too slowly (Xiao et al. 2021, "Early convolutions help transformers see better").
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        stem: list[nn.Module] = []
        for inputs, outputs, kernel, stride in ((3, 16, 5, 2), (16, 48, 3, 2), (48, 96, 3, 2), (96, 96, 3, 1)):
            convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
            stem += [convolution, nn.BatchNorm2d(outputs), nn.GELU()]
        self.stem = nn.Sequential(*stem)
        self.patches = nn.Conv2d(96, width, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(_waves(SIZE // 16, width))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(self.stem(x)).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.position


def _waves(side: int, width: int) -> Tensor:
    """(1, 1 + side², width) to start from: sines and cosines of both coordinates, so that neighbours are alike."""
    frequencies = math.pi / 2 ** torch.linspace(0, math.log2(2 * side), width // 4)
    phases = torch.arange(side)[:, None] * frequencies
    line = torch.cat([phases.sin(), phases.cos()], 1)  # (side, width / 2)
    plane = torch.cat([line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)], 2)
    return 0.5 * torch.cat([torch.zeros(1, width), plane.flatten(0, 1)])[None]


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ClassToken(nn.Module):
    """Logits from the first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, len(CLASSES))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(tokens[:, 0])


def vit() -> Classifier:
    width, heads, depth = 128, 4, 4
    blocks = [Block(width, heads) for _ in range(depth)]
    return Classifier(nn.Sequential(Embedding(width), *blocks, nn.LayerNorm(width)), ClassToken(width), width)


BUILDERS: dict[str, Callable[[], Classifier]] = {"vgg": vgg, "resnet": resnet, "vit": vit}


def build(name: str) -> Classifier:
    """The network `name` ("vgg", "resnet" or "vit") with weights drawn at random, in training mode."""
    check_name(name)
    return BUILDERS[name]()


def check_name(name: str) -> None:
    if not isinstance(name, str) or name not in BUILDERS:
        raise ModelError(f"network {name!r} is unknown; give one of {', '.join(map(repr, (*BUILDERS, 'text')))}.")
