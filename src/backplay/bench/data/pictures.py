"""From the files of a sample to what a network takes: image and mask go through the same resize and crop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from backplay import photographs
from backplay.bench.data.entries import DataError, Entry
from backplay.bench.metrics import Sample
from backplay.errors import BackplayError, first_line
from backplay.models import Loaded

if TYPE_CHECKING:
    from PIL.Image import Image

MARGIN = 256 / 224  # what the shorter side is resized to, over the side of the crop


class Lens:
    """Resize so that the shorter side is `resize`, crop the middle, colours as the network was trained to see them.

    The network's own preprocessing resizes in its own way, and a mask must go the same way as its image: only what it
    does to colours is taken from it, read off a black and a white picture.
    """

    def __init__(self, loaded: Loaded, resize: int | None = None) -> None:
        self.size = loaded.size
        self.resize = resize if resize is not None else round(min(self.size) * MARGIN)
        if self.resize < max(self.size):
            raise DataError(f"resize is {self.resize}, less than the {max(self.size)} pixels that the network takes.")
        Image = photographs.pillow()
        side = (self.size[1], self.size[0])
        self.black, self.white = (
            loaded.preprocess(Image.new("RGB", side, colour))[:, :1, :1] for colour in ("black", "white")
        )

    def sample(self, entry: Entry) -> Sample:
        """The sample behind an entry."""
        image = _open(entry.image).convert("RGB")
        picture = _open(entry.mask)
        if picture.size != image.size:
            raise DataError(
                f"{entry.mask} is {picture.width} × {picture.height} pixels, its image {image.width} × {image.height}; "
                "a mask has the size of its image."
            )
        pixels = torch.from_numpy(np.asarray(self._cropped(image, "BILINEAR"), dtype=np.float32) / 255).permute(2, 0, 1)
        labels = np.asarray(self._cropped(picture, "NEAREST"))
        mask, ignored = entry.read(labels)
        x = self.black + (self.white - self.black) * pixels
        return Sample(entry.name, x.contiguous(), entry.target, mask, ignored)

    def _cropped(self, image: Image, how: str) -> Image:
        """Resize and CenterCrop as torchvision rounds them."""
        from PIL.Image import Resampling

        short = min(image.size)
        scaled = tuple(self.resize if side == short else int(self.resize * side / short) for side in image.size)
        resized: Any = image.resize((scaled[0], scaled[1]), Resampling[how])
        height, width = self.size
        left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
        return resized.crop((left, top, left + width, top + height))


def labels_of(path: Path) -> NDArray[np.integer]:
    """The labels of a mask at its own size."""
    return np.asarray(_open(path))


def _open(path: Path) -> Image:
    """A picture as it is stored, palettes as their numbers; not turned upright, for its mask is not."""
    try:
        photographs._check_file(path)
        image = photographs._open(path)
        photographs._check_header(path, image)
        image.load()
        return image
    except BackplayError as error:
        raise DataError(str(error)) from error
    except Exception as error:  # each decoder has its own
        raise DataError(f"{path} is broken or truncated ({first_line(error)}); fetch it again.") from error
