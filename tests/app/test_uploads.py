"""Uploads: what is kept, what is refused, and that no key leads anywhere else."""

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

import backplay as bp
from backplay.app import uploads
from backplay.app.uploads import Uploads


@pytest.fixture
def folder(tmp_path):
    return Uploads(tmp_path / "uploads", tmp_path)


@pytest.fixture
def arrived(tmp_path):
    """Write a picture that has just arrived; its path."""

    def write(name="cat.png", colour="red", size=(20, 10)):
        Image.new("RGB", size, colour).save(tmp_path / name, format="png")
        return tmp_path / name

    return write


def huge(width, height):
    """A PNG of few bytes that claims so many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_is_kept_by_its_content(folder, arrived):
    first, again, other = folder.keep(arrived()), folder.keep(arrived()), folder.keep(arrived(colour="blue"))
    assert first == again != other
    assert folder.find(first).name == "cat.png" and folder.find(first).is_relative_to(folder.folder)


def test_equal_pictures_of_other_names_are_apart(folder, arrived):
    """Nobody's file is renamed by a visitor who uploads the same picture."""
    mine, theirs = folder.keep(arrived("mine.png")), folder.keep(arrived("theirs.png"))
    assert [folder.find(key).name for key in (mine, theirs)] == ["mine.png", "theirs.png"]


def test_many_arrive_at_once(folder, arrived, monkeypatch):
    """The same and other pictures, while the oldest make room: no error, and no picture in parts."""
    monkeypatch.setattr(uploads, "MOST", 4)
    paths = [arrived(f"{k}.png", (k, 0, 0)) for k in range(6)]
    with ThreadPoolExecutor(12) as pool:
        keys = list(pool.map(folder.keep, [paths[k % 6] for k in range(240)]))
    assert len(set(keys)) == 6
    kept = [key for key in set(keys) if folder._home(key).exists()]
    assert kept and {home.name for home in folder.folder.iterdir()} == {folder._home(key).name for key in kept}
    for key in kept:
        assert folder.find(key).read_bytes() == paths[keys.index(key)].read_bytes()
    again = folder.keep(paths[0])
    assert folder.find(again).name == "0.png" and len(list(folder.folder.iterdir())) <= 4 + 1


@pytest.mark.parametrize("name", ["../../escape.png", "a b.png", ".hidden.png", "quote'\".png", "ça.png"])
def test_names_are_plain(folder, arrived, tmp_path, name):
    path = arrived("plain.png")
    odd = tmp_path / name.rpartition("/")[2]
    path.rename(odd)
    found = folder.find(folder.keep(odd))
    assert found.parent.parent == folder.folder and not found.name.startswith(".") and "'" not in found.name


@pytest.mark.parametrize(
    "key",
    [
        "upload:../../etc/passwd",
        "upload:..",
        "upload:/etc/passwd",
        "upload:0123456789abcdeF",
        "upload:0123456789abcdef/../x",
        "upload:0123456789abcdef\n",
        "upload:",
        "/etc/passwd",
        "example:0",
    ],
)
def test_no_key_leads_out(folder, key):
    with pytest.raises(bp.BackplayError, match="names no upload"):
        folder.find(key)


def test_only_what_arrived_is_kept(tmp_path, arrived):
    """A visitor cannot have a picture taken from elsewhere, by a link neither."""
    (tmp_path / "arriving").mkdir()
    folder = Uploads(tmp_path / "uploads", tmp_path / "arriving")
    outside = arrived("outside.png")
    (tmp_path / "arriving" / "link.png").symlink_to(outside)
    for path in (outside, tmp_path / "arriving" / ".." / "outside.png", tmp_path / "arriving" / "link.png"):
        with pytest.raises(bp.BackplayError, match="did not arrive"):
            folder.keep(path)


def test_what_is_gone_is_told(folder):
    with pytest.raises(bp.BackplayError, match="no longer here"):
        folder.find("upload:0123456789abcdef")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("notes.txt", b"no picture at all", "notes.txt is no picture"),
        ("cut.png", None, "cut.png is a broken or truncated PNG"),
        ("empty.jpg", b"", "empty.jpg is empty"),
        ("huge.png", huge(12_000, 9000), "huge.png claims 12000 × 9000 pixels, more than 100 megapixels"),
        ("wide.png", huge(300_000, 300_000), "wide.png claims"),
        ("fat.png", b"\0" * (20 * 2**20 + 1), "fat.png is larger than 20 MB"),
    ],
)
def test_bad_uploads_are_one_line(folder, arrived, tmp_path, name, content, words):
    if content is None:
        content = arrived("whole.png", size=(200, 200)).read_bytes()[:200]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(bp.BackplayError, match=words) as told:
        folder.keep(tmp_path / name)
    assert str(tmp_path) not in str(told.value) and "\n" not in str(told.value)
    assert not list(folder.folder.iterdir())


def test_the_oldest_makes_room(folder, arrived, monkeypatch):
    monkeypatch.setattr(uploads, "MOST", 3)
    keys = [folder.keep(arrived(colour=(k, 0, 0))) for k in range(5)]
    assert [key for key in keys if folder._home(key).exists()] == keys[-3:]
