"""Networks compared with each other: do different seeds and lengths of training calculate alike?

Plainly, and up to the order of hidden channels (sec:model-distance-invariances).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import InputError, InputTypeError
from backplay.network import Model, Network, read_model
from backplay.pictured import Pictured
from backplay.sanity.walks import (
    Compared,
    Names,
    Unchanged,
    aim_of,
    captured,
    check_batch,
    network_of,
    read_names,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class NetworkDistances(Pictured):
    """All pairs of some networks of one architecture on some inputs."""

    names: tuple[str, ...]
    distance: Mapping[str, Tensor]  # game -> (n, n, B) H
    permuted: Mapping[str, Tensor]  # game -> (n, n, B) H_perm, where it was asked for

    def plot(self, **options: Any) -> Figure:
        """Means over the inputs as matrices, a panel for each game; there are no options."""
        from backplay.view.networks import networks
        from backplay.view.plot import check_options

        check_options(self, options, ())
        return networks(self.names, self.distance, self.permuted)


@entry
def network_distances(
    networks: Mapping[str, Model],
    x: Tensor,
    target: Any = None,
    *,
    games: Names = ("sg", "rg"),
    permuted: bool = False,
) -> NetworkDistances:
    """Compare networks of one architecture on the same inputs; without a target, on the class that the first one finds.

    >>> found = bp.sanity.network_distances({"learned": model, "random": bp.randomise(model)}, x)
    >>> found.distance["sg"].mean(-1)

    With `permuted` also up to a renaming of hidden channels: what is left then does not depend on their order.
    """
    games, _ = read_names(games, ())
    if not isinstance(networks, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputTypeError(
            f'network_distances takes networks by names, {{"a": model, "b": other}}; got {type(networks).__name__}.'
        )
    check_batch(x, "network_distances")
    if len(networks) < 2:
        raise InputError(f"network_distances compares two networks or more; got {len(networks)}.")
    first = network_of(next(iter(networks.values())), x, "network_distances")
    aim = aim_of(first, x, target)
    all_networks = [first, *(twin_of(first, m, x) for m in list(networks.values())[1:])]
    readouts = ["distance", *(["permuted"] if permuted else [])]
    found = {
        name: {game: torch.zeros(len(networks), len(networks), len(x)).double() for game in games} for name in readouts
    }
    for i, network in enumerate(all_networks):
        own = Unchanged(network, x, aim)
        for j in range(i + 1, len(networks)):
            met = Compared(**own.compared_with(all_networks[j], x, games, readouts[1:]))
            for name in readouts:
                for game, values in met.readout(name).items():
                    found[name][game][i, j] = found[name][game][j, i] = values
    return NetworkDistances(names=tuple(networks), distance=found["distance"], permuted=found.get("permuted", {}))


def twin_of(network: Network, other: Model, x: Tensor) -> Network:
    """Another model of the same architecture on the same graph, where it has one."""
    found = read_model(other, "network_distances")
    module = found.model if isinstance(found, Network) else found
    alike = [(repr(m), [(n, p.shape) for n, p in m.named_parameters()]) for m in (network.model, module)]
    return captured(network, module, x) if alike[0] == alike[1] else network_of(other, x, "network_distances")
