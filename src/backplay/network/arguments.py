"""Forward arguments as callers give them, and the part that each of them plays."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from backplay.errors import InputError, InputTypeError, NonFiniteError
from backplay.network.indicator import all_finite
from backplay.network.precision import FLOATING, as_played

Inputs = Tensor | tuple[Any, ...] | Mapping[Any, Any]
Key = int | str  # a position or a keyword of `forward`


@dataclass(frozen=True)
class Arguments(Mapping[Key, Any]):
    """Arguments of one call of `forward`: which are explained and which are held fixed is decided here, once."""

    entries: dict[Key, Any]
    explained: tuple[Key, ...]
    names: dict[Key, str]  # of forward's parameters
    form: type  # what the caller gave: Tensor, tuple or dict
    said: str = ""  # what `described` says of an example that was made of the caller's own

    def __getitem__(self, key: Key) -> Any:
        return self.entries[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def xs(self) -> tuple[Tensor, ...]:
        """The explained tensors."""
        return tuple(self.entries[key] for key in self.explained)

    @property
    def x(self) -> Tensor:
        """The explained tensor, the first of several."""
        return self.entries[self.explained[0]]

    @property
    def batch(self) -> int:
        """How many samples there are."""
        return self.x.shape[0]

    @property
    def fixed(self) -> dict[Key, Any]:
        """What is not explained."""
        return {key: value for key, value in self.entries.items() if key not in self.explained}

    def label(self, key: Key) -> str:
        """What an explained input is called: by its parameter where there are several."""
        return "input" if len(self.explained) == 1 else self.names[key]

    def described(self) -> str:
        """The caller's tensors with their shapes, for messages: `input (2, 3, 8, 8) torch.float32`."""
        if self.said:
            return self.said
        named = {k: self.label(k) if k == 0 else self.names[k] for k in self}
        tensors = {named[k]: v for k, v in self.items() if isinstance(v, Tensor)}
        return ", ".join(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors.items())

    def with_values(self, values: Mapping[Key, Any]) -> Arguments:
        """The same call with some values replaced."""
        return replace(self, entries={k: values.get(k, v) for k, v in self.entries.items()})

    def in_order(self, other: Arguments) -> Arguments:
        """The same call with its keywords in the order of another one."""
        return replace(self, entries={k: self[k] for k in other}, explained=other.explained)

    def at(self, xs: Sequence[Tensor]) -> Arguments:
        """The same call on other explained tensors."""
        return self.with_values(dict(zip(self.explained, xs, strict=True)))

    def pack(self, tensors: Sequence[Tensor]) -> Any:
        """One tensor for each explained input in the form in which the inputs were given; of one, itself."""
        if len(self.explained) == 1:
            return tensors[0]
        return tuple(tensors) if self.form is tuple else dict(zip(self.explained, tensors, strict=True))

    def played_in(self, precision: torch.dtype) -> Arguments:
        """Explained tensors in the dtype that a model of this precision is played in (S38)."""
        return self.at([as_played(self[key], precision, self.label(key)) for key in self.explained])

    def check_finite(self) -> None:
        """No map is made of NaN or Inf (S38)."""
        for key in self.explained:
            if not all_finite(self[key]):
                bad, name = int((~torch.isfinite(self[key])).sum()), self.label(key)
                raise NonFiniteError(
                    f"the {name} holds {bad} NaN or infinite entries; clean it first, no map is made of them."
                )

    def mask(self, positions: int) -> Tensor | None:
        """(B, T) the attention mask that says which of `positions` places are padding, if there is one."""
        known = {self.names[key]: value for key, value in self.fixed.items() if isinstance(value, Tensor)}
        decodes = any(name.startswith("decoder_") for name in self.names.values())
        mask = known.get("decoder_attention_mask" if decodes else "attention_mask")
        return mask if mask is not None and mask.shape == (self.batch, positions) else None


