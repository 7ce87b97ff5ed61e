"""Data sets: small files in exactly the published layouts, and what is said when they are not."""

import numpy as np
import pytest
import torch
from PIL import Image

from backplay.bench.data import DataError, open_data
from backplay.bench.data import voc as voc_layout
from backplay.bench.data.pictures import Lens
from backplay.models import Loaded
from backplay.photographs import IMAGENET_MEAN, IMAGENET_STD, Preprocess

SIZE = 14


def loaded(size=SIZE):
    preprocess = Preprocess((size, size))
    return Loaded(torch.nn.Identity(), preprocess, None, (size, size), "a test")


def photo(path, height=32, width=40, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else None)
    return path


def mask(path, labels, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(labels.astype(np.uint8))
    if palette:
        image = image.convert("P") if image.mode != "P" else image
        image = Image.fromarray(labels.astype(np.uint8), mode="L")
        image.putpalette([v for k in range(256) for v in (k, 255 - k, k)])
    image.save(path)


def halves(left, right, height=32, width=40):
    labels = np.full((height, width), right)
    labels[:, : width // 2] = left
    return labels


# ImageNet-S


@pytest.fixture
def imagenet_s(tmp_path):
    root = tmp_path / "ImageNetS50"
    for wnid, label in (("n01443537", 1), ("n02119022", 600)):
        for k in range(3):
            name = f"ILSVRC2012_val_0000{label:03d}{k}"
            photo(root / "validation" / wnid / f"{name}.JPEG", seed=k)
            numbers = halves(label, 0)
            numbers[:4] = 1000
            colours = np.stack([numbers % 256, numbers // 256, np.zeros_like(numbers)], -1)
            mask(root / "validation-segmentation" / wnid / f"{name}.png", colours)
    (tmp_path / "classes.txt").write_text("# a comment\nn01443537 1 1\nn02119022 600 277\n")
    return {"kind": "imagenet-s", "root": str(root), "classes": str(tmp_path / "classes.txt")}


def test_imagenet_s(imagenet_s):
    data = open_data(imagenet_s)
    assert data.size("validation") == 2 and data.size("test") == 4  # one image of each class is for validation
    first, second = (data.sample("validation", k, loaded()) for k in range(2))
    assert (first.target, second.target) == (1, 277)
    assert first.name == "n01443537/ILSVRC2012_val_00000010"
    assert first.x.shape == (3, SIZE, SIZE) and first.mask.shape == (SIZE, SIZE)
    # 600 = 88 + 2·256: the label is R + 256·G
    assert second.mask[SIZE // 2, 0] and not second.mask[SIZE // 2, -1]
    assert second.ignored[0].all() and not second.ignored[-1].any() and not second.mask[0].any()
    names = {data.sample(split, k, loaded()).name for split in ("validation", "test") for k in range(data.size(split))}
    assert len(names) == 6


def test_imagenet_s_with_another_validation_size(imagenet_s):
    data = open_data(imagenet_s | {"validation": 4, "test": 1})
    assert data.size("validation") == 4 and data.size("test") == 1


def test_imagenet_s_lacks_masks(imagenet_s, tmp_path):
    path = next((tmp_path / "ImageNetS50" / "validation-segmentation" / "n02119022").iterdir())
    path.unlink()
    with pytest.raises(DataError, match=r"\.png does not exist, but .*\.JPEG does"):
        open_data(imagenet_s)


def test_imagenet_s_lacks_a_class(imagenet_s, tmp_path):
    (tmp_path / "classes.txt").write_text("n00000000 3 3\n")
    with pytest.raises(DataError, match=r"n00000000 does not exist.*Found in .*validation: n01443537, n02119022"):
        open_data(imagenet_s)


@pytest.mark.parametrize(
    "text,said", [("n01443537 1\n", "expected a WordNet id, a mask label"), ("", "names no class")]
)
def test_imagenet_s_class_lists(imagenet_s, tmp_path, text, said):
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        open_data(imagenet_s)


def test_imagenet_s_masks_have_colours(imagenet_s, tmp_path):
    for path in (tmp_path / "ImageNetS50" / "validation-segmentation" / "n01443537").iterdir():
        mask(path, halves(1, 0))
    with pytest.raises(DataError, match="has colours"):
        open_data(imagenet_s).sample("validation", 0, loaded())


# Pascal VOC 2012


@pytest.fixture
def voc(tmp_path):
    """Twelve images: a cat and a person in each, a sliver of a dog in the first, nothing but a person in the last."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    stems = [f"2007_0000{k:02d}" for k in range(12)]
    for k, stem in enumerate(stems):
        photo(root / "JPEGImages" / f"{stem}.jpg", seed=k)
        labels = halves(8, 15) if k < 11 else halves(15, 0)
        labels[:, 19:21] = 255
        if k == 0:
            labels[0, :20] = labels[1, :20] = labels[2, :20] = 12
            labels[3, :3] = 12  # 63 pixels
        if k == 1:
            labels[:4, :16] = 13  # 64 pixels of a horse
        mask(root / "SegmentationClass" / f"{stem}.png", labels, palette=True)
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "trainval.txt").write_text("\n".join(stems) + "\n")
    return {"kind": "voc", "root": str(tmp_path)}


def entries_of(data):
    return [entry for part in data.parts.values() for entry in part]


def test_voc(voc):
    data = open_data(voc)
    found = {entry.name: entry.target for entry in entries_of(data)}
    assert found["2007_000001/horse"] == 339  # sorrel, as the paper says
    assert "2007_000000/dog" not in found  # 63 pixels
    assert not any("person" in name or name.startswith("2007_000011") for name in found)
    assert len(found) == 12 and set(found.values()) == {281, 339}
    images = {split: {e.image for e in part} for split, part in data.parts.items()}
    assert not images["validation"] & images["test"]
    assert len(images["validation"]) == round(11 / 6)


def test_voc_masks_are_of_one_class(voc):
    data = open_data(voc)
    split, index = next(
        (split, k) for split, part in data.parts.items() for k, e in enumerate(part) if e.name == "2007_000001/horse"
    )
    sample = data.sample(split, index, loaded())
    assert sample.mask.any() and not sample.mask[SIZE // 2 :].any() and sample.ignored is None


def test_voc_split_is_always_the_same(voc):
    """app:voc-cross-data-split."""
    first, second = open_data(voc), open_data(voc | {"root": voc["root"] + "/VOCdevkit/VOC2012"})
    assert [e.name for e in entries_of(first)] == [e.name for e in entries_of(second)]


def test_voc_targets():
    assert voc_layout.IMAGENET["tvmonitor"] == 664 and "person" not in voc_layout.IMAGENET
    assert len(voc_layout.IMAGENET) == 19 and set(voc_layout.IMAGENET) < set(voc_layout.CLASSES)


def test_voc_without_masks(voc, tmp_path):
    (tmp_path / "VOCdevkit" / "VOC2012" / "SegmentationClass" / "2007_000003.png").unlink()
    with pytest.raises(DataError, match=r"expected a mask for each name in trainval\.txt"):
        open_data(voc)


def test_voc_with_strange_labels(voc, tmp_path):
    mask(tmp_path / "VOCdevkit" / "VOC2012" / "SegmentationClass" / "2007_000003.png", halves(77, 0), palette=True)
    with pytest.raises(DataError, match="label 77; VOC has 0 to 20"):
        open_data(voc)


# Oxford-IIIT Pet


@pytest.fixture
def pets(tmp_path):
    listed = {"trainval.txt": ["Abyssinian_1 1 1 1", "beagle_2 5 2 2"], "test.txt": ["beagle_3 5 2 2", "pug_4 26 2 20"]}
    for name, lines in listed.items():
        path = tmp_path / "annotations" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#Image CLASS-ID SPECIES BREED ID\n" + "\n".join(lines) + "\n")
        for line in lines:
            stem = line.split()[0]
            photo(tmp_path / "images" / f"{stem}.jpg")
            trimap = halves(1, 2)
            trimap[:, 18:22] = 3
            mask(tmp_path / "annotations" / "trimaps" / f"{stem}.png", trimap)
    return {"kind": "pets", "root": str(tmp_path)}


def test_pets_by_breed(pets):
    data = open_data(pets)
    assert [data.sample("validation", k, loaded()).target for k in range(2)] == [0, 4]
    sample = data.sample("test", 0, loaded())
    assert sample.name == "beagle_3" and sample.mask[:, 0].all() and not sample.mask[:, -1].any()
    assert sample.ignored.any() and not (sample.mask & sample.ignored).any()


def test_pets_by_imagenet_class(pets):
    data = open_data(pets | {"targets": "imagenet"})
    assert data.size("validation") == 1  # the Abyssinian is no class of ImageNet
    assert [data.sample("test", k, loaded()).target for k in range(2)] == [162, 254]


def test_pets_with_a_strange_line(pets, tmp_path):
    (tmp_path / "annotations" / "test.txt").write_text("beagle_3 99 2 2\n")
    with pytest.raises(DataError, match="a class from 1 to 37"):
        open_data(pets)


def test_pets_with_a_strange_trimap(pets, tmp_path):
    mask(tmp_path / "annotations" / "trimaps" / "beagle_3.png", halves(1, 7))
    with pytest.raises(DataError, match=r"holds 1, 2 and 3, this one \[7\]"):
        open_data(pets).sample("test", 0, loaded())


# any folder


@pytest.fixture
def pairs(tmp_path):
    for k in range(12):
        photo(tmp_path / "images" / f"p{k}.jpg", seed=k)
        mask(tmp_path / "masks" / f"p{k}.png", halves(255, 0))
    rows = [f"p{k}.jpg,{k % 3}" for k in range(12)]
    (tmp_path / "labels.csv").write_text("image,target\n" + "\n".join(rows) + "\n")
    return {"kind": "folder", "root": str(tmp_path)}


def test_folder(pairs, tmp_path):
    data = open_data(pairs)
    assert data.size("validation") == 2 and data.size("test") == 10
    assert [entry.target for entry in data.parts["test"][:3]] == [0, 1, 2]  # classes in turn
    (tmp_path / "labels.csv").write_text("image,target,split\np1,4,test\np2,5,validation\n")
    data = open_data(pairs)
    assert data.sample("test", 0, loaded()).target == 4 and data.sample("validation", 0, loaded()).target == 5


@pytest.mark.parametrize(
    "text,said",
    [
        ("image,target\np99,1\n", "no picture named p99"),
        ("image,target\np1,cat\n", "the target 'cat'; expected a class number"),
        ("image\np1\n", "needs the columns image and target; found image"),
        ("image,target,split\np1,1,train\n", "into 'train'; expected validation or test"),
    ],
)
def test_folder_with_strange_labels(pairs, tmp_path, text, said):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        open_data(pairs)


def test_missing_folders(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist; expected the folder of"):
        open_data({"kind": "folder", "root": str(tmp_path / "nowhere")})
    with pytest.raises(DataError, match=r"images does not exist.*Found in .*: nothing"):
        open_data({"kind": "folder", "root": str(tmp_path)})


# pictures


def test_a_mask_of_another_size(pairs, tmp_path):
    for path in (tmp_path / "masks").iterdir():
        mask(path, halves(255, 0, 10, 10))
    with pytest.raises(DataError, match=r"10 × 10 pixels, its image 40 × 32"):
        open_data(pairs).sample("test", 0, loaded())


@pytest.mark.parametrize("content", [b"", b"no picture", b"\xff\xd8\xff\xe0broken"])
def test_a_broken_image(pairs, tmp_path, content):
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"p\d+\.jpg"):
        open_data(pairs).sample("test", 0, loaded())


def test_image_and_mask_go_the_same_way_as_torchvision_does(tmp_path):
    """Resize(256), CenterCrop(224) and normalisation, on a photograph that is not square."""
    transforms = pytest.importorskip("torchvision.transforms")
    from backplay.bench.data.entries import Entry

    path = photo(tmp_path / "a.png", 300, 457)
    labels = np.random.default_rng(1).integers(0, 3, (300, 457))
    mask(tmp_path / "m.png", labels)
    entry = Entry("a", path, tmp_path / "m.png", 0, lambda found: (found == 1, None))
    sample = Lens(loaded(224), 256).sample(entry)
    image = Image.open(path)
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    expected = transforms.Compose([*steps, transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])(image)
    assert torch.allclose(sample.x, expected, atol=1e-5)
    nearest = transforms.InterpolationMode.NEAREST
    cropped = transforms.Compose([transforms.Resize(256, nearest), transforms.CenterCrop(224)])(Image.open(entry.mask))
    assert np.array_equal(sample.mask, np.asarray(cropped) == 1)


def test_a_network_that_takes_more_than_is_left():
    with pytest.raises(DataError, match="less than the 14 pixels"):
        Lens(loaded(), 10)


def test_the_zoo_is_the_default():
    data = open_data({"kind": "zoo", "validation": 3})
    sample = data.sample("test", 5, loaded(96))
    assert data.size("validation") == 3 and data.size("test") == 500
    assert sample.x.shape == (3, 96, 96) and sample.mask.any()
    with pytest.raises(DataError, match="96 × 96, this network takes 14 × 14"):
        data.sample("test", 5, loaded())
