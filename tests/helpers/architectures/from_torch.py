"""What people build of torch and torchvision themselves."""

import torch
from torch import nn

from architectures.architecture import CLASSES, F64, Architecture, images


class SequenceFirst(nn.Module):
    """torch's own encoder on sequences whose first axis is the position."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.body(x.transpose(0, 1)).mean(0))


class Ensemble(nn.Module):
    """Three networks, their logits averaged."""

    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(196, CLASSES))
            for _ in range(3)
        )

    def forward(self, x):
        return torch.stack([member(x) for member in self.members]).mean(0)


def segmentation(kind):
    """A torchvision segmentation network on a tiny backbone; its output has a class for every pixel."""

    def build():
        from torchvision.models import segmentation as nets

        backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        low, high = nn.Sequential(backbone), nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU())

        class Stages(nn.Module):
            def __init__(self):
                super().__init__()
                self.low, self.high = low, high

            def forward(self, x):
                below = self.low(x)
                return {"low": below, "high": self.high(below), "out": self.high(below)}

        if kind == "fcn":
            return Segmented(nets.FCN(Stages(), nets.fcn.FCNHead(16, CLASSES)))
        if kind == "lraspp":
            return Segmented(nets.LRASPP(Stages(), 8, 16, CLASSES, 8))
        head = nets.deeplabv3.DeepLabHead(16, CLASSES, (2, 3)) if kind == "deeplab" else None
        return Segmented(nets.DeepLabV3(Stages(), head))

    return build


class Segmented(nn.Module):
    """The pixels' logits alone."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)["out"]


TORCH = {
    "sequence first": Architecture(SequenceFirst, lambda batch: torch.randn(batch, 6, 16, dtype=F64)),
    "ensemble": Architecture(Ensemble, images(16)),
    "fcn": Architecture(segmentation("fcn"), images(16), target=(1, 3, 4)),
    "deeplab": Architecture(segmentation("deeplab"), images(16), target=(1, 3, 4)),
    "lraspp": Architecture(segmentation("lraspp"), images(16), target=(1, 3, 4)),
}
