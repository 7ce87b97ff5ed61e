"""One capture for all models that are built alike: torch.export takes more time than most of what small tests ask."""

import torch

import backplay as bp

_NETWORKS = {}
_PLAIN = (bool, int, float, str, type(None), torch.dtype, type(lambda: None), type(torch.neg))


def alike(model, x):
    """The network of `model`, with its own weights, on the graph of the first model that was built like it.

    For tests that are not about capture: nothing about the model may decide its graph that `_words` does not hold.
    """
    words = _words(model), tuple(x.shape[1:]), x.dtype
    if words not in _NETWORKS:
        _NETWORKS[words] = bp.capture(model, x)
    return _NETWORKS[words].on(model)


def _words(model):
    """Classes, settings, shapes: all that a forward pass may read but its tensors; other attributes are refused."""
    modules = tuple((name, type(m), _settings(m)) for name, m in model.named_modules(remove_duplicate=False))
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return modules, tuple((name, tuple(t.shape), t.dtype) for name, t in tensors)


def _settings(module):
    assert not any(value for name, value in vars(module).items() if "hooks" in name and name.startswith("_")), module
    return tuple((name, _plain(value)) for name, value in sorted(vars(module).items()) if not name.startswith("_"))


def _plain(value):
    if isinstance(value, tuple | list | torch.Size):
        return type(value), tuple(_plain(each) for each in value)
    assert isinstance(value, _PLAIN), f"{value!r} could decide the graph; capture this model by itself"
    return value
