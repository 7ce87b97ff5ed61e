"""Walks through chosen states (S26c): against every trajectory that stands there, sums over partitions, draws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import backplay as bp
from attention_blocks import drawn
from backplay.network.attention import Attention
from closeness import array, assert_near, unscaled
from enumerated import draw_inputs, examples, require, solved, tensor
from mixed import GAMES, Mixed
from narrow import SHAPES, Residual, cnn, mlp
from oracles import strategies
from oracles.attention import CLASSES, RoutingWalk, StoppingWalk
from oracles.passing import passing
from oracles.walks import MINUS, PLUS, Routing, Stopping, count_trajectories
from sampled import CASES, Picture
from toys import picture, tiny_vit

ROUTING = {"epsilon": 0.3, "tau": 0.7}


def compare(sub, found, addresses, what=""):
    """Share, ends, marginal and both players' occupation of a sub-play at every node, and its map."""
    outcomes = [outcome for outcome, _ in found]
    assert_near(sub.share, [share for _, share in found], scale=1.0, what=f"share {what}")
    assert_near(sub.cemetery, [o.cemetery for o in outcomes], scale=1.0, what=f"† {what}")
    assert_near(sub.constant, [o.constant for o in outcomes], scale=1.0, what=f"constants {what}")
    for path, n in addresses:
        marginal = np.stack([o.marginal[n] for o in outcomes])
        assert_near(sub.marginal(path), marginal, scale=1.0, what=f"marginal at {path} {what}")
        occupation, expected = sub.occupation(path), np.stack([o.occupation[n] for o in outcomes])
        largest = np.abs(expected).max() + 1e-6
        for player, values in ((PLUS, occupation.plus), (MINUS, occupation.minus)):
            values = unscaled(values, occupation.log_scale)
            assert_near(values, expected[:, player], scale=largest, what=f"Γ of player {player} at {path} {what}")
    size = max(np.abs(o.occupation[0]).max() for o in outcomes) * (np.abs(array(sub.play.value)).max() + 1) + 1e-6
    values = array(sub.play.value)[:, None] if isinstance(sub.play.game, bp.RoutingGame) else 1.0
    difference = np.stack([o.difference(0) for o in outcomes]) * values
    assert_near(sub.attribution().flatten(1), difference, scale=size, what=f"map {what}")


def draw_masks(data, sizes, count):
    """Masks over the elements of some nodes: half of them whole states, half of them shares."""
    nodes = data.draw(st.lists(st.sampled_from(sorted(sizes)), min_size=count, max_size=count, unique=True))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    masks = {}
    for node in nodes:
        mask = generator.integers(0, 5, size=sizes[node]) / 4
        masks[node] = mask.round() if data.draw(st.booleans()) else mask
    return masks


def through(play, masks, addresses):
    """A sub-play with the given masks, in the order in which they are given."""
    sub = play
    for n, mask in masks.items():
        path = next(path for path, i in addresses if i == n)
        sub = sub.through(path, torch.as_tensor(mask).view(play.network.find(path).shape[1:]))
    return sub


