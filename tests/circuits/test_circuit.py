"""Attribution graphs (S26c): against every trajectory, sums at every layer, pruning, and ways out of Python."""

import json
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import PathPatch, Rectangle

import backplay as bp
from attention_blocks import drawn
from closeness import assert_near
from enumerated import draw_inputs, examples, require, solved, tensor
from legible import assert_legible
from mixed import GAMES
from oracles import strategies
from oracles.attention import CLASSES, RoutingWalk, StoppingWalk
from oracles.passing import circuit_of
from oracles.walks import Routing, Stopping, count_trajectories
from sampled import Picture
from toys import picture, tiny_vit

ROUTING = {"epsilon": 0.3, "tau": 0.7}


def edges_of(graph):
    return {(e.source, e.target): [e.mass, e.total, e.difference] for e in graph.edges}


def compare(graph, walk, target, layers):
    """Every edge, in its three measures, and what was left out."""
    kept = {n.name for n in graph.nodes if n.kind == "group"}
    expected = {k: v for k, v in circuit_of(walk, target, layers, kept).items() if v[0] > 1e-15}
    found = {k: v for k, v in edges_of(graph).items() if v[0] > 1e-13 or k in expected}
    assert set(found) == set(expected), (graph.edges, expected)
    size = max([v[1] for v in expected.values() if len(v) > 1], default=0.0)
    for ends, held in expected.items():
        assert_near(found[ends][0], held[0], scale=1.0, what=f"mass of {ends}")
        if len(held) == 3:
            assert_near(found[ends][1:], held[1:], scale=size, what=f"discounted mass of {ends}")
        else:
            assert found[ends][1:] == [None, None]
    out = sum(v[0] for (_, to), v in expected.items() if to.endswith("[rest]"))
    assert_near(graph.left_out, out, scale=1.0, what="left out")


def check_sums(graph):
    """What leaves a group, and what comes to any node, is its mass."""
    for node in graph.nodes:
        coming = [e for e in graph.edges if e.target == node.name]
        leaving = [e for e in graph.edges if e.source == node.name]
        if node.kind != "root":
            assert_near(sum(e.mass for e in coming), node.mass, scale=1.0, what=node.name)
        if node.kind == "root" or (node.kind == "group" and node.layer != "input"):
            assert_near(sum(e.mass for e in leaving), node.mass, scale=1.0, what=node.name)
        if node.kind in ("group", "rest"):
            assert_near(sum(e.difference for e in coming), node.difference, scale=node.total + 1e-9, what=node.name)


@pytest.mark.slow
@pytest.mark.parametrize("networks", [strategies.dense_dags, strategies.conv_dags])
def test_enumeration(networks):
    """Layers in any order, also such that walks pass by on a skip; channels of vectors and of images."""

    @examples(20)
    @given(st.data())
    def check(data):
        dag = data.draw(networks())
        x, targets = draw_inputs(data, dag)
        nodes, known = solved(dag, x)
        sizes = dict(dag.addresses())
        count = data.draw(st.integers(1, min(3, len(sizes))))
        paths = data.draw(st.lists(st.sampled_from(sorted(sizes)), min_size=count, max_size=count, unique=True))
        network = bp.capture(dag.module(), tensor(dag, x))
        keep, sample = data.draw(st.sampled_from((1.0, 0.7, 0.3))), data.draw(st.integers(0, 1))
        layers = {}
        for path in paths:
            shape = nodes[sizes[path]].shape
            layers[sizes[path]] = path, np.arange(shape[0]).repeat(int(np.prod(shape[1:])))
        for game, walk in (
            (bp.StoppingGame(network), Stopping(nodes, known[sample])),
            (bp.RoutingGame(network, **ROUTING), Routing(nodes, known[sample], **ROUTING)),
        ):
            require(count_trajectories(walk, targets[sample]) <= 3000)
            graph = bp.circuit(game.play(tensor(dag, x), targets), paths, keep=keep, sample=sample)
            compare(graph, walk, targets[sample], layers)
            check_sums(graph)

    check()


@pytest.mark.parametrize("keep", [1.0, 0.6])
@pytest.mark.parametrize("name", ["fused", "spelled out"])
def test_attention(name, keep):
    """Tokens of a block with attention, a norm and a class token."""
    block, network, x, samples = drawn(name, 4, 0.0)
    paths = samples[0].paths
    tokens = [p for p in paths if len(network.find(p).shape) == 3 and network.find(p).name != "attend"]
    chosen = [p for p in tokens if p not in ("v", "qkv", "input")][::3]  # the walk crosses v inside the composite
    assert len(chosen) >= 2
    layers = {}
    for path in chosen:
        shape = samples[0].nodes[paths[path]].shape
        layers[paths[path]] = path, np.arange(shape[0]).repeat(shape[1])
    for game, walk, options in (
        (bp.StoppingGame(network), StoppingWalk, {}),
        (bp.RoutingGame(network, **ROUTING), RoutingWalk, ROUTING),
    ):
        graph = bp.circuit(game.play(block.shaped(x), CLASSES - 1), chosen[::-1], by="token", keep=keep)
        compare(graph, walk(samples[0].nodes, samples[0].values, **options), CLASSES - 1, layers)
        check_sums(graph)


