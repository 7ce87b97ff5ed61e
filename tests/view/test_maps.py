"""Heat-maps, grids, sweeps and players: the numbers that are drawn are those of the maps."""

import numpy as np
import pytest
import torch
from matplotlib.image import AxesImage

import backplay as bp
from backplay.view.colours import number, scale_of, share
from legible import assert_legible, images, texts


def close(drawn, expected):
    assert np.allclose(np.asarray(drawn), np.asarray(expected), rtol=1e-12, atol=1e-15)


def limits(figure):
    return [image.get_clim() for axes in figure.axes for image in axes.images]


def test_heatmap_draws_the_map_with_its_scale(play, batch, model):
    heat = play.attribution()
    figure = bp.view.heatmap(heat, batch.x, sample=1, model=model)
    image, drawn, *_ = images(figure)
    close(image, (batch.x[1].double() * 0.25 + 0.5).clamp(0, 1).movedim(0, -1))
    close(drawn, heat[1].double().sum(0))
    reach = float(np.quantile(heat[1].double().sum(0).abs().numpy(), 0.995))
    assert limits(figure)[1] == pytest.approx((-reach, reach))
    assert number(reach) in texts(figure) or f"±{number(reach)}" in texts(figure)
    close(images(bp.view.heatmap(play, sample=1))[0], drawn)


def test_over_its_image(play, batch, model):
    figure = bp.view.heatmap(play, batch.x, over=True, model=model)
    below, above, *_ = images(figure)
    assert below.ndim == 2
    close(above, play.attribution()[0].double().sum(0))
    alpha = figure.axes[0].images[1].get_alpha()
    assert alpha.shape == above.shape and alpha[np.asarray(above) == 0].max(initial=0) == 0


def test_a_small_map_covers_a_large_image():
    figure = bp.view.heatmap(torch.randn(4, 6), torch.rand(3, 40, 60), over=True)
    assert figure.axes[0].images[1].get_extent() == figure.axes[0].images[0].get_extent()


@pytest.mark.parametrize("size", [(2, 2), (7, 21), (300, 200), (1, 9)])
@pytest.mark.parametrize("width", [3.3, 10])
def test_any_size(size, width):
    figure = bp.view.heatmap(torch.randn(1, 3, *size), torch.rand(1, 3, *size), width=width, title="a long title " * 5)
    assert_legible(figure)
    panel = figure.axes[0].get_position()
    shape = panel.height * figure.get_figheight() / (panel.width * figure.get_figwidth())
    assert shape == pytest.approx(size[0] / size[1], rel=1e-6)  # pixels are square, no room is lost


@pytest.mark.slow
def test_grid(play, batch, model):
    maps = {"RG": play, "a method with a long name": torch.randn(3, 96, 96), "constant": torch.zeros(3, 1, 96, 96)}
    figure = bp.view.grid(batch.x, maps, batch.target, batch.mask, values=[1.5, -2.0, 3e-7], model=model)
    drawn = [i for i in images(figure) if i.ndim == 2]
    close(drawn[0], play.attribution()[0].double().sum(0))
    close(drawn[1], maps["a method with a long name"][0].double())
    said = "\n".join(texts(figure))
    for word in ("RG", "1.5", "−2", "3e−7", *(model.classes[k] for k in batch.target)):
        assert word in said
    assert_legible(figure)


def test_methods_share_scales_as_they_are_told(batch):
    a, b = torch.randn(3, 96, 96), 100 * torch.randn(3, 96, 96)
    a[1] *= 5
    own = {}
    for scale in ("method", "all", "map"):
        figure = bp.view.grid(batch.x, {"a": a, "b": b}, scale=scale)
        own[scale] = [
            image.get_clim()[1] for axes in figure.axes for image in axes.images if image.get_array().ndim == 2
        ]
        assert_legible(figure)
    # row by row: a, b, a, b, a, b
    assert own["method"][0] == own["method"][2] == own["method"][4] != own["method"][1]
    assert len(set(own["all"])) == 1
    assert len(set(own["map"])) == 6
    assert own["method"][0] == pytest.approx(float(np.quantile(a.double().abs().numpy(), 0.995)))