@pytest.mark.slow
@pytest.mark.parametrize("networks", [strategies.dense_dags, strategies.conv_dags])
def test_enumeration(networks):
    """One node, two nodes in any order, three: on networks with sums, maxima, concatenations and constants."""

    @examples(20)
    @given(st.data())
    def check(data):
        dag = data.draw(networks())
        x, targets = draw_inputs(data, dag)
        nodes, known = solved(dag, x)
        addresses = dag.addresses()
        sizes = {n: nodes[n].size for _, n in addresses}
        masks = draw_masks(data, sizes, data.draw(st.integers(1, min(3, len(sizes)))))
        network = bp.capture(dag.module(), tensor(dag, x))
        for game, walks in (
            (bp.StoppingGame(network), [Stopping(nodes, v) for v in known]),
            (bp.RoutingGame(network, **ROUTING), [Routing(nodes, v, **ROUTING) for v in known]),
        ):
            require(all(count_trajectories(w, t) <= 3000 for w, t in zip(walks, targets, strict=True)))
            found = [passing(w, t, masks) for w, t in zip(walks, targets, strict=True)]
            compare(through(game.play(tensor(dag, x), targets), masks, addresses), found, addresses, repr(masks))

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fused", "patches, packed", "grouped, spelled out", "no projection", "einsum"])
def test_attention(name):
    """Through heads, tokens and the states of the V projection that the walk crosses inside the composite."""
    block, network, x, samples = drawn(name, 4, 0.0)
    targets = [0, CLASSES - 1]
    addresses = list(samples[0].paths.items())
    generator = np.random.default_rng(2)
    projection = [[n] for p, n in addresses if p in ("qkv", "v")]
    inner = [n for p, n in addresses if p not in ("input", addresses[-1][0])]
    chosen = [*projection, *([n, inner[0]] for (n,) in projection), *([n] for n in inner[:: len(inner) // 3])]
    chosen += [[inner[-1], inner[0]], [inner[len(inner) // 2], 0]]
    for game, walk in ((bp.StoppingGame(network), StoppingWalk), (bp.RoutingGame(network, **ROUTING), RoutingWalk)):
        options = ROUTING if walk is RoutingWalk else {}
        play = game.play(block.shaped(x), targets)
        for nodes in chosen:
            masks = {n: generator.integers(0, 3, size=samples[0].nodes[n].size) / 2 for n in nodes}
            found = [
                passing(walk(s.nodes, s.values, **options), t, masks) for s, t in zip(samples, targets, strict=True)
            ]
            compare(through(play, masks, addresses), found, addresses, f"{nodes}")


# ---------------------------------------------------------------- partitions


@pytest.mark.slow
@pytest.mark.parametrize("game, options", GAMES)
def test_partitions(game, options):
    """Over channels, heads, tokens and positions that every walk passes, shares, marginals and maps add up."""
    vit, x = tiny_vit(), picture()
    play = game(vit, **options).play(x, 1)
    for name, by, count in (
        ("blocks.0", "channel", 6),
        ("blocks.0", "token", 5),
        ("blocks.1.fc1", "channel", 12),
        ("blocks.1", "head", 2),
        ("blocks.0.qkv", "channel", 18),
        ("embed", "position", 4),
    ):
        parts = [play.through(name, k, by=by) for k in range(count)]
        every = play.through(name, range(count), by=by)
        assert_near(sum(p.attribution() for p in parts), every.attribution(), what=f"maps over {name}")
        for node in ("input", "blocks.1.fc2", "embed"):
            total = sum(p.marginal(node) for p in parts)
            assert_near(total, every.marginal(node), scale=1.0, what=f"marginals over {name}")
        assert_near(sum(p.share for p in parts), every.share, scale=1.0, what=f"shares over {name}")
        assert_near(every.share, every.cemetery + every.constant + every.marginal("input").flatten(1).sum(1))
        if name in ("blocks.0", "embed"):  # every walk that arrives passes there
            assert_near(every.attribution(), play.attribution(), what=f"the whole map over {name}")
            assert_near(every.marginal("input"), play.marginal("input"), scale=1.0)
        else:
            assert (every.share < 0.9).all()  # a branch of a residual sum: the others take the skip


@pytest.mark.parametrize("model, x", [(tiny_vit(), picture()), (Mixed().double(), picture()[:, :, :3, 0])])
def test_every_node(model, x):
    """At any node, wires that are crossed inside attention too, the walks through its states are those that visit."""
    play = bp.RoutingGame(model.eval(), epsilon=0.1).play(x, 1)
    for node in play.network.nodes:
        if node not in play.network.reached:
            continue
        marginal = play.marginal(node)
        mask = (torch.arange(marginal.numel()) % 3 == 1).view(marginal.shape)
        sub = play.through(node, mask)
        assert_near(sub.marginal(node), marginal * mask, scale=1.0, what=node.name)
        assert_near(sub.share, node.layout.sum(marginal * mask), scale=1.0, what=node.name)
        rest = play.through(node, ~mask)
        both = play.through(node, torch.ones(()))
        assert_near(sub.attribution() + rest.attribution(), both.attribution(), what=node.name)


def test_two_conditions_inside_attention():
    """A wire and the projection behind it are both crossed by one kernel: where both agree, each alone is enough."""
    play = bp.RoutingGame(tiny_vit(), epsilon=0.1).play(picture(), 1)
    mixing = [n for n in play.network.nodes if isinstance(n, Attention)][-1]
    projection, wire = mixing.projection, mixing.wires[-1]
    states = torch.zeros(play.solved[projection].shape, dtype=torch.float64)
    states[..., 13::2] = 1  # of the values, which are the last third
    same = mixing.through(states, play.solved)
    alone, behind = play.through(projection, states), play.through(wire, same)
    both = play.through(wire, same).through(projection, states)
    assert (alone.share > 1e-3).all()
    for sub in (behind, both):
        assert_near(sub.attribution(), alone.attribution())
        assert_near(sub.share, alone.share)
        assert_near(sub.marginal(wire), alone.marginal(wire), scale=1.0)
    apart = play.through(wire, 1 - same).through(projection, states)
    assert not apart.share.any()
    walks = both.sample(2000, seed=1)
    for name in walks.states:
        assert (walks.check(name) > 1e-4).all(), name


def test_branches():
    """Walks that take the skip are not among those through the block, and both add up."""
    torch.manual_seed(0)
    model = Picture().double().eval()
    play = bp.RoutingGame(model, epsilon=0.01).play(torch.randn(2, 3, 8, 8, dtype=torch.float64), 1)
    block = play.through("second", range(4))
    assert (block.share > 0.01).all() and (block.share < play.marginal("first").flatten(1).sum(1)).all()
    both = block.through("first", range(4))
    assert_near(both.share, block.share - (block.cemetery - both.cemetery), scale=1.0)
    assert_near(both.attribution(), block.attribution(), what="all of them come to the first layer")
    turned = play.through("first", [1, 3]).through("second", [0, 2])
    straight = play.through("second", [0, 2]).through("first", [1, 3])
    assert_near(turned.attribution(), straight.attribution(), what="in any order")
    above = play.through("third", range(4)).through("second", [0, 2])
    alone = play.through("second", [0, 2])
    assert_near(above.attribution(), alone.attribution(), what="behind a node that every walk passes")
    assert_near(above.share, alone.share)
    one = play.game.play(play.x, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)).through("second", [0, 2])
    assert_near(one.attribution(), alone.attribution(), what="from the root of weights")
    twice = play.through("second", [0, 2]).through("second", [2, 3])
    assert_near(twice.attribution(), play.through("second", 2).attribution(), what="twice at one node")


def test_roots():
    """Weights over the logits, a hidden neuron, the output itself, the input itself."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()
    x = torch.randn(2, 4, dtype=torch.float64)
    game = bp.RoutingGame(model, epsilon=0.1)
    weights = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, -1.0]]).double()
    play = game.play(x, weights)
    assert_near(sum(play.through("1", k).attribution() for k in range(5)), play.attribution(), what="weights")
    of_class = play.through("2", 1)
    assert_near(of_class.attribution(), game.attribute(x, 1) * weights[:, 1:2], what="one of the logits")
    assert_near(of_class.share, [2 / 3.5, 0.5])
    neuron = game.play(x, ("1", (2,)))
    assert not neuron.through("2", 1).share.any() and not neuron.through("2", 1).attribution().any()
    assert_near(neuron.through("1", 2).attribution(), neuron.attribution())
    pixels = play.through("input", [0, 3])
    assert_near(pixels.attribution(), play.attribution() * torch.tensor([1.0, 0, 0, 1]), what="at the input")
    assert_near(pixels.share, pixels.marginal("input").sum(1))


def test_two_inputs():
    """A condition at one input leaves out the walks that end at the other."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

        def forward(self, left, right):
            return self.head(torch.relu(self.a(left)) + torch.relu(self.b(right)))

    torch.manual_seed(3)
    model = Two().double().eval()
    with torch.no_grad():
        model.a.bias.add_(1.0), model.b.bias.add_(1.0)  # gates open towards both
    x = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    play = bp.RoutingGame(model, epsilon=0.1).play(x, 1)
    for name, k, size in (("left", 0, 3), ("right", 1, 2)):
        sub = play.through(name, range(size))
        maps = sub.attribution()
        assert_near(maps[k], play.attribution()[k])
        assert not maps[1 - k].any()
        assert_near(sub.share, play.marginal(name).sum(1))
        walks = sub.sample(200, seed=1)
        assert (walks.states[name] >= 0).all() and (walks.check(name) > 1e-4).all()


# ---------------------------------------------------------------- sampling


@pytest.mark.parametrize("arriving", [False, True])
@pytest.mark.parametrize("game, options", [GAMES[0], GAMES[1], GAMES[3]])
@pytest.mark.parametrize("model, shape, conditions", [
    (CASES[0][0], CASES[0][1], {"second": [1, 2], "first": [0, 3]}),
    (CASES[1][0], CASES[1][1], {"up": [1, 2], "qkv": [9, 10]}),
    (CASES[1][0], CASES[1][1], {"out": [0, 3], "embed": [1]}),
])  # fmt: skip
def test_draws(model, shape, conditions, game, options, arriving):
    """All drawn walks pass, and visit every node as often as their joint probability says."""
    torch.manual_seed(5)
    x = torch.randn(shape, dtype=torch.float64)
    sub = game(model().double().eval(), **options).play(x, 1)
    for name, states in conditions.items():
        sub = sub.through(name, states)
    walks = sub.sample(4000, seed=1, arriving=arriving)
    for name, states in conditions.items():
        node = sub.play.network.find(name)
        assert set(_channels(walks.states[node.name], node)) <= set(states)
    assert bool((walks.ends == 0).all()) or not arriving
    for name in walks.states:
        assert (walks.check(name) > 1e-4).all(), name
    scale = walks.play.marginal("input").flatten(1).sum(1)
    assert (walks.expected("input").flatten(1).sum(1) >= scale - 1e-12).all() or not arriving


def _channels(states, node):
    """The channels of sampled states, which are all there; −1 would be a channel of its own."""
    inner = torch.Size(node.shape[2:]).numel() if len(node.shape) == 4 else 1
    channel = torch.where(states < 0, -1, states // inner % (node.shape[1] if len(node.shape) == 4 else node.shape[-1]))
    return channel.unique().tolist()


def test_rejection():
    """The same law as drawing every walk and keeping those that pass."""
    torch.manual_seed(6)
    play = bp.RoutingGame(Mixed().double().eval(), epsilon=1e-2).play(torch.randn(1, 3, 3, dtype=torch.float64), 1)
    sub = play.through("up", [1, 2]).through("embed", [0, 2])
    drawn_ones, every = sub.sample(6000, seed=1), play.sample(60_000, seed=2)
    kept = torch.isin(every.states["up"][0] % 4, torch.tensor([1, 2])) & (every.states["up"][0] >= 0)
    kept &= torch.isin(every.states["embed"][0] % 4, torch.tensor([0, 2])) & (every.states["embed"][0] >= 0)
    assert kept.sum() > 500
    assert abs(float(kept.double().mean()) - float(sub.share)) < 0.01
    for name in drawn_ones.states:
        one, other = drawn_ones.states[name][0], every.states[name][0][kept]
        seen = torch.cat([one, other]).unique()
        shares = [(sample[:, None] == seen).double().mean(0) for sample in (one, other)]
        assert float((shares[0] - shares[1]).abs().max()) < 0.06, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind, first", [(mlp, "0"), (cnn, "0"), (Residual, "narrow.0")])
def test_tiny_shares(kind, first, dtype):
    """One walk in 1e30 passes, or fewer, and still every drawn one does; parts add up by their logarithms."""
    torch.manual_seed(1)
    model = kind(5, 1e-10).to(dtype).eval()
    play = bp.RoutingGame(model).play(torch.rand(SHAPES[kind], dtype=dtype) + 0.5, 0)
    parts = [play.through(first, k) for k in range(2)]
    whole = play.marginal(first, log=True).double().flatten(1).logsumexp(1)
    assert (whole < np.log(1e-30)).all()
    assert_near(torch.logaddexp(*(p.log_share for p in parts)), whole, 1e-4)  # the third channel is dead
    for arriving in (False, True):
        walks = parts[1].sample(500, seed=1, arriving=arriving)
        node = play.network.find(first)
        assert _channels(walks.states[node.name], node) == [1]
        assert bool((walks.ends == 0).all()) or not arriving
        for name in walks.states:
            assert (walks.check(name) > 1e-4).all(), name


def test_words_and_refusals():
    torch.manual_seed(0)
    model = Picture().eval()
    play = bp.RoutingGame(model).play(torch.randn(1, 3, 8, 8), 1)
    sub = play.through("first", [1, 2])
    assert "SubPlay" in repr(sub) and "'first'" in repr(sub) and "pass" in repr(sub.sample(3))
    for name, states, options, words in (
        ("first", 7, {}, "channel 7 is out of range: 'first' has 4 channels; give numbers from 0 to 3"),
        ("first", [-1], {}, "channel -1"),
        ("first", [], {}, "no channel is chosen"),
        ("first", "all", {}, "must be numbers, or a mask"),
        ("first", None, {}, "must be numbers, or a mask"),
        ("first", [[1, 2]], {}, "in one list, or a mask"),
        ("first", torch.ones(5), {}, r"a mask of shape \(5,\) does not fit the states of 'first', \(1, 4, 4, 4\)"),
        ("first", torch.full((4, 1, 1), 1.5), {}, "holds 1.5"),
        ("first", torch.full((4, 1, 1), float("nan")), {}, "holds nan"),
        ("first", [0], {"by": "neuron"}, "by='neuron' is out of range: it must be one of 'channel', 'head'"),
        ("first", [0], {"by": "head"}, "holds no attention"),
        ("first", [0], {"by": "token"}, "by='position'"),
        ("head", [0], {"by": "position"}, "by='channel'"),
        ("frist", [0], {}, "no node or module named 'frist'"),
    ):
        with pytest.raises(bp.BackplayError, match=words) as error:
            play.through(name, states, **options)
        assert len(str(error.value).splitlines()) <= 2
    shut = play.through("first", torch.zeros(4, 1, 1))
    assert not shut.share.any() and not shut.attribution().any()
    with pytest.raises(bp.BackplayError, match="passes the chosen states") as error:
        shut.sample(5)
    assert len(str(error.value).splitlines()) <= 2
    with pytest.raises(ValueError, match="n=0"):
        sub.sample(0)
    gradient = bp.RoutingGame(tiny_vit(), attention="gradient").play(picture(), 1)
    with pytest.raises(bp.BackplayError, match="has no kernel, so there is no walk"):
        gradient.through("blocks.0", 1)


def test_the_play_is_left_alone():
    """A sub-play changes nothing of its play, and a released play makes it anew."""
    torch.manual_seed(0)
    play = bp.RoutingGame(Picture().double().eval()).play(torch.randn(2, 3, 8, 8, dtype=torch.float64), 1)
    before, marginal = play.attribution().clone(), play.marginal("first").clone()
    sub = play.through("second", [0])
    expected = sub.attribution(), sub.marginal("first")
    sub.sample(10), sub.occupation("first")
    assert torch.equal(play.attribution(), before) and torch.equal(play.marginal("first"), marginal)
    again = play.release().through("second", [0])
    assert_near(again.attribution(), expected[0])
    assert_near(again.marginal("first"), expected[1])