@pytest.mark.parametrize("game, options", GAMES)
def test_sums_at_layers(game, options):
    """With `keep=1` a layer holds what the walk's marginal says, group by group: heads, tokens, channels, positions."""
    play = game(tiny_vit(), **options).play(picture(), 1)
    for names, by, axes in (
        (["blocks.0", "blocks.1"], "token", (2,)),
        (["blocks.1.fc1", "blocks.0", "embed"], "channel", None),
        (["blocks.1", "blocks.0"], "head", (2, 3)),
        (["embed"], "position", (1,)),
    ):
        graph = bp.circuit(play, names, by=by, keep=1)
        check_sums(graph)
        assert graph.left_out == 0
        for name in names:
            node = play.network.find(name)
            if by == "head":
                node = next(n for n in play.network.nodes if n.kind == "mix" and n.path.startswith(f"{name}"))
            marginal = play.marginal(node)[0]
            axes_here = axes or ((0,) if marginal.ndim == 2 else (1, 2))
            expected = marginal.sum([a - 1 for a in axes] if axes else list(axes_here)).flatten()
            found = torch.zeros(len(expected), dtype=torch.float64)
            for group in graph.nodes:
                if group.layer == name and group.index is not None:
                    found[group.index] = group.mass
            assert_near(found, expected, scale=1.0, what=name)


def test_pruning():
    """Fewer groups with a smaller share; what is kept carries it; what is not is counted."""
    torch.manual_seed(2)
    play = bp.RoutingGame(Picture().double().eval(), epsilon=0.01).play(torch.randn(1, 3, 8, 8).double(), 1)
    sizes = []
    for keep in (0.2, 0.5, 0.9, 1.0):
        graph = bp.circuit(play, ["first", "third"], keep=keep)
        check_sums(graph)
        sizes.append(sum(n.kind == "group" for n in graph.nodes))
        for layer in graph.layers:
            held = {n.kind: 0.0 for n in graph.nodes if n.layer == layer}
            for n in graph.nodes:
                held[n.kind] = held.get(n.kind, 0.0) + n.mass * (n.layer == layer)
            assert held["group"] >= keep * (held["group"] + held.get("rest", 0.0)) - 1e-12
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] and graph.layers == ("third", "first")
    assert graph.left_out == 0 and bp.circuit(play, ["first"], keep=0.2).left_out > 0


def graph_of_a_picture(**options):
    torch.manual_seed(2)
    play = bp.RoutingGame(Picture().double().eval(), epsilon=0.01).play(torch.randn(1, 3, 8, 8).double(), 1)
    return bp.circuit(play, ["first", "third"], **options)


def test_ways_out():
    """JSON, networkx, HTML and a figure hold the same graph."""
    graph = graph_of_a_picture()
    told = json.loads(graph.to_json())
    assert [n["name"] for n in told["nodes"]] == [n.name for n in graph.nodes]
    assert told["left_out"] == graph.left_out and told["edges"][0]["mass"] == graph.edges[0].mass
    net = graph.to_networkx()
    assert set(net.nodes) == {n.name for n in graph.nodes} and net.number_of_edges() == len(graph.edges)
    for edge in graph.edges:
        assert net.edges[edge.source, edge.target]["mass"] == edge.mass
    page = graph.html()
    assert page.count("<svg") == 1 and "script" not in page and "http" not in page and "third" in page
    drawing = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    assert sum(part.tag == "path" for part in drawing) == sum(e.target not in ("†", "constants") for e in graph.edges)
    assert page.count("<rect") == sum(n.kind in ("root", "group", "rest", "input") for n in graph.nodes)
    assert repr(graph).startswith("Circuit(") and "channels of third, first" in repr(graph)
    words = {text.get_text() for text in graph.plot().texts}
    assert {"third", "first", "output", "input"} <= words


@pytest.mark.parametrize("width", [3.3, 5.5, 10])
def test_picture(width):
    """Boxes and bands of every layer, and letters that can be read."""
    play = bp.RoutingGame(tiny_vit()).play(picture(), 1)
    for graph in (graph_of_a_picture(), bp.circuit(play, ["blocks.0", "blocks.1"], by="token", keep=1, sample=1)):
        figure = graph.plot(width=width)
        boxes = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
        assert len(boxes) == sum(n.kind in ("root", "group", "rest", "input") for n in graph.nodes)
        bands = [p for p in figure.axes[0].patches if isinstance(p, PathPatch)]
        assert len(bands) == sum(e.target not in ("†", "constants") for e in graph.edges)
        assert_legible(figure)
    with pytest.raises(bp.BackplayError, match="circuit draws what"):
        bp.view.circuit(play)


def test_without_networkx(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(bp.BackplayError, match="pip install networkx"):
        graph_of_a_picture().to_networkx()


def test_refusals():
    play = bp.RoutingGame(tiny_vit()).play(picture(), 1)
    for options, words in (
        ({"nodes": []}, "give a list with the names"),
        ({"nodes": None}, "give a list with the names"),
        ({"nodes": [3]}, "give a list with the names"),
        ({"nodes": ["blocks.0", "blocks.7"]}, "no node or module named 'blocks.7'"),
        ({"nodes": ["blocks.0", "blocks.0"]}, "are the same node"),
        ({"nodes": ["blocks.0.qkv"]}, "crossed inside attention"),
        ({"nodes": ["blocks.0"], "by": "neuron"}, "by='neuron' is out of range"),
        ({"nodes": ["blocks.0"], "keep": 0}, "keep=0 is out of range"),
        ({"nodes": ["blocks.0"], "keep": 1.5}, "keep=1.5 is out of range"),
        ({"nodes": ["blocks.0"], "sample": 2}, "sample 2 is out of range"),
        ({"nodes": ["head"], "by": "token"}, "has channels alone"),
    ):
        with pytest.raises(bp.BackplayError, match=words) as error:
            bp.circuit(play, **options)
        assert len(str(error.value).splitlines()) <= 2
    with pytest.raises(bp.BackplayError, match="circuit takes a play"):
        bp.circuit("play", ["blocks.0"])
