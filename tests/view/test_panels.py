"""One image and its maps, and cascades: the numbers that are drawn are those that were given."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import backplay as bp
from backplay.view.colours import number, scale_of
from backplay.view.printing import Printer, encoded
from legible import assert_legible, images, texts


def test_panels(play, batch, model):
    heat = play.attribution()
    maps = {"RG": play, "a method with a long name, τ = 0.5": torch.randn(3, 96, 96)}
    figure = bp.view.panels(batch.x, maps, notes={"RG": "12 % of walks arrive"}, title="ring", sample=1, model=model)
    drawn = [np.asarray(i) for i in images(figure)]
    panels = [d for d in drawn if d.shape[0] == 96]
    assert np.allclose(panels[0], (batch.x[1].double() * 0.25 + 0.5).clamp(0, 1).movedim(0, -1))
    assert np.allclose(panels[1], heat[1].double().sum(0), rtol=1e-12)
    assert np.allclose(panels[2], maps["a method with a long name, τ = 0.5"][1].double(), rtol=1e-12)
    scale = scale_of([heat[1].double().sum(0).numpy()])
    shown = [i for i in figure.axes[0].images if i.get_array().shape[0] == 96][1]
    assert shown.get_clim() == pytest.approx((-scale.reach, scale.reach))
    said = texts(figure)
    assert {"ring", "image", "RG", "12 % of walks arrive"} <= set(said)
    assert any(t.endswith(number(scale.reach)) for t in said)
    assert_legible(figure)


@pytest.mark.parametrize("count", [1, 5, 6, 13])
@pytest.mark.parametrize("size", [(40, 60), (60, 30)])
def test_any_number_of_maps(count, size):
    maps = {f"method {k}": torch.randn(1, 3, *size) for k in range(count)}
    notes = dict.fromkeys(maps, "1.3 % of walks arrive")
    figure = bp.view.panels(torch.rand(1, 3, *size), maps, notes=notes, title="a title")
    assert_legible(figure)
    boxes = [i.get_extent() for i in figure.axes[0].images if i.get_array().shape[0] == size[0]]
    assert len(boxes) == count + 1
    for left, right, bottom, top in boxes:
        assert (bottom - top) / (right - left) == pytest.approx(size[0] / size[1]), "pixels are square"
    assert len({round(top, 6) for _, _, _, top in boxes}) == -(-(count + 1) // 6), "rows of six"


def test_a_map_without_a_sign():
    figure = bp.view.panels(torch.rand(3, 8, 8), {"AR": torch.rand(8, 8)})
    assert "0" in texts(figure)
    low, high = figure.axes[0].images[1].get_clim()
    assert low == 0 and high > 0


def test_printed_panels(model, batch):
    """Sheets that are filled again and again have the colours that `savefig` gives each picture, but for rounding."""
    printer = Printer(model)
    heat = bp.StoppingGame(model, multiply_by_input=True).attribute(batch.x, batch.target)
    for k, (names, title) in enumerate([(("RG",), "a"), (("RG",), "a longer one, $5"), (("RG", "|RG|"), "two")] * 2):
        sample = k % 3
        maps = {name: heat[sample : sample + 1] if name == "RG" else heat[sample : sample + 1].abs() for name in names}
        maps["NaN"] = torch.full((1, 96, 96), torch.nan).where(torch.eye(96) > 0, torch.tensor(float(k)))
        given = {"notes": {"RG": f"{k} % of walks arrive"} if k % 2 else None, "title": title}
        found = Image.open(io.BytesIO(printer.png(batch.x[sample : sample + 1], maps, **given)))
        file = io.BytesIO()
        bp.view.panels(batch.x[sample : sample + 1], maps, **given, model=model).savefig(file, format="png", dpi=144)
        expected = Image.open(file).convert("RGB")
        assert found.mode == "RGB" and np.allclose(found.info["dpi"], 144, atol=0.1)
        apart = np.abs(np.asarray(found).astype(int) - np.asarray(expected).astype(int))
        assert apart.max() <= 2, f"picture {k}"  # the photograph is resampled in 8 bits, which rounds once more


@pytest.mark.parametrize("side, dots", [(224, 1), (96, 2)])
def test_pixels_that_are_whole_dots(side, dots):
    """Panels are as wide as so many pixels, where that is near their usual width: nothing is blurred on the way."""
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    found = Image.open(io.BytesIO(Printer().png(image, {"RG": torch.randn(1, side, side)}, title="a")))
    shown = np.asarray(found)
    assert 2 * dots * side < shown.shape[1] < 2.3 * dots * side
    expected = pixels.repeat(dots, 0).repeat(dots, 1)[3:-3, 3:-3]  # the edges may lie half a dot aside
    height, width, _ = expected.shape
    places = [(y, x) for y in range(shown.shape[0] - height) for x in range(8, 22)]
    assert any(np.array_equal(shown[y : y + height, x : x + width], expected) for y, x in places)


@pytest.mark.parametrize("side", [40, 518])
def test_panels_of_the_usual_width(side):
    """Small and large images have panels of the usual width."""
    figure = bp.view.panels(torch.rand(1, 3, side, side), {"RG": torch.randn(1, side, side)})
    assert figure.get_figwidth() == pytest.approx(3.3, rel=0.15)


def test_no_pixel_is_lost_at_other_resolutions():
    """A figure that is saved with fewer dots than it has pixels blends them: every other row would vanish else."""
    stripes = torch.zeros(1, 3, 224, 224)
    stripes[:, :, ::2] = 1
    figure = bp.view.panels(stripes, {"RG": torch.randn(1, 224, 224)})
    for data in (Printer(dpi=72).png(stripes, {"RG": torch.randn(1, 224, 224)}), saved(figure, 72)):
        shown = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
        inside = shown[45:110, 30:100]  # of the stripes
        assert 60 < inside.mean() < 195
        assert inside.std() < 60, "black and white are blended"


def saved(figure, dpi):
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def test_printed_colours():
    """Any colours come back out of the file."""
    colours = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    found = Image.open(io.BytesIO(encoded(colours, 100)))
    found.verify()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded(colours, 100)))), colours)


def test_panels_refuse():
    image = torch.rand(1, 3, 8, 8)
    for maps, words in (
        ([], "a dict"),
        ({}, "no maps"),
        ({"RG": torch.rand(1, 3, 8, 4)}, "8 × 4"),
        ({"RG": "map"}, "str"),
    ):
        with pytest.raises(bp.BackplayError, match=words):
            bp.view.panels(image, maps)
    with pytest.raises(bp.BackplayError, match="sample 3"):
        bp.view.panels(image, {"RG": image}, sample=3)


def step(number, name, **distance):
    layer = None if name is None else SimpleNamespace(name=name)
    values = {game: torch.tensor(v) for game, v in distance.items()}
    lost = {game: torch.tensor([float("nan"), v[1]]) for game, v in distance.items()}
    return SimpleNamespace(number=number, layer=layer, distance=values, surviving=lost)


def test_cascade():
    """Means over the samples (fig:hellinger-sanity), and deviations (fig:hellinger-variance)."""
    steps = [step(0, None, sg=[0.0, 0.0]), step(1, "head", sg=[0.2, 0.4]), step(2, "features.0", sg=[0.8, 1.0])]
    figure = bp.view.cascade(steps)
    (axes,) = figure.axes
    solid, dotted = axes.lines
    assert np.allclose(solid.get_ydata(), [0.0, 0.3, 0.9]) and np.allclose(dotted.get_ydata(), [0.0, 0.4, 1.0])
    assert {"nothing", "head", "features.0", "SG, H"} <= set(texts(figure))
    assert_legible(figure)
    spread = bp.view.cascade(steps, deviation=True).axes[0].lines[0]
    assert np.allclose(spread.get_ydata(), [0.0, 0.1, 0.1])


def test_cascade_refuses():
    with pytest.raises(bp.BackplayError, match="float"):
        bp.view.cascade(1.5)
    with pytest.raises(bp.BackplayError, match="no distances"):
        bp.view.cascade([step(0, None)])
    with pytest.raises(bp.BackplayError, match="no distances"):
        bp.view.cascade([])
