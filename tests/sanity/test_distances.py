"""Networks beside each other, and readouts beside each other."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import backplay as bp
from backplay.sanity import cascade, network_distances, rank_correlations, readouts_of


def net(width=6):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3)).double().eval()


@pytest.mark.slow
def test_networks():
    torch.manual_seed(0)
    x, models = torch.randn(3, 4).double(), {"a": net(), "b": net(), "c": net()}
    renamed = copy.deepcopy(models["a"])  # the same calculation, its neurons in another order
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    with torch.no_grad():
        renamed[0].weight.copy_(models["a"][0].weight[order])
        renamed[0].bias.copy_(models["a"][0].bias[order])
        renamed[2].weight.copy_(models["a"][2].weight[:, order])
    found = network_distances(models | {"renamed": renamed}, x, permuted=True)
    assert found.names == ("a", "b", "c", "renamed")
    target = models["a"](x).argmax(1)
    for game, kind, options in (("sg", bp.StoppingGame, {}), ("rg", bp.RoutingGame, {"epsilon": 0.0})):
        plain, permuted = found.distance[game], found.permuted[game]
        assert plain.shape == (4, 4, 3) and torch.equal(plain, plain.transpose(0, 1)) and not plain[2, 2].any()
        network = bp.capture(models["a"], x)
        plays = [kind(network.on(models[name]), **options).play(x, target) for name in "bc"]
        assert torch.allclose(plain[1, 2], bp.hellinger(*plays).distance, atol=1e-10)
        assert (permuted <= plain + 1e-12).all()
        assert (plain[0, 3] > 0.1).all() and (permuted[0, 3] < 1e-6).all()
    with pytest.raises(bp.BackplayError, match="two networks or more; got 1"):
        network_distances({"a": models["a"]}, x)
    with pytest.raises(TypeError, match=r"takes networks by names.*got list"):
        network_distances([models["a"], models["b"]], x)
    with pytest.raises(bp.BackplayError):
        network_distances({"a": models["a"], "wide": net(9)}, x)


def test_picture_of_networks():
    """A panel for each game and readout, with the means over the inputs as numbers."""
    torch.manual_seed(0)
    found = network_distances({"a": net(), "b": net()}, torch.randn(3, 4).double(), games="sg", permuted=True)
    panels = found.plot().axes
    assert [panel.get_title() for panel in panels] == ["SG H", "SG H_perm"]
    mean = float(found.distance["sg"][0, 1].mean())
    with pytest.raises(bp.errors.KeywordError, match=r"unknown option .foo. .*: it takes none"):
        found.plot(foo=1)
    assert [t.get_text() for t in panels[0].texts] == ["0.00", f"{mean:.2f}", f"{mean:.2f}", "0.00"]


def test_rank_correlations_are_scipys():
    torch.manual_seed(1)
    values = {"a": torch.randn(30), "b": torch.randn(30).round(), "c": torch.randn(30), "same": torch.ones(30)}
    values["c"][[2, 7]] = torch.nan
    found = rank_correlations(values)
    for i, a in enumerate(values.values()):
        for j, b in enumerate(values.values()):
            known = np.isfinite(a.numpy()) & np.isfinite(b.numpy())
            if "same" in (list(values)[i], list(values)[j]):
                assert found[i, j].isnan()
            else:
                expected = spearmanr(a.numpy()[known], b.numpy()[known]).statistic
                assert float(found[i, j]) == pytest.approx(expected, abs=1e-10)
    with pytest.raises(bp.BackplayError, match=r"\[2, 3\]"):
        rank_correlations({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]})


def test_readouts_of_a_step():
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(54, 3)
    x = torch.randn(4, 3, 12, 12)
    step = list(cascade(nn.Sequential(*layers).eval(), x, method=["gradient"]))[1]
    found = readouts_of(step)
    names = ["sg.distance", "rg.distance", "sg.surviving", "rg.surviving", "gradient.spearman", "gradient.hog"]
    assert list(found) == names and found["rg.surviving"] is step.surviving["rg"]
    table = rank_correlations(found)
    assert table.shape == (6, 6) and float(table[0, 0]) == pytest.approx(1)
