"""Photographs from files of any kind to what a network takes (the `view` extra)."""

from __future__ import annotations

import math
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from backplay.errors import FileError, MissingFileError, MissingLibraryError, PhotographError

if TYPE_CHECKING:
    from PIL.Image import Image

# more than any camera takes; a small file can claim far more, to fill the memory of whoever decodes it
MEGAPIXELS = 100
# what is decoded by Pillow itself; EPS and its like would start other programs
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "DIB", "PPM", "JPEG2000", "TGA", "ICO", "PCX")
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read(path: str | Path) -> Image:
    """The photograph as an RGB picture, upright as its EXIF orientation says.

    Transparent parts are laid on white. 16-bit greyscale is scaled to 8 bits, CMYK converted without a colour profile;
    of several frames the first is taken. Larger pictures than 100 megapixels are refused before they are decoded.
    """
    path = Path(path)
    _check_file(path)
    with warnings.catch_warnings():
        # Pillow warns about large pictures, strange EXIF and the like; what matters here is refused below
        warnings.simplefilter("ignore")
        with _open(path) as image:
            _check_header(path, image)
            try:
                image.load()
                return _on_white(_upright(image), image.format)
            except PhotographError as error:
                raise PhotographError(f"{path}: {error}") from None
            except Exception as error:  # each decoder has its own: OSError, SyntaxError, struct.error, zlib.error, …
                raise PhotographError(
                    f"{path} is a broken or truncated {image.format} picture ({_first_line(error)}); "
                    "save or fetch it again."
                ) from error


def check_proportions(path: str | Path, image: Image, size: tuple[int, int]) -> None:
    """Refuse a picture so narrow that its other side, scaled to cover `size` (height, width), outgrows the limit."""
    scale = max(size[0] / image.height, size[1] / image.width)
    scaled = round(image.width * scale), round(image.height * scale)
    if math.prod(scaled) > MEGAPIXELS * 10**6:
        raise PhotographError(
            f"{path} is {image.width} × {image.height} pixels, which become {scaled[0]} × {scaled[1]} for a network "
            f"of {size[1]} × {size[0]}: more than {MEGAPIXELS} megapixels; cut the part out that matters."
        )


@dataclass(frozen=True)
class Preprocess:
    """Scale to cover `size` (height, width), crop the middle, colours in [0, 1] less `mean`, over `std`."""

    size: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __call__(self, image: Image) -> Tensor:
        """(3, H, W) float32."""
        from PIL.Image import Resampling

        height, width = self.size
        scale = max(height / image.height, width / image.width)
        scaled = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        left, top = (scaled[0] - width) // 2, (scaled[1] - height) // 2
        resized = image.convert("RGB").resize(scaled, Resampling.BILINEAR)
        pixels = np.asarray(resized.crop((left, top, left + width, top + height)), dtype=np.float32) / 255
        x = torch.from_numpy(pixels).permute(2, 0, 1)
        return ((x - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]).contiguous()


def pillow() -> Any:
    """`PIL.Image`, or how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingLibraryError("reading pictures needs Pillow: pip install 'backplay[view]'") from error
    return Image


def _check_file(path: Path) -> None:
    if not path.exists():
        raise MissingFileError(f"{path} does not exist; give the path of a picture.")
    if path.is_dir():
        raise FileError(f"{path} is a folder; give the pictures in it one by one, {path}/*.jpg in a shell.")
    if not path.is_file():
        raise FileError(f"{path} is no regular file; give the path of a picture.")
    if path.stat().st_size == 0:
        raise PhotographError(f"{path} is empty; save or fetch it again.")


def _open(path: Path) -> Image:
    """Read the header alone."""
    Image = pillow()
    try:
        return Image.open(path)
    except Image.DecompressionBombError:
        raise PhotographError(_too_large(path, "")) from None
    except PermissionError:
        raise FileError(f"{path} may not be read by you; change its permissions.") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise PhotographError(
            f"{path} is no picture that Pillow can read; give a JPEG, PNG, TIFF, WebP, GIF or BMP file."
        ) from error


def _check_header(path: Path, image: Image) -> None:
    if image.format not in FORMATS:
        raise PhotographError(f"{path} is of the format {image.format}; give a JPEG, PNG, TIFF, WebP, GIF or BMP file.")
    if math.prod(image.size) > MEGAPIXELS * 10**6:
        raise PhotographError(_too_large(path, f"{image.width} × {image.height} pixels, "))


def _too_large(path: Path, size: str) -> str:
    return f"{path} claims {size}more than {MEGAPIXELS} megapixels, and is not decoded; scale it down first."


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable EXIF says nothing about the picture, which is shown as it is stored
        return image.copy()


def _on_white(image: Image, container: str | None) -> Image:
    """RGB, from any mode; `container` is the file's format, which says how wide the samples of mode I are."""
    Image = pillow()
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and container in ("PNG", "PPM")):
        grey = np.asarray(image).astype(np.int64)
        clear = image.info.get("transparency")
        shown = np.rint(np.where(grey == clear, 65535, grey) / 257) if isinstance(clear, int) else np.rint(grey / 257)
        return Image.fromarray(shown.astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise PhotographError("32-bit samples have no agreed white; save the picture with 8 or 16 bits a channel.")
    if image.has_transparency_data:
        picture = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    try:
        return image.convert("RGB")
    except ValueError:
        raise PhotographError(f"colours of mode {image.mode} cannot be converted; save the picture as RGB.") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
