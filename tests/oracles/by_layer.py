"""Walks of games whose modes differ from layer to layer: every node is played by the walk of its own modes.

`options` are those of the game, `layers` a list of (step, keywords): at that step of the `Dag` these hold instead.
Which pattern means which step is the tests' business; here there are no patterns.
"""

from .dag import _value
from .moded import Known, ModedRouting, ModedStopping
from .walks import Routing

PLAIN = ("alpha", "beta", "epsilon", "tau", "residual", "bias", "empty_stream")


class LayeredKnown(Known):
    """What players know where each node has modes of its own; moments and forward passes run through all of them."""

    def __init__(self, nodes, x, modes_of):
        self.modes_of = modes_of
        super().__init__(nodes, x, modes_of(0))

    def forward(self, node, operands, x):
        self.modes = self.modes_of(len(self.values))
        if node.kind == "affine" and self.modes.get("tau_forward") and self.modes["tau"] == 1:
            return _value(node, operands, x)
        return super().forward(node, operands, x)


def layered(base, plain):
    """A class of walks whose keywords `plain` are set anew for every state."""

    class Layered(base):
        def __init__(self, nodes, values, modes_of):
            super().__init__(nodes, values)
            self.modes_of = modes_of

        def transitions(self, state):
            modes = {**DEFAULTS, **self.modes_of(state[0])}
            for name in plain:
                setattr(self, name, modes[name])
            return super().transitions(state)

    return Layered


DEFAULTS = {
    "alpha": 2.0,
    "beta": 1.0,
    "epsilon": 0.5,
    "tau": 1.0,
    "residual": "uniform",
    "bias": "ignore",
    "empty_stream": "cemetery",
}
LayeredRouting = layered(Routing, PLAIN)
LayeredModedRouting = layered(ModedRouting, PLAIN)
LayeredModedStopping = layered(ModedStopping, ())


def modes_by_step(options, layers, extra=lambda found: {}):
    """A function from the number of a step to the modes that hold there."""

    def modes_of(step):
        found = dict(options)
        for where, keywords in layers:
            if where == step:
                found |= keywords
        found |= extra(found)
        return {name: value for name, value in found.items() if value is not None}  # softplus=None: no Softplus

    return modes_of


def routing(nodes, values, options, layers):
    """The walk of the Routing Game with kernels of their own; players see the real values."""
    return LayeredRouting(nodes, values, modes_by_step(options, layers))


def moded_routing(nodes, x, options, layers):
    """The same where gates show other values: affine nodes, ReLUs, sums, wires."""
    modes_of = modes_by_step(
        {"tau": 1.0, "epsilon": 0.5, **options}, layers, lambda m: {"forward": m.get("risk_forward")}
    )
    known = LayeredKnown(nodes, x, modes_of)
    return LayeredModedRouting(nodes, known.values, modes_of).see(known)


def moded_stopping(nodes, x, options, layers):
    """The Stopping Game; with risk it computes on what gates show."""
    modes_of = modes_by_step(options, layers, lambda m: {"forward": bool(m.get("risk"))})
    known = LayeredKnown(nodes, x, modes_of)
    return LayeredModedStopping(nodes, known.values, modes_of).see(known)
