"""`backplay zoo images`: bundled pictures as files that the other commands explain."""

import json
import os

import pytest
import torch

from backplay import models, zoo
from commands import fails, run


def asked(capsys, *options):
    code, out, err = run(capsys, "zoo", "images", *options, "--json")
    assert code == 0 and err == ""
    return json.loads(out)


@pytest.mark.parametrize("spurious", [False, True])
def test_files_are_what_the_networks_take(capsys, tmp_path, spurious):
    """Read as `explain` reads them, they are the pictures of `zoo.images`, but for the 8 bits of a colour."""
    options = ["--spurious"] if spurious else []
    report = asked(capsys, "-n", 60, "--seed", 5, "--split", "val", *options, "-o", tmp_path)
    batch = zoo.images(60, "val", 5, spurious=spurious)
    loaded = models.load("zoo:vgg")
    _, std = loaded.colours
    assert [one["target"] for one in report["pictures"]] == batch.target.tolist()
    seen = torch.stack([loaded.photograph(one["image"]) for one in report["pictures"]])
    assert (seen - batch.x).abs().max() <= 0.5 / 255 / min(std) + 1e-5
    for k, one in enumerate(report["pictures"]):
        name = f"{one['class']}-{k}{'-tile' if spurious else ''}.png"
        assert os.path.basename(one["image"]) == name and one["class"] == zoo.CLASSES[one["target"]]
    assert len(os.listdir(tmp_path)) == 60


def test_explaining_the_files_finds_their_classes(capsys, tmp_path):
    pictures = asked(capsys, "-n", 20, "-o", tmp_path / "pictures")["pictures"]
    options = ("--model", "zoo:vgg", "--method", "gradient", "-o", tmp_path / "maps", "--json")
    code, out, _ = run(capsys, "explain", tmp_path / "pictures", *options)
    found = {one["image"]: one["predicted_class"] for one in json.loads(out)["photographs"]}
    assert code == 0 and len(found) == 20
    assert sum(found[one["image"]] == one["class"] for one in pictures) >= 18


def test_nothing_is_written_over(capsys, tmp_path):
    """The same call again writes nothing; a name that something else has gets a number."""
    (tmp_path / "ball-0.png").write_bytes(b"somebody's")
    code, out, err = run(capsys, "zoo", "images", "-o", tmp_path)
    names = ["ball-0-2.png", "ring-1.png", "triangle-2.png"]
    assert code == 0 and err == "" and out.splitlines() == [str(tmp_path / name) for name in names]
    kept = {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}
    assert asked(capsys, "-o", tmp_path)["pictures"][0]["image"] == str(tmp_path / "ball-0-2.png")
    assert {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)} == kept
    asked(capsys, "-n", 1, "--seed", 1, "-o", tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        "ball-0-2.png",
        "ball-0-3.png",
        "ball-0.png",
        "ring-1.png",
        "triangle-2.png",
    ]
    assert (tmp_path / "ball-0.png").read_bytes() == b"somebody's"


def test_bad_input_is_one_line(capsys, tmp_path):
    def refuses(*options, word):
        fails(capsys, "zoo", "images", *options, "-o", tmp_path / "new", words=(word,))
        assert not (tmp_path / "new").exists()

    refuses("-n", 0, word="n must be 1 or more")
    refuses("-n", "many", word="-n")
    refuses("--seed", -1, word="seed must be 0 or more")
    refuses("--split", "tests", word="'train', 'val', 'test'")
    fails(capsys, "zoo", "images", words=("--out",))
    (tmp_path / "file").write_text("")
    fails(capsys, "zoo", "images", "-o", tmp_path / "file", words=("is a file",), code=1)
