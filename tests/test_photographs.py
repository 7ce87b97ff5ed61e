"""Files of every kind, written for real: what comes back is upright, RGB and on white, or one line."""

import os
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import backplay as bp
from backplay import photographs
from backplay.photographs import Preprocess, read

WHITE, RED, BLACK = (255, 255, 255), (255, 0, 0), (0, 0, 0)

# which side of the visible picture the first row and the first column of the stored one show (EXIF 2.3, tag 0x0112)
SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stored(visible, orientation):
    """The array that a camera held that way writes."""
    row, column = SIDES[orientation]
    rows = visible if row in ("top", "bottom") else visible.transpose(1, 0, 2)
    rows = rows[::-1] if row in ("bottom", "right") else rows
    return np.ascontiguousarray(rows[:, ::-1] if column in ("right", "bottom") else rows)


def quadrants():
    """(16, 24, 3): no turn and no mirror leaves it as it is."""
    visible = np.zeros((16, 24, 3), dtype=np.uint8)
    visible[:8, :12], visible[:8, 12:], visible[8:, :12], visible[8:, 12:] = RED, (0, 255, 0), (0, 0, 255), WHITE
    return visible


def pixels(path):
    image = read(path)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("suffix", ["png", "tiff", "jpg", "webp"])
@pytest.mark.parametrize("orientation", SIDES)
def test_orientation(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    exact = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    Image.fromarray(stored(quadrants(), orientation)).save(path, exif=exif, **exact)
    found = pixels(path).astype(int)
    assert found.shape == (16, 24, 3)
    assert abs(found - quadrants()).max() <= (4 if suffix == "jpg" else 0)


def test_unreadable_exif_leaves_the_picture_as_stored(tmp_path):
    Image.fromarray(quadrants()).save(tmp_path / "odd.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff", quality=100)
    assert pixels(tmp_path / "odd.jpg").shape == (16, 24, 3)


def halves(mode, left, right):
    image = Image.new(mode, (4, 2), left)
    image.paste(right, (2, 0, 4, 2))
    return image


@pytest.mark.parametrize(
    "mode, suffix, left, right, expected",
    [
        ("RGB", "png", RED, WHITE, (RED, WHITE)),
        ("RGBA", "png", (*RED, 255), (*RED, 0), (RED, WHITE)),
        ("RGBA", "png", (*RED, 51), (*BLACK, 102), ((255, 204, 204), (153, 153, 153))),
        ("RGBA", "tiff", (*RED, 255), (*RED, 0), (RED, WHITE)),
        ("L", "png", 0, 200, (BLACK, (200, 200, 200))),
        ("LA", "png", (40, 255), (40, 0), ((40, 40, 40), WHITE)),
        ("1", "png", 0, 1, (BLACK, WHITE)),
        ("1", "bmp", 0, 1, (BLACK, WHITE)),
        ("CMYK", "tiff", (0, 255, 255, 0), (0, 0, 0, 255), (RED, BLACK)),
        ("I;16", "png", 65535, 257 * 100, (WHITE, (100, 100, 100))),
        ("I;16", "tiff", 65535, 257 * 100, (WHITE, (100, 100, 100))),
        ("I", "pgm", 65535, 257 * 100, (WHITE, (100, 100, 100))),
    ],
)
def test_modes(tmp_path, mode, suffix, left, right, expected):
    path = tmp_path / f"halves.{suffix}"
    halves(mode, left, right).save(path)
    found = pixels(path)
    assert abs(found[:, :2].astype(int) - expected[0]).max() <= 1
    assert abs(found[:, 2:].astype(int) - expected[1]).max() <= 1


def test_cmyk_jpeg(tmp_path):
    halves("CMYK", (0, 255, 255, 0), (0, 0, 0, 255)).resize((32, 16)).save(tmp_path / "print.jpg", quality=100)
    found = pixels(tmp_path / "print.jpg").astype(int)
    assert abs(found[:, :12] - RED).max() < 12 and abs(found[:, -12:] - BLACK).max() < 12


@pytest.mark.parametrize("suffix", ["png", "gif"])
@pytest.mark.parametrize("transparent", [None, 1])
def test_palette(tmp_path, suffix, transparent):
    image = Image.new("P", (4, 2), 0)
    image.putpalette([*RED, *BLACK])
    image.paste(1, (2, 0, 4, 2))
    image.save(tmp_path / f"p.{suffix}", **({} if transparent is None else {"transparency": transparent}))
    found = pixels(tmp_path / f"p.{suffix}")
    assert (found[:, :2] == RED).all() and (found[:, 2:] == (BLACK if transparent is None else WHITE)).all()


def test_greyscale_with_one_transparent_grey(tmp_path):
    for mode, clear, other in (("L", 7, 100), ("I;16", 7, 25700)):
        halves(mode, clear, other).save(tmp_path / "grey.png", transparency=clear)
        found = pixels(tmp_path / "grey.png")
        assert (found[:, :2] == WHITE).all() and (found[:, 2:] == 100).all(), mode


@pytest.mark.parametrize("suffix", ["gif", "tiff", "png", "webp"])
def test_first_frame(tmp_path, suffix):
    first, second = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), (0, 0, 255))
    exact = {"lossless": True} if suffix == "webp" else {}
    first.save(tmp_path / f"film.{suffix}", save_all=True, append_images=[second], **exact)
    assert (pixels(tmp_path / f"film.{suffix}") == RED).all()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_no_agreed_white(tmp_path, mode):
    Image.new(mode, (4, 4), 3).save(tmp_path / "wide.tiff")
    refused(tmp_path / "wide.tiff", ValueError, "32-bit")


