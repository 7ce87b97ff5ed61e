"""The captures of a model: one for each shape of its inputs, of which the last few are kept."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, ClassVar

from torch import nn

from backplay.errors import InputError
from backplay.network.arguments import Arguments, read_arguments
from backplay.network.capture import capture
from backplay.network.graph import Network

KEPT = 8  # captures of a model; graphs are small beside the weights that they refer to
_EXPLAINED = 2  # models whose captures are held although no game holds them

_lock = threading.RLock()


class Captures:
    """The networks of one model. A model is captured at first use, and once more for inputs that no capture fits.

    A capture serves as long as the graph would be the same: the model's tensors are read anew for every play, and a
    capture whose constants decide otherwise now (`Network.outgrown`) is dropped.
    """

    _held: ClassVar[deque[Captures]] = deque(maxlen=_EXPLAINED)

    def __init__(self, model: nn.Module | Network, description: str = "") -> None:
        self.source = model
        self.model = model.model if isinstance(model, Network) else model
        self.description = description  # the model's own `repr` at that time, where it is explained call by call
        self.networks: list[Network] = [model] if isinstance(model, Network) else []  # the latest last
        self.lock = threading.RLock()

    @staticmethod
    def held(model: nn.Module | Network) -> Captures:
        """The captures of a model that is explained call by call: those of the last few models are held.

        One whose modules are others than before is captured anew.
        """
        description = "" if isinstance(model, Network) else repr(model)
        with _lock:
            known = [c for c in Captures._held if c.source is model and c.description == description]
            captures = known[0] if known else Captures(model, description)
            if known:
                Captures._held.remove(captures)
            Captures._held.append(captures)
            return captures

    def read(self, x: Any, extra: Any = None) -> Arguments:
        """Forward arguments as a caller gives them."""
        return read_arguments(self.model, x, extra)

    def get(self, given: Arguments, not_this: Network | None = None) -> Network:
        """The network that plays these arguments; `not_this` is a capture that the model no longer agrees with."""
        if isinstance(self.source, Network):
            return self.source
        with self.lock:
            self.networks = [n for n in self.networks if n is not not_this and not n.outgrown()]
            fitting = [n for n in self.networks if n.misfit(given) is None]
            unbatched = [n for n in self.networks if n.signature.unbatched(given)]
            if unbatched and not fitting:
                raise InputError(str(unbatched[0].misfit(given)))
            chosen = fitting[-1] if fitting else capture(self.source, given)
            if not self.networks or self.networks[-1] is not chosen:
                self._put_last(chosen)
            return chosen

    def _put_last(self, chosen: Network) -> None:
        """What was prepared for other shapes is dropped: it is made of the same weights, and as large as they are."""
        self.networks = [n for n in self.networks if n is not chosen][-(KEPT - 1) :]
        for network in self.networks:
            network.unprepare()
        self.networks.append(chosen)

    def prepare(self, x: Any, extra: Any = None) -> tuple[Network, Arguments]:
        """The network that plays an input, and its forward arguments, checked."""
        given = self.read(x, extra)
        network = self.get(given)
        return network, network.check(given)

    def latest(self) -> Network | None:
        """The capture that was used last, if there is one."""
        return self.networks[-1] if self.networks else None
