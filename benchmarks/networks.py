"""The networks of the suite by name, freshly initialised unless they come with the package; nothing is downloaded."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backplay.interop.torchvision import ensure

torchvision = ensure()  # before timm, transformers and zennit import it on their own

# What tables call them, and where they come from. Names without a source are torchvision's.
SOURCES = {
    "SqueezeNet": "squeezenet1_0",
    "VGG-16": "vgg16",
    "ResNet-18": "resnet18",
    "ResNet-34": "resnet34",
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "ResNet-152": "resnet152",
    "ViT-B/16": "vit_b_16",
    "DenseNet-121": "densenet121",
    "MobileNetV3": "mobilenet_v3_large",
    "EfficientNet-B0": "efficientnet_b0",
    "ConvNeXt-T": "convnext_tiny",
    "Swin-T": "swin_t",
    "GoogLeNet": "googlenet",
    "ViT-Ti/16": "timm:vit_tiny_patch16_224",
    "GhostNetV2": "timm:ghostnetv2_100",
    "HRNet-W18": "timm:hrnet_w18",
    "NASNet-A": "timm:nasnetalarge",
    "MViTv2-T": "timm:mvitv2_tiny",
    "zoo VGG": "zoo:vgg",
    "zoo ResNet": "zoo:resnet",
    "zoo ViT": "zoo:vit",
    "BERT": "bert:12x768",
    "tiny BERT": "bert:2x32",
    "tiny CNN": "tiny:cnn",
    "tiny MLP": "tiny:mlp",
}


@dataclass(frozen=True)
class Subject:
    """A network in eval mode and what it is asked about."""

    name: str
    model: nn.Module
    given: Any  # an image batch (B, 3, H, W), or a dict of forward keywords with embeddings (B, T, D)

    @property
    def x(self) -> Tensor:
        """The explained input."""
        return self.given["inputs_embeds"] if isinstance(self.given, dict) else self.given

    def logits(self, given: Any = None) -> Tensor:
        """What the network says of its input, or of another one of that kind."""
        given = self.given if given is None else given
        found: Any = self.model(**given) if isinstance(given, dict) else self.model(given)
        return found if isinstance(found, Tensor) else found.logits

    def gradient(self) -> Tensor:
        """Of the first class, by autograd: forward and backward."""
        x = self.x.detach().clone().requires_grad_()
        logits = self.logits({**self.given, "inputs_embeds": x} if isinstance(self.given, dict) else x)
        return torch.autograd.grad(logits[:, 0].sum(), x)[0]

    def of(self, batch: int) -> "Subject":
        """The same network on the first samples alone."""
        if isinstance(self.given, dict):
            return Subject(self.name, self.model, {k: v[:batch] for k, v in self.given.items()})
        return Subject(self.name, self.model, self.given[:batch])


def subject(name: str, batch: int = 1, side: int | None = None, tokens: int = 16, seed: int = 0) -> Subject:
    """A network of `SOURCES`; images have the given side, or the one that the network is made for."""
    torch.manual_seed(seed)
    source, _, kind = SOURCES[name].rpartition(":")
    if source == "bert":
        model, width = _bert(kind)
        words = {"inputs_embeds": torch.randn(batch, tokens, width), "attention_mask": torch.ones(batch, tokens).long()}
        return Subject(name, _ready(model), words)
    if source == "zoo":
        from backplay import zoo

        model, usual = zoo.load(kind), 96
    elif source == "timm":
        import timm

        model, usual = timm.create_model(kind, pretrained=False), 224
    elif source == "tiny":
        model, usual = _TINY[kind](), 8
    else:
        model, usual = _torchvision(kind), 224
    side = side or usual
    return Subject(name, _ready(model), torch.randn(batch, 3, side, side))


def _torchvision(kind: str) -> nn.Module:
    extra: dict[str, Any] = {"init_weights": True, "aux_logits": False} if kind == "googlenet" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of initialisations that take long
        return torchvision.models.get_model(kind, weights=None, **extra)


def _bert(kind: str) -> tuple[nn.Module, int]:
    """A classifier of sequences with so many layers of that width."""
    import transformers

    layers, width = map(int, kind.split("x"))
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=max(2, width // 64),
        intermediate_size=4 * width,
        max_position_embeddings=1024,
        vocab_size=100,  # embeddings are given: the table of words is not used
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config), width


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5)),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))


_TINY = {"cnn": _cnn, "mlp": _mlp}


def _ready(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():  # a ViT's head is born as zeros, and plays nothing
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model.eval().requires_grad_(False)