def read_arguments(model: nn.Module, x: Any, extra: Any = None) -> Arguments:
    """The arguments of a call: `x` is a tensor, a tuple or a dict of keywords, `extra` is held fixed.

    Floating-point tensors of `x` are explained, but for masks; `extra` follows `x` by position, or is a dict.
    """
    if isinstance(x, Arguments):
        return x
    given = _by_key(x)
    values = given | _following(given, extra)
    names = _names(model, values)
    alone = not isinstance(x, (tuple, Mapping))
    explained = tuple(k for k, v in given.items() if alone or (_floating(v) and "mask" not in names[k]))
    form = tuple if isinstance(x, tuple) else dict if isinstance(x, Mapping) else Tensor
    arguments = Arguments(values, explained, names, form)
    _check(arguments)
    return arguments


def _by_key(x: Any) -> dict[Key, Any]:
    if isinstance(x, Mapping):
        return dict(x)  # pyright: ignore[reportUnknownArgumentType]
    return dict(enumerate(x)) if isinstance(x, tuple) else {0: x}  # pyright: ignore[reportUnknownArgumentType]


def _following(given: dict[Key, Any], extra: Any) -> dict[Key, Any]:
    """What is held fixed, by position behind `given` or by keyword."""
    if extra is None:
        return {}
    if isinstance(extra, Mapping):
        twice = sorted(str(k) for k in extra if k in given)  # pyright: ignore[reportUnknownVariableType]
        if twice:
            raise InputError(f"{twice[0]!r} is given twice, as an input and in additional_forward_args; give it once.")
        return dict(extra)  # pyright: ignore[reportUnknownArgumentType]
    if any(isinstance(k, str) for k in given):
        raise InputError(
            "additional_forward_args by position goes with a tensor or a tuple; beside a dict of keywords give a dict "
            "of those to hold fixed."
        )
    rest: tuple[Any, ...] = extra if isinstance(extra, tuple) else (extra,)
    return dict(enumerate(rest, len(given)))


def _names(model: nn.Module, keys: Mapping[Key, Any]) -> dict[Key, str]:
    """The name of each argument's parameter in `forward`."""
    kinds = inspect.Parameter
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), "input")

    def name(key: Key) -> str:
        if isinstance(key, str):
            return key
        return plain[key] if key < len(plain) else f"{rest}_{key - len(plain)}"

    return {key: name(key) for key in keys}


def _check(arguments: Arguments) -> None:
    """Explained tensors hold the same samples; a list or dict of tensors is no argument."""
    if not arguments.explained:
        names = sorted(arguments.names.values())
        raise InputError(
            f"none of the inputs {names} is a floating-point tensor to explain (masks are held fixed); give "
            "embeddings instead of token ids, e.g. {'inputs_embeds': …}."
        )
    for key, value in arguments.fixed.items():
        if not isinstance(value, Tensor) and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            raise InputTypeError(
                f"{arguments.names[key]!r} is a {type(value).__name__} of tensors; give each of them as an argument."
            )
    for key in arguments.explained:
        check_tensor(arguments[key], arguments.label(key))
    sizes = {arguments.names[key]: arguments[key].shape[0] for key in arguments.explained}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(
            f"the explained inputs hold different numbers of samples ({counts}); give as many of each, or hold one "
            "fixed in additional_forward_args."
        )


def check_tensor(x: Any, name: str = "input") -> None:
    """What is explained: a floating-point tensor with a batch dimension."""
    if not isinstance(x, Tensor):
        raise InputTypeError(
            f"the input must be a torch.Tensor, a tuple of tensors or a dict of forward keywords, got "
            f"{type(x).__name__}."
        )
    if x.dtype not in FLOATING:
        raise InputTypeError(
            f"the {name} must be of floating point (float32 or float64, or half precision where the model is), got "
            f"{x.dtype}; give token ids as embeddings ({{'inputs_embeds': …}})."
        )
    if x.ndim < 2:
        raise InputError(
            f"the {name} needs a batch dimension, got shape {tuple(x.shape)}; give x[None] for a single sample."
        )
    if x.shape[0] == 0:
        raise InputError(f"the {name} needs at least one sample in its batch, got shape {tuple(x.shape)}.")


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
