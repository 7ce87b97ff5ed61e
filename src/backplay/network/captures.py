"""The captures of a model: one for each shape of its inputs, of which the last few are kept."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, ClassVar

from torch import nn

from backplay.errors import InputError
from backplay.network.arguments import Arguments, read
from backplay.network.capture import capture
from backplay.network.graph import Network

KEPT = 8  # captures of a model; graphs are small beside the weights that they refer to
_EXPLAINED = 2  # models whose captures are held although no game holds them

_lock = threading.RLock()


class Captures:
    """The networks of one model. A model is captured at first use, and once more for inputs that no capture fits."""

    _held: ClassVar[deque[Captures]] = deque(maxlen=_EXPLAINED)

    def __init__(self, model: nn.Module | Network) -> None:
        self.source = model
        self.model = model.model if isinstance(model, Network) else model
        self.networks: list[Network] = [model] if isinstance(model, Network) else []  # the latest last
        self.words = ""  # the model as it described itself when it was explained
        self.lock = threading.RLock()

    @staticmethod
    def held(model: nn.Module | Network) -> Captures:
        """The captures of a model that is explained call by call: those of the last few models are held.

        One whose modules are others than before is captured anew.
        """
        words = "" if isinstance(model, Network) else repr(model)
        with _lock:
            found = next((c for c in Captures._held if c.source is model and c.words == words), None)
            if found is None:
                found = Captures(model)
                found.words = words
            else:
                Captures._held.remove(found)
            Captures._held.append(found)
            return found

    def read(self, x: Any, extra: Any = None) -> Arguments:
        """Forward arguments as a caller gives them."""
        return read(self.model, x, extra)

    def get(self, given: Arguments, not_this: Network | None = None) -> Network:
        """The network that plays these arguments; `not_this` is a capture that the model has moved on from."""
        if isinstance(self.source, Network):
            return self.source
        with self.lock:
            self.networks = [n for n in self.networks if n is not not_this and not n.outgrown()]
            fitting = [n for n in self.networks if n.misfit(given) is None]
            if not fitting and any(n.signature.unbatched(given) for n in self.networks):
                raise InputError(str(next(n for n in self.networks if n.signature.unbatched(given)).misfit(given)))
            chosen = fitting[-1] if fitting else capture(self.source, given)
            if not self.networks or self.networks[-1] is not chosen:
                self._latest(chosen)
            return chosen

    def _latest(self, chosen: Network) -> None:
        """What was prepared for other shapes goes: it is made of the same weights, and as large as they are."""
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
        """A capture that is at hand, the one that was used last."""
        return self.networks[-1] if self.networks else None
