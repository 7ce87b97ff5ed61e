"""Concepts (S26c): channels by the relevance that passes through them, their maps, and reference images."""

import pytest
import torch

import backplay as bp
from backplay import models, zoo
from closeness import assert_near
from legible import assert_legible
from mixed import GAMES
from sampled import Picture
from toys import picture, tiny_vit


@pytest.mark.parametrize("game, options", [*GAMES, (bp.StoppingGame, {"multiply_by_input": True})])
def test_ranks_and_maps(game, options):
    """Each sample's own channels, by the size of what stands there; maps are those of the sub-plays."""
    torch.manual_seed(4)
    play = game(Picture().double().eval(), **options).play(torch.randn(2, 3, 8, 8, dtype=torch.float64), [1, 2])
    found = bp.concepts(play, "third", k=3)
    occupation = play.occupation("third")
    relevance = occupation.difference * occupation.difference_log_scale.exp().view(-1, 1, 1, 1)
    if isinstance(play.game, bp.RoutingGame):
        relevance = relevance * play.value.view(-1, 1, 1, 1)
    elif options:
        relevance = relevance * play.observed("third")
    sums = relevance.sum((2, 3))
    expected = sums.abs().sort(1, descending=True)
    assert torch.equal(found.index, expected.indices[:, :3])
    assert_near(found.relevance, sums.gather(1, found.index))
    assert_near(found.total, sums.sum(1))
    for rank in range(3):
        for sample in range(2):
            alone = play.through("third", int(found.index[sample, rank])).attribution()[sample]
            assert_near(found.maps[rank][sample], alone, scale=float(play.attribution().abs().max()))


def test_all_channels_add_up():
    play = bp.RoutingGame(tiny_vit(), epsilon=0.1).play(picture(), 1)
    for layer, by in (("blocks.0", "channel"), ("blocks.0", "token"), ("embed", "position")):
        found = bp.concepts(play, layer, k=99, by=by)
        assert_near(sum(found.maps), play.attribution(), what=layer)
    heads = bp.concepts(play, "blocks.1", by="head")
    assert heads.index.shape == (2, 2) and "heads" in repr(heads)
    neurons = bp.concepts(play, "blocks.1.fc1", k=4)
    assert neurons.index.shape == (2, 4) and (neurons.relevance.abs().diff(dim=1) <= 0).all()


def test_weights_as_targets():
    """Why one class rather than another: relevance is that of the weighted root."""
    torch.manual_seed(1)
    game = bp.RoutingGame(Picture().double().eval())
    x, weights = torch.randn(1, 3, 8, 8, dtype=torch.float64), torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    found = bp.concepts(game.play(x, weights), "third", k=4)
    parts = [bp.concepts(game.play(x, c), "third", k=4) for c in (0, 1)]
    sums = [torch.zeros(4).double().scatter(0, p.index[0], p.relevance[0]) for p in parts]
    assert_near(found.relevance[0], (sums[0] - sums[1])[found.index[0]])


@pytest.mark.slow
def test_references():
    """The strongest images are those whose own plays send most through the channel."""
    model, batch = zoo.load("vgg"), zoo.images(6, seed=3)
    layer = "features.11" if "features.11" in dict(model.named_modules()) else list(dict(model.named_modules()))[-3]
    game = bp.RoutingGame(model)
    play = game.play(batch.x[:1])
    found = bp.concepts(play, layer, k=2, references=batch, n=3)
    every = bp.concepts(game.play(batch.x), layer, k=10**6)
    sums = torch.zeros(every.index.shape, dtype=torch.float64).scatter(1, every.index, every.relevance)
    assert set(found.strongest) == set(found.index[0].tolist())
    for channel, best in found.strongest.items():
        order = sums[:, channel].sort(descending=True)
        assert best.index.tolist() == order.indices[:3].tolist()
        assert_near(best.relevance, order.values[:3], 1e-5)
        assert torch.equal(best.x, batch.x[best.index]) and best.maps.shape == best.x.shape
        alone = game.play(best.x).through(layer, channel).attribution()
        assert_near(best.maps, alone, 1e-5)
    figure = found.plot(width=6)
    assert sum(bool(a.images) for a in figure.axes) >= 8
    assert_legible(figure)


