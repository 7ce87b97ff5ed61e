"""One capture for models that are built alike: torch.export takes more time than most of what small tests ask.

`Shared`, which `conftest.py` puts in place, hands on graphs that nobody uses any more; `alike` gives one graph to all.
"""

import dataclasses
import functools
import importlib
import weakref
from collections import OrderedDict

import torch

import backplay as bp

_NETWORKS = {}
_PLAIN = (bool, int, float, str, type, type(None), torch.dtype, torch.device, type(lambda: None), type(torch.neg))
_OF_ALL = frozenset(vars(torch.nn.Module()))  # what every module has: its parts, tensors and hooks
_KEPT = 128  # ways of being built whose graphs are kept

CAPTURE = importlib.import_module("backplay.network.capture")
_followed = CAPTURE._compared


def alike(model, x):
    """The network of `model`, with its own weights, on the graph of the first model that was built like it.

    For tests that are not about capture: nothing about the model may decide its graph that `_words` does not hold.
    """
    words = _words(model), tuple(x.shape[1:]), x.dtype
    if words not in _NETWORKS:
        _NETWORKS[words] = bp.capture(model, x)
    return _NETWORKS[words].on(model)


class Shared:
    """Stands in for the step of `bp.capture` that follows a model and compares the network with it.

    A model gets a graph that was made of one built like it, on its own weights, and the network is compared with the
    model as every capture is. A graph that is still in use is not given again: two models that are looked at together
    have two graphs, as they would have without this.
    """

    def __init__(self):
        self._graphs = OrderedDict()  # by how models are built: pairs of a graph and a reference that its users hold

    def __call__(self, model, arguments):
        how = _how(model, arguments)
        if how is None:
            return _followed(model, arguments)
        known = self._graphs.setdefault(how, [])
        self._graphs.move_to_end(how)
        for k, (graph, used) in enumerate(known):
            if used() is None and not (network := graph.on(model)).outgrown():
                used = _use(network, arguments)
                with torch.inference_mode(False), torch.no_grad():
                    network.example_logits = network.run(arguments)
                CAPTURE.check_sound(network, arguments)
                known[k] = graph, used
                return network
        network = _followed(model, arguments)
        known.append((network.on(None), _use(network, arguments)))
        if len(self._graphs) > _KEPT:
            self._graphs.popitem(last=False)
        return network


def _use(network, arguments):
    """The network's own example; a reference that is dead once it and all that `Network.on` makes of it are gone."""
    network.example = arguments
    without = arguments.with_values(dict.fromkeys(arguments.explained))
    network.signature = dataclasses.replace(network.signature, example=without)
    return weakref.ref(network.signature)


def _how(model, arguments):
    """What decides a graph: how the model is built, and what is given; None where things cannot be compared."""
    try:
        given = tuple((key, arguments.names[key], key in arguments.explained, _kind(v)) for key, v in arguments.items())
        alone = len(arguments) == 1 and given[0][2]
        # of a lone input every number of samples fits; beside other things it tells what comes by samples
        batch = None if alone else arguments.batch
        return _words(model), given, batch, arguments.form, torch.get_default_dtype()
    except Unplain:
        return None


def _kind(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape[1:]), value.stride(), value.dtype, value.device, value.shape[:1] == (1,)
    return _plain(value)


class Unplain(AssertionError):
    """Something about a model could decide its graph and cannot be compared."""


def _words(model):
    """Classes, settings, shapes: all that a forward pass may read but its tensors; other attributes are refused."""
    modules = list(model.named_modules(remove_duplicate=False))
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return (
        tuple((name, type(m), type(m).forward, _settings(m)) for name, m in modules),
        tuple((name, type(t), tuple(t.shape), t.stride(), t.dtype, t.device) for name, t in tensors),
        _shared(modules),
        _shared(tensors),
    )


def _shared(named):
    """For each of the things the place of the first that is the same thing."""
    first = {}
    return tuple(first.setdefault(id(each), k) for k, (_, each) in enumerate(named))


def _settings(module):
    if any(value for name, value in vars(module).items() if "hooks" in name and name.startswith("_")):
        raise Unplain(f"{module} has hooks; capture it by itself")
    own = [item for item in sorted(vars(module).items()) if item[0] == "training" or item[0] not in _OF_ALL]
    return tuple((name, _plain(value)) for name, value in own)


def _plain(value):
    if isinstance(value, tuple | list | torch.Size):
        return type(value), tuple(_plain(each) for each in value)
    if isinstance(value, dict):
        return type(value), tuple((_plain(key), _plain(each)) for key, each in value.items())
    if isinstance(value, set | frozenset):
        return type(value), frozenset(_plain(each) for each in value)
    if type(value).__name__.endswith("Config"):  # of a transformers model
        return type(value), _plain(vars(value))
    if isinstance(value, functools.partial):
        return type(value), _plain((value.func, value.args, value.keywords))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), _plain(vars(value))
    if not isinstance(value, _PLAIN):
        raise Unplain(f"{value!r} could decide the graph; capture this model by itself")
    return type(value), value