def test_masks_outline_images_and_shade_maps(batch):
    figure = bp.view.grid(batch.x, {"a": torch.randn(3, 96, 96)}, masks=batch.mask)
    veils = [i for i in images(figure) if i.shape[-1] == 4]
    assert len(veils) == 3
    for veil, mask in zip(veils, batch.mask, strict=True):
        assert ((np.asarray(veil)[..., 3] == 0) == mask.numpy()).all()
    first = next(axes for axes in figure.axes if axes.images and axes.images[0].get_array().shape[-1] == 3)
    assert first.collections  # the outline
    assert first.get_xlim() == (-0.5, 95.5)


def test_a_play_brings_class_and_value(play, batch, model):
    figure = bp.view.grid(batch.x, {"RG": play})
    said = "\n".join(texts(figure))
    for k, value in zip(batch.target.tolist(), play.value.tolist(), strict=True):
        assert model.classes[k] in said and number(value) in said
    close(
        next(i for i in images(figure) if i.ndim == 3 and i.shape[-1] == 3),
        batch.x[0].double().movedim(0, -1) * 0.25 + 0.5,
    )


def test_images_of_several_sizes():
    pictures = [torch.rand(3, 20, 30), torch.rand(3, 40, 20)]
    figure = bp.view.grid(pictures, {"a": [torch.randn(20, 30), torch.randn(3, 40, 20)]}, labels=["wide", "high"])
    assert [i.shape for i in images(figure) if i.ndim == 2] == [(20, 30), (40, 20)]
    assert_legible(figure)


@pytest.mark.parametrize("width", [None, 3.3, 12])
def test_sweeps(play, batch, width):
    swept = bp.sweep(play.game, batch.x, batch.target, tau=[0.5, 1.0])
    figure = swept.plot(sample=2, width=width)
    assert_legible(figure)
    drawn = [i for i in images(figure) if i.ndim == 2]
    for found, heat in zip(drawn, swept.values(), strict=False):
        close(found, heat[2].double().sum(0))
    assert {"τ\u00a0=\u00a00.5", "τ\u00a0=\u00a01"} <= set(texts(figure))
    table = bp.sweep(play.game.replace(input_variance=0.1), batch.x, batch.target, tau=[0.5, 1.0], risk=[0.0, -1.0])
    figure = bp.view.sweep(table, batch.x, width=width)
    assert {"τ\u00a0=\u00a00.5", "λ\u00a0=\u00a0−1"} <= set(texts(figure))
    scales = {i.get_clim() for i in figure.findobj(AxesImage) if i.get_array().ndim == 2}
    assert_legible(figure)
    assert len(scales) == 1
    close([i for i in images(figure) if i.ndim == 2][1], list(table.values())[1][0].double().sum(0))


def test_a_sweep_is_still_a_dict(play, batch):
    swept = bp.sweep(play.game, batch.x, batch.target, tau=[0.5, 1.0])
    assert isinstance(swept, dict) and list(swept) == [(("tau", 0.5),), (("tau", 1.0),)]
    assert torch.equal(swept.x, batch.x)


def test_a_sweep_of_anything():
    figure = bp.view.sweep({f"point {k}": torch.randn(1, 3, 9, 9) for k in range(11)})
    assert len([i for i in images(figure) if i.ndim == 2]) >= 11
    assert_legible(figure)


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
@pytest.mark.parametrize("width", [3.3, 8])
def test_players(model, batch, game, width):
    play = game(model).play(batch.x, batch.target)
    figure = bp.view.players(play, sample=1, width=width)
    found = play.occupation("input")
    _, plus, minus, apart, *_ = images(figure)
    scale = np.exp(float(found.log_scale[1]))
    true_plus, true_minus = (t[1].double().sum(0).numpy() * scale for t in (found.plus, found.minus))
    # drawn up to one power of ten, which the bar's numbers carry
    factor = np.asarray(plus).max() / true_plus.max()
    assert np.log10(factor) == pytest.approx(round(np.log10(factor)), abs=1e-6)
    assert np.allclose(plus, true_plus * factor) and np.allclose(minus, true_minus * factor)
    lim = limits(figure)
    assert lim[1] == lim[2] and lim[3][0] == -lim[3][1]
    reach = number(float(np.quantile([true_plus, true_minus], 0.995)))
    assert any(reach in word for word in texts(figure))
    true = found.difference[1].double().sum(0).numpy() * np.exp(float(found.difference_log_scale[1]))
    assert np.corrcoef(np.asarray(apart).ravel(), true.ravel())[0, 1] == pytest.approx(1)
    assert_legible(figure)


