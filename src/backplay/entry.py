"""The door to the package: every public call passes through here.

Behind it autocast, gradients and inference mode are off, whatever the caller has switched on (S38), and what no check
foresaw leaves as a `BackplayError` that names the node it came from.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

from backplay.errors import BackplayError, UnforeseenError, first_line

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_inside = threading.local()
_PLACE = "backplay_place"
_LET_GO = (BackplayError, Warning, MemoryError, torch.OutOfMemoryError)


class Located(Protocol):
    """What has a place in the model: a node."""

    @property
    def operator(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...


class at:
    """While a node is worked on: an error remembers the innermost one that it passed."""

    __slots__ = ("node",)

    def __init__(self, node: Located) -> None:
        self.node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and not hasattr(error, _PLACE):
            setattr(error, _PLACE, place(self.node))


def place(node: Located) -> str:
    """Where a node stands, in words."""
    named = f" (node {node.name!r})" if node.name and node.name not in (node.path, node.operator) else ""
    inside = f"in module {node.path!r}" if node.path else "in the model's own forward"
    return f"{node.operator or 'the input'} {inside}{named}"


def current_call() -> object | None:
    """The public call that this thread is in, something else for every call; None outside of all of them."""
    return getattr(_inside, "call", None)


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """A public function: tensors are plain numbers inside, and errors that no check foresaw are `UnforeseenError`s.

    A part that needs derivatives switches them on for itself (`torch.enable_grad`).
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        if current_call() is not None:  # the outermost call is the one that the caller knows
            with without_gradients():
                return function(*args, **kwargs)
        _inside.call = object()
        try:
            with _without_autocast(), without_gradients():
                return function(*args, **kwargs)
        except _LET_GO:
            raise
        except Exception as error:
            trace = error.__traceback__
            if isinstance(error, TypeError) and trace is not None and trace.tb_next is None:
                raise  # Python's own: called with arguments that the signature does not have
            raise UnforeseenError(_unforeseen(function.__name__, error)) from error
        finally:
            _inside.call = None

    return guarded


def entries(cls: C) -> C:
    """All public methods and properties of a class as entries."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            setattr(cls, name, entry(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(entry(member.fget), member.fset, member.fdel, member.__doc__))
        elif isinstance(member, functools.cached_property):
            guarded: Any = functools.cached_property(entry(member.func))
            guarded.__set_name__(cls, name)
            setattr(cls, name, guarded)
    return cls


def _unforeseen(called: str, error: Exception) -> str:
    where = getattr(error, _PLACE, None)
    return (
        f"{called} failed{f' at {where}' if where else ''}: {first_line(error)}\n"
        "No check foresaw this: try bp.capture(model, x).nodes and play.health(), and report it with the model."
    )


class without_gradients:
    """No autograd graph, and new tensors are ordinary ones even if the caller is in inference mode."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before: list[Any] = []
        if torch.is_inference_mode_enabled():
            self._before.append(torch.inference_mode(False))
        if self._before or torch.is_grad_enabled():  # leaving inference mode switches gradients on
            self._before.append(torch.no_grad())
        for context in self._before:
            context.__enter__()

    def __exit__(self, *error: object) -> None:
        for context in reversed(self._before):
            context.__exit__(*error)


@contextmanager
def _without_autocast() -> Generator[None]:
    """Games and methods compute in the precision of their input, whatever their caller has switched on (S38)."""
    on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not on:
        yield
        return
    contexts: list[Any] = [torch.autocast(kind, enabled=False) for kind in on]
    for context in contexts:
        context.__enter__()
    try:
        yield
    finally:
        for context in reversed(contexts):
            context.__exit__(None, None, None)
