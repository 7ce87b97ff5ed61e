"""Pictures of trajectories; matplotlib is imported when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError, UnsupportedError
from backplay.network import Node

if TYPE_CHECKING:
    from backplay.trajectory.sampling import Trajectories


def plot_trajectories(drawn: Trajectories, sample: int, paths: int, axes: Any) -> Any:
    """Left: paths over the image. Right: how many trajectories come to each node."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UnsupportedError("plots need matplotlib: pip install 'backplay[view]'.") from error
    if not 0 <= sample < len(drawn.play.value):
        raise InputError(f"sample {sample} is out of range: the play holds samples 0 to {len(drawn.play.value) - 1}.")
    if axes is None:
        _, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), width_ratios=(1, 1.4))
    try:
        image, flow = axes
    except (TypeError, ValueError) as error:
        raise InputTypeError("ax takes two axes, for paths and for flow: pyplot.subplots(1, 2)[1] for one.") from error
    _draw_paths(drawn, sample, paths, image)
    _draw_flow(drawn, sample, flow)
    return image.figure


def _draw_paths(drawn: Trajectories, sample: int, paths: int, axes: Any) -> None:
    x = drawn.play.x[sample].detach().double().cpu()
    if x.ndim != 3:
        axes.set_title("input elements")
        axes.bar(range(x.numel()), drawn.frequencies("input")[sample].flatten().tolist())
        return
    shown = x - x.amin()
    shown = (shown / shown.amax().clamp(min=1e-12)).movedim(0, -1)
    axes.imshow((shown if x.shape[0] == 3 else shown.mean(-1)).numpy(), cmap="gray", alpha=0.6)
    chosen = (drawn.ends[sample] == 0).nonzero()[:paths, 0]
    chosen = chosen if len(chosen) else torch.arange(min(paths, drawn.n))
    steps = [_places(drawn, node, sample, chosen, x.shape[1:]) for node in drawn.play.network.nodes]
    known = torch.stack([s for s in steps if s is not None])  # (nodes, paths, 2)
    for k in range(known.shape[1]):
        line = known[:, k][~known[:, k].isnan().any(1)]
        axes.plot(line[:, 1].tolist(), line[:, 0].tolist(), lw=0.6, alpha=0.6)
    here = known[0][~known[0].isnan().any(1)]
    axes.scatter(here[:, 1].tolist(), here[:, 0].tolist(), s=9, c="crimson", zorder=3)
    axes.set_axis_off()
    axes.set_title(f"{known.shape[1]} trajectories")


def _places(drawn: Trajectories, node: Node, sample: int, chosen: Tensor, size: torch.Size) -> Tensor | None:
    """(paths, 2) row and column in the image of what a node's channels-first maps hold; NaN where a path is absent."""
    if node.name not in drawn.states or len(node.shape) != 4 or node.layout.dim != 0:
        return None
    height, width = node.shape[2:]
    if height * size[1] != width * size[0]:  # heads and tokens, or pooled out of shape: no picture
        return None
    state = drawn.states[node.name][sample, chosen].cpu()
    rows = (state // width % height + 0.5) * size[0] / height - 0.5
    columns = (state % width + 0.5) * size[1] / width - 0.5
    return torch.where((state >= 0)[:, None], torch.stack([rows, columns], 1), torch.nan)


def _draw_flow(drawn: Trajectories, sample: int, axes: Any) -> None:
    names = [n.name for n in reversed(drawn.play.network.nodes) if n.name in drawn.states]
    plus, minus = (
        [float((drawn.players[name][sample] == player).double().mean()) for name in names] for player in (1, -1)
    )
    places = range(len(names))
    axes.bar(places, plus, color="tab:red", label="player +")
    axes.bar(places, minus, bottom=plus, color="tab:blue", label="player −")
    axes.set_xticks(list(places), names, rotation=90, fontsize=6)
    axes.set_ylabel("share of trajectories")
    axes.set_title("flow over the layers")
    axes.legend()