def test_scales():
    assert scale_of([np.array([[0.0, 2.0]])]).signed is False
    signed = scale_of([np.array([[-1.0, 3.0]])])
    assert signed.signed and signed.limits.vmin == -signed.limits.vmax
    assert scale_of([np.zeros((2, 2))]).reach == 1
    assert scale_of([np.array([[np.nan, 1.0, -1.0]])]).reach == pytest.approx(1)
    lone = np.zeros((100, 100))
    lone[0, 0] = 5.0
    assert scale_of([lone]).reach == 5 and not scale_of([lone]).clipped
    assert scale_of([np.arange(1000.0)[None]]).clipped


@pytest.mark.parametrize(
    "value, said",
    [
        (0.0283, "0.028"),
        (296.4, "296"),
        (0.18, "0.18"),
        (-3.0, "−3"),
        (1.2e-5, "1.2e−5"),
        (9.99e6, "1e7"),
        (12, "12"),
        (100, "100"),
    ],
)
def test_numbers(value, said):
    assert number(value) == said


def test_powers_and_shares():
    assert number(2.5, 20) == "2.5e20" and number(2.5, -1) == "0.25"
    assert [share(v).replace("\u00a0", " ") for v in (0, 1, 0.9999, 0.213, 0.005, 0.00023, 0.9964)] == [
        "0 %",
        "100 %",
        "> 99.9 %",
        "21 %",
        "0.5 %",
        "0.023 %",
        "99.6 %",
    ]


IMAGES = torch.rand(2, 3, 8, 8)
BAD = {
    "no dict": (lambda: bp.view.grid(IMAGES, torch.zeros(2, 8, 8)), "dict of maps by name"),
    "no method": (lambda: bp.view.grid(IMAGES, {}), "at least one method"),
    "too few maps": (lambda: bp.view.grid(IMAGES, {"RG": torch.zeros(1, 3, 8, 8)}), r"maps\['RG'\] holds 1 maps for 2"),
    "other shape": (lambda: bp.view.grid(IMAGES, {"RG": torch.zeros(2, 3, 8, 16)}), "8 × 16 and the image 8 × 8"),
    "mask size": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, masks=torch.ones(2, 4, 4)), "a mask is 4 × 4"),
    "mask count": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, masks=torch.ones(5, 8, 8)), "5 masks for 2"),
    "labels": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, labels=["a"]), "labels has 1 entries for 2"),
    "label": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, labels="ab"), "one entry for each image"),
    "values": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, values=[1.0]), "values has 1 entries"),
    "scale": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, scale="row"), "scale='row'"),
    "width": (lambda: bp.view.grid(IMAGES, {"RG": IMAGES}, width=0), "width=0"),
    "narrow": (lambda: bp.view.grid(IMAGES, {str(k): IMAGES for k in range(20)}, width=2), "do not fit into 2 inches"),
    "sample": (lambda: bp.view.heatmap(IMAGES, sample=2), "sample 2 is out of range: the map holds samples 0 to 1"),
    "over nothing": (lambda: bp.view.heatmap(IMAGES, over=True), "give the image too"),
    "words": (lambda: bp.view.heatmap("map.png"), "type str"),
    "sweep": (lambda: bp.view.sweep([IMAGES]), "dict that bp.sweep returns"),
    "empty sweep": (lambda: bp.view.sweep({}), "at least one"),
    "players": (lambda: bp.view.players(IMAGES), "players takes a play"),
    "model": (lambda: bp.view.heatmap(IMAGES, IMAGES, model=3), "model=int"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, says = BAD[name]
    with pytest.raises(bp.BackplayError, match=says) as error:
        call()
    assert not isinstance(error.value, bp.errors.UnforeseenError)
    assert str(error.value).count("\n") <= 1
