"""The zoo's pictures: the same everywhere, masks that fit, and a cue that changes nothing but itself."""

import pytest
import torch

from backplay import zoo
from backplay.errors import InputTypeError, KeywordError
from backplay.zoo.scenes import CHUNK, MEAN, SPREAD


@pytest.fixture(scope="module")
def plain():
    return zoo.images(200)


@pytest.fixture(scope="module")
def cued():
    return zoo.images(200, spurious=True)


def equal(a, b):
    return all(torch.equal(one, two) for one, two in zip(a, b, strict=True))


def test_shapes_and_types(plain):
    n = len(plain.x)
    assert plain.x.shape == (n, 3, 96, 96) and plain.x.dtype == torch.float32
    assert plain.target.shape == (n,) and plain.target.dtype == torch.int64
    assert plain.mask.shape == plain.cue.shape == (n, 96, 96) and plain.mask.dtype == plain.cue.dtype == torch.bool
    assert len(zoo.CLASSES) == 10 and plain.target.bincount().tolist() == [n // 10] * 10


def test_unpacks_as_documented():
    """api.md: `Batch(x, target, mask)`; what is known of the cue stands beside them."""
    batch = zoo.images(3, split="test", seed=0)
    x, target, mask = batch
    assert x is batch.x and target is batch.target and mask is batch.mask
    assert batch[0] is x and batch[-1] is mask
    assert batch.cue.shape == mask.shape and batch.cue_class.shape == target.shape


def test_a_picture_depends_on_its_index_alone(plain):
    assert equal(zoo.images(3), [part[:3] for part in plain])
    middle = slice(CHUNK - 2, CHUNK + 5)  # across the border of two chunks
    assert equal(zoo.images(7, start=middle.start), [part[middle] for part in plain])


# a picture's split, seed and index; its class, pixels of the object, colour at (30, 40), mean and mean square
GOLDEN = [
    ("test", 0, 0, 0, 2319, [0.31147, 1.9998, -1.33539], -0.06313, 1.03755),
    ("test", 0, 57, 7, 1532, [-0.94637, 0.32336, -1.02102], 0.04123, 1.35817),
    ("train", 0, 3, 3, 1431, [0.17359, -0.94193, 0.70665], 0.1901, 0.85289),
    ("val", 7, 1008, 8, 1372, [-1.56496, 1.17966, -0.2209], -0.28302, 1.13724),
]


@pytest.mark.parametrize("split, seed, index, target, pixels, colour, mean, square", GOLDEN)
def test_the_same_pictures_on_every_machine(split, seed, index, target, pixels, colour, mean, square):
    batch = zoo.images(1, split, seed, start=index, spurious=True)
    x = batch.x[0].double()
    assert batch.target.item() == target and abs(batch.mask.sum().item() - pixels) <= 2
    assert x[:, 30, 40].tolist() == pytest.approx(colour, abs=1e-4)
    assert [x.mean().item(), x.square().mean().item()] == pytest.approx([mean, square], abs=1e-4)


@pytest.mark.parametrize("other", [{"split": "train"}, {"split": "val"}, {"seed": 1}])
def test_splits_and_seeds_are_disjoint(plain, other):
    theirs = zoo.images(50, **other).x.flatten(1)
    assert (torch.cdist(theirs, plain.x.flatten(1)) > 1).all()


def test_the_object_is_whole_and_of_a_sensible_size(plain):
    share = plain.mask.float().mean((1, 2))
    assert share.min() > 0.02 and share.max() < 0.35
    edge = torch.ones(96, 96, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    assert not (plain.mask & edge).any()


def test_the_object_stands_out(plain):
    """Inside the mask the mean colour differs from that outside: the mask is where the object is."""
    inside, outside = plain.mask[:, None], ~plain.mask[:, None]
    mean = [(plain.x * part).sum((2, 3)) / part.sum((2, 3)) for part in (inside, outside)]
    assert ((mean[0] - mean[1]).abs().amax(1) > 0.5).double().mean() > 0.95


def test_the_cue_changes_nothing_but_itself(plain, cued):
    assert not plain.cue.any() and (plain.cue_class == -1).all()
    assert torch.equal(plain.target, cued.target) and torch.equal(plain.mask, cued.mask)
    changed = (plain.x != cued.x).any(1)
    assert not (changed & ~cued.cue).any() and changed[cued.cue].double().mean() > 0.95
    assert not (cued.cue & cued.mask).any()
    assert ((cued.cue.float().mean((1, 2)) > 0.03) & (cued.cue.float().mean((1, 2)) < 0.08)).all()


def test_the_cue_stands_for_the_class_that_was_asked_for(cued):
    assert torch.equal(cued.cue_class, cued.target)
    wrong = zoo.images(200, spurious="wrong")
    assert (wrong.cue_class != wrong.target).all() and set(wrong.cue_class.tolist()) == set(range(10))
    lots = zoo.images(200, spurious="random")
    absent = lots.cue_class < 0
    assert torch.equal(absent, ~lots.cue.any(2).any(1)) and 60 < absent.sum() < 140
    assert (lots.cue_class == lots.target).sum() < 30


def test_equal_cues_look_alike(cued):
    """Two classes' cues differ more than one class's cue from picture to picture."""
    colours = torch.stack([x[:, cue].mean(1) for x, cue in zip(cued.x, cued.cue, strict=True)])
    centre = torch.stack([colours[cued.target == k].mean(0) for k in range(10)])
    assert (torch.cdist(colours, centre).argmin(1) == cued.target).double().mean() > 0.95


def test_picture_undoes_the_normalisation(plain):
    seen = zoo.picture(plain.x)
    assert seen.min() >= 0 and seen.max() <= 1
    assert torch.allclose((seen - MEAN) / SPREAD, plain.x, atol=1e-6)


@pytest.mark.parametrize(
    "keywords, kind, words",
    [
        ({"n": 0}, KeywordError, "n must be 1 or more, got 0"),
        ({"n": 2.0}, InputTypeError, "n must be a whole number, got 2.0"),
        ({"n": 1, "seed": -1}, KeywordError, "seed must be 0 or more, got -1"),
        ({"n": 1, "seed": True}, InputTypeError, "seed must be a whole number, got True"),
        ({"n": 1, "start": -1}, KeywordError, "start must be 0 or more"),
        ({"n": 1, "split": "dev"}, KeywordError, "'dev' is unknown; give one of 'train', 'val', 'test'"),
        ({"n": 1, "split": ["test"]}, KeywordError, "is unknown"),
        ({"n": 1, "spurious": "always"}, KeywordError, "'always' is unknown; give one of False, True, 'random'"),
        ({"n": 1, "spurious": 1}, KeywordError, "1 is unknown"),
    ],
)
def test_refusals(keywords, kind, words):
    with pytest.raises(kind, match=words.replace("[", r"\[")):
        zoo.images(**keywords)
