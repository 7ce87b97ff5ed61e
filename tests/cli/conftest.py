"""Networks that a file of the user's builds, and a photograph."""

import numpy as np
import pytest
from PIL import Image

from commands import NETWORKS


@pytest.fixture
def networks(tmp_path):
    (tmp_path / "networks.py").write_text(NETWORKS)
    return tmp_path / "networks.py"


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "photo.png"
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three photographs, one of them further down, a broken one, and a file that is none."""
    photos = tmp_path / "photos"
    (photos / "below").mkdir(parents=True)
    for k, name in enumerate(("a.png", "b.jpg", "below/a.png")):
        noise = np.random.default_rng(k + 1).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(photos / name)
    (photos / "broken.jpg").write_bytes(b"no picture at all")
    (photos / "notes.txt").write_text("not for explaining")
    return photos
