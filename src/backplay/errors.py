"""Every error of the package: each is a `BackplayError` and the built-in that a caller would expect.

Below them: how names, errors, tensors and lists are spoken of in a line, in errors and in reprs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from torch import Tensor


class BackplayError(Exception):
    """Base of all errors; the message says what was given, what is accepted and what to do next."""


class CaptureError(BackplayError, RuntimeError):
    """The model cannot be turned into a game graph (S1)."""


class InputError(BackplayError, ValueError):
    """An input, a target or a node name that does not fit the captured network."""


class InputTypeError(BackplayError, TypeError):
    """An input of the wrong type or dtype."""


class KeywordError(BackplayError, ValueError):
    """A keyword of a game outside its range."""


class NonFiniteError(BackplayError, ValueError):
    """NaN or Inf in the input or in the weights (S38)."""


class UnsupportedError(BackplayError, RuntimeError):
    """A question that this play, in its modes, has no answer to."""


class FileError(BackplayError, OSError):
    """A path that cannot be read as a file: a folder, a device, no permission."""


class MissingFileError(FileError, FileNotFoundError):
    """A path where nothing is."""


class PhotographError(BackplayError, ValueError):
    """A file that is no picture, or one that cannot be decoded."""


class ModelError(BackplayError, ValueError):
    """A model that cannot be loaded under the name that was given."""


class WeightsError(BackplayError, ValueError):
    """A file of weights that cannot be read safely, or that does not fit the model."""


class MissingLibraryError(BackplayError, ImportError):
    """An optional library that this needs and that is not installed."""


class UnforeseenError(BackplayError, RuntimeError):
    """What no check foresaw: the message names the node and its module, the original error is the cause."""


_MANY = 6  # entries of a list that are shown
_ALIKE = 0.6  # of two names, as difflib measures it; 1 is the same one
_AS_NEAR = 0.05  # below the nearest name that others may lie which are named beside it
_SHORT = 100  # letters of a list of names that a message still has room for


def near_names(name: object, known: Iterable[str], alike: float = _ALIKE) -> list[str]:
    """Up to three of the known names that a name may be a slip for, the nearest first; capitals count for nothing."""
    wanted, folded = str(name).casefold(), {each.casefold(): each for each in known}
    close = get_close_matches(wanted, folded, n=3, cutoff=alike)
    shares = {each: SequenceMatcher(None, each, wanted).ratio() for each in close}
    return [folded[each] for each in close if shares[each] >= shares[close[0]] - _AS_NEAR]


def suggestion(name: object, known: Iterable[str]) -> str:
    """` (did you mean …?)` for a name that is not among the known ones, or nothing."""
    close = near_names(name, known)
    return f" (did you mean {', '.join(close)}?)" if close else ""


def instead(name: object, known: Iterable[str], there: str = "there are", where: str = "") -> str:
    """What follows a name that is not among the known ones: those near it, and all of them behind `there`.

    Many names do not stand in a message: then it says `where` all are listed or, without a `where`, the first of them.
    """
    names = list(known)
    close, short = suggestion(name, names), len(", ".join(names)) <= _SHORT
    if short:
        return f"{close}: {there} {', '.join(names) or 'none'}"
    if where:
        return f"{close}; {where}"
    return close or f": {there} {', '.join(names[:_MANY])}, … {len(names)} in all"


_LONGEST = 240  # letters of another library's message


def first_line(error: BaseException) -> str:
    """What an error says, in one line without colours."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"


# of a node that no walk and no relevance reaches, behind its name
NEVER_WALKED = "never walked on (an oracle or a detached value); name another node"


def tensor_words(tensor: Tensor) -> str:
    """Shape and dtype: `(2, 3, 8, 8) float32`."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def list_words(values: Sequence[Any]) -> str:
    """A list, of a long one its beginning and its length."""
    if len(values) <= _MANY:
        return f"[{', '.join(map(str, values))}]"
    return f"[{', '.join(map(str, values[:_MANY]))}, … {len(values)} in all]"


def scale_words(log_scale: Tensor) -> str:
    """The range of logarithmic scales over a batch."""
    if not log_scale.numel():
        return "of nothing"
    low, high = float(log_scale.min()), float(log_scale.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