def test_folder(tmp_path):
    """Photographs from a folder, made ready as the model was told to have them."""
    loaded = models.load("zoo:vgg")
    from PIL import Image

    for k in range(3):
        Image.new("RGB", (96, 96), (80 * k, 40, 200 - 60 * k)).save(tmp_path / f"{k}.png")
    play = bp.RoutingGame(loaded.model).play(zoo.images(1).x)
    layer = [n for n, m in loaded.model.named_modules() if isinstance(m, torch.nn.Conv2d)][-1]
    found = bp.concepts(play, layer, k=1, references=tmp_path, n=2)
    (best,) = found.strongest.values()
    assert torch.equal(best.x[0], loaded.photograph(tmp_path / f"{int(best.index[0])}.png"))
    with pytest.raises(bp.BackplayError, match="is no folder"):
        bp.concepts(play, layer, references=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(bp.BackplayError, match="holds no photographs"):
        bp.concepts(play, layer, references=tmp_path / "empty")


@pytest.mark.slow
def test_picture():
    play = bp.RoutingGame(zoo.load("resnet")).play(zoo.images(2).x)
    layer = [n for n, m in play.network.model.named_modules() if isinstance(m, torch.nn.Conv2d)][-1]
    found = bp.concepts(play, layer, k=6)
    for width in (3.3, 9):
        assert_legible(found.plot(width=width))
    figure = found.plot(sample=1)
    words = [t.get_text() for t in figure.texts]
    assert any(f"channel {int(found.index[1, 0])}" in w for w in words)
    assert sum(bool(a.images) for a in figure.axes) >= 7
    assert found._repr_png_() and "Concepts(" in repr(found)


def test_inference_mode():
    """What callers have switched on or off around a call changes nothing."""
    torch.manual_seed(0)
    game, x = bp.RoutingGame(Picture().eval()), torch.randn(2, 3, 8, 8)

    def results():
        play = game.plays(x, targets=[0, 1])[1]
        sub = play.through("first", [1, 2]).through("second", torch.full((4, 1, 1), 0.5))
        graph = bp.circuit(play, ["first", "third"])
        found = bp.concepts(play, "third", k=2, references=x, n=1)
        return [sub.attribution(), sub.marginal("first"), sub.share, sub.sample(9).ends.double(), *found.maps], graph

    plain, graph = results()
    with torch.inference_mode():
        inside, same = results()
    assert same.to_json() == graph.to_json()
    for one, other in zip(plain, inside, strict=True):
        assert_near(other.clone(), one, 1e-6)


def test_refusals():
    torch.manual_seed(0)
    play = bp.RoutingGame(Picture().eval()).play(torch.randn(1, 3, 8, 8))
    for options, words in (
        ({"node": "fourth"}, "no node or module named 'fourth'"),
        ({"node": "third", "k": 0}, "k=0 is out of range"),
        ({"node": "third", "by": "neuron"}, "by='neuron' is out of range"),
        ({"node": "third", "references": 3}, "references of type int"),
        ({"node": "third", "references": torch.zeros(3, 8, 8)}, "references of shape"),
        ({"node": "third", "references": torch.zeros(0, 3, 8, 8)}, "references of shape"),
        ({"node": "third", "references": "somewhere"}, "nobody knows how pictures"),
        ({"node": "third", "references": torch.zeros(2, 3, 8, 8), "n": 0}, "n=0 is out of range"),
    ):
        with pytest.raises(bp.BackplayError, match=words) as error:
            bp.concepts(play, **options)
        assert len(str(error.value).splitlines()) <= 2
    with pytest.raises(bp.BackplayError, match="concepts takes a play"):
        bp.concepts(None, "third")
