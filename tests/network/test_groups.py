"""Which states are a channel, a head, a token, a position: whatever the layout of a node's output."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.network.groups import channel_axis, find_grouped, groups_of, read_states

pytestmark = pytest.mark.capture


class Layouts(nn.Module):
    """Convolutions, channels last, concatenation, pools, windows that share an axis with the samples, a flat end."""

    def __init__(self):
        super().__init__()
        self.conv, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(6, 5)
        self.windows, self.act = nn.Linear(5, 5), nn.GELU()
        self.mean, self.flat, self.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2)

    def forward(self, x):
        h = torch.cat([torch.relu(self.conv(x)), torch.tanh(self.second(x))], 1)
        h = self.last(self.pool(h).permute(0, 2, 3, 1))  # (B, 4, 4, 5)
        w = h.unflatten(1, (2, 2)).unflatten(3, (2, 2)).transpose(2, 3).flatten(3, 4).flatten(0, 2)  # (B · 4, 4, 5)
        w = self.act(self.windows(w))
        w = w.unflatten(0, (-1, 2, 2)).unflatten(3, (2, 2)).transpose(2, 3).flatten(1, 2).flatten(2, 3)
        return self.head(self.flat(self.mean(w.permute(0, 3, 1, 2))))


def solved(model, x):
    play = bp.StoppingGame(model.double().eval()).play(x.double(), 0)
    return play.network, play.solved


def grouped(network, values, name, by):
    node = find_grouped(network, name, by)
    groups = groups_of(network, node, by, values)
    return groups.labels.expand(values[node].shape), groups.count


@pytest.mark.parametrize("batch", [1, 3])
def test_channels_and_positions(batch):
    torch.manual_seed(0)
    network, values = solved(Layouts(), torch.randn(batch, 3, 8, 8))
    for name, axis, count in (
        ("input", 1, 3), ("conv", 1, 4), ("pool", 1, 6), ("last", 3, 5), ("act", 2, 5), ("mean", 1, 5),
        ("flat", 1, 5), ("head", 1, 2),
    ):  # fmt: skip
        labels, found = grouped(network, values, name, "channel")
        assert found == count and channel_axis(network, network.find(name), values) == axis, name
        along = torch.arange(count).view([-1 if d == axis else 1 for d in range(labels.ndim)])
        assert torch.equal(labels, along.expand(labels.shape)), name
    for name, count in (("conv", 64), ("pool", 16), ("last", 16), ("act", 16)):
        labels, found = grouped(network, values, name, "position")
        assert found == count and torch.equal(labels.unique(), torch.arange(count)), name
    windows, _ = grouped(network, values, "act", "position")  # the window within its sample, the place within it
    assert torch.equal(windows[:, :, 0], torch.arange(16).view(4, 4).repeat(batch, 1))
    rows, _ = grouped(network, values, "conv", "position")
    assert torch.equal(rows[-1, 2], torch.arange(64).view(8, 8))


class Heads(nn.Module):
    """torch's own attention, whose heads share an axis with the samples in the path that export follows."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 3, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


@pytest.mark.parametrize("batch", [1, 2])
def test_heads(batch):
    """A channel is a feature of a head, and every token of every channel is a state of its own."""
    torch.manual_seed(0)
    network, values = solved(Heads(), torch.randn(batch, 4, 6))
    labels, count = grouped(network, values, "attention", "head")
    node = find_grouped(network, "attention", "head")
    assert count == 3 and labels.shape == values[node].shape
    for by, groups in (("token", 4), ("channel", 6), ("position", 4)):
        assert grouped(network, values, node, by)[1] == groups
    tokens, channels = (grouped(network, values, node, by)[0] for by in ("token", "channel"))
    assert torch.equal(channels // 2, labels)
    cells = torch.stack([tokens.flatten(), channels.flatten()])
    assert len(cells.unique(dim=1).T) == 24  # every token of every channel is a state


def test_signals():
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    network, values = solved(model, torch.randn(2, 2, 6))
    assert grouped(network, values, "0", "channel")[1] == 3 and grouped(network, values, "1", "token")[1] == 4
    assert grouped(network, values, "input", "channel")[1] == 2 and grouped(network, values, "2", "channel")[1] == 12


def test_states_as_given():
    network, values = solved(Layouts(), torch.randn(2, 3, 8, 8))
    node = network.find("conv")
    whole = read_states(network, node, [1, 3], "channel", values)
    assert whole.flatten().tolist() == [0, 1, 0, 1] and whole.dtype == torch.float64
    for same in ((1, 3), {3, 1}, torch.tensor([3, 1]), whole, whole.bool(), whole[0], whole.expand(2, 4, 8, 8)):
        assert torch.equal(
            read_states(network, node, same, "channel", values).expand(2, 4, 8, 8), whole.expand(2, 4, 8, 8)
        )
    assert read_states(network, node, 2, "channel", values).sum() == 1


def test_unknown_axes():
    """Where channels are spread over two axes none of them is taken for the channels."""

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.split, self.head = nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.split(self.up(x)).sum(1))

    network, values = solved(Split(), torch.randn(2, 4))
    with pytest.raises(bp.BackplayError, match="give a mask"):
        groups_of(network, network.find("split"), "channel", values)
    assert groups_of(network, network.find("up"), "channel", values).count == 6