def refused(path, kind, *words):
    with pytest.raises(bp.BackplayError) as caught:
        read(path)
    message = str(caught.value)
    assert isinstance(caught.value, kind) and "\n" not in message
    assert all(word in message for word in (*words, str(path))), message


def photo(path, side=64):
    noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "gif", "bmp", "webp"])
def test_truncated(tmp_path, suffix):
    path = photo(tmp_path / f"cut.{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(path, ValueError)


def test_damaged_png(tmp_path):
    path = photo(tmp_path / "hit.png")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    refused(path, ValueError, "broken")


def test_no_pictures(tmp_path):
    (tmp_path / "empty.jpg").touch()
    refused(tmp_path / "empty.jpg", ValueError, "empty")
    (tmp_path / "letter.jpg").write_text("Dear reader, this is no picture.\n" * 20)
    refused(tmp_path / "letter.jpg", ValueError, "no picture")
    refused(tmp_path / "nowhere.jpg", FileNotFoundError, "does not exist")
    refused(tmp_path, OSError, "folder")
    os.mkfifo(tmp_path / "pipe.jpg")
    refused(tmp_path / "pipe.jpg", OSError, "regular file")


def test_postscript_is_not_interpreted(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "drawing.eps")
    refused(tmp_path / "drawing.eps", ValueError, "EPS")


def claims(path, width, height):
    """A small PNG whose header promises width × height pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


@pytest.mark.parametrize("side", [10_001, 60_000])
def test_bomb_is_not_decoded(tmp_path, side, monkeypatch):
    from PIL import PngImagePlugin

    def decoded(self):
        raise AssertionError("the pixels were decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", decoded)
    refused(claims(tmp_path / "bomb.png", side, side), ValueError, "megapixels")


def test_large_but_honest(tmp_path):
    path = tmp_path / "panorama.png"  # above the size at which Pillow itself warns, and below the limit
    Image.new("1", (9_700, 9_700), 1).save(path)
    assert photographs.MEGAPIXELS == 100
    assert read(path).size == (9_700, 9_700)


def test_preprocess_covers_and_crops_the_middle():
    wide = np.zeros((10, 40, 3), dtype=np.uint8)
    wide[:, 15:25] = (255, 51, 0)
    x = Preprocess((10, 10), (0.5, 0.1, 0.0), (0.5, 0.2, 1.0))(Image.fromarray(wide))
    assert x.dtype == torch.float32 and x.shape == (3, 10, 10)
    assert torch.allclose(x, torch.tensor([1.0, 0.5, 0.0])[:, None, None].expand(3, 10, 10), atol=1e-6)


@pytest.mark.parametrize("width, height", [(7, 500), (500, 7), (1, 1), (33, 32), (31, 64)])
def test_preprocess_fills_any_shape(width, height):
    x = Preprocess((32, 48), (0.0,) * 3, (1.0,) * 3)(Image.new("RGB", (width, height), (255, 0, 51)))
    assert x.shape == (3, 32, 48)
    assert torch.allclose(x, torch.tensor([1.0, 0.0, 0.2])[:, None, None].expand(3, 32, 48), atol=1e-6)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
def test_a_line_is_not_blown_up(tmp_path, size):
    """Scaled to cover 224 × 224 pixels it would have three billion."""
    path = tmp_path / "line.png"
    Image.new("L", size).save(path)
    with pytest.raises(ValueError, match="more than 100 megapixels") as caught:
        photographs.check_proportions(path, read(path), (224, 224))
    assert isinstance(caught.value, bp.BackplayError) and "line.png" in str(caught.value)
    photographs.check_proportions(path, Image.new("L", (1, 1000)), (224, 224))


def test_without_pillow(tmp_path, monkeypatch):
    photo(tmp_path / "photo.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'backplay\[view\]'") as caught:
        read(tmp_path / "photo.png")
    assert isinstance(caught.value, bp.BackplayError)
