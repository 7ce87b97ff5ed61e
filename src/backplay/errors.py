"""Every error of the package: each is a `BackplayError` and the built-in that a caller would expect."""


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


class ModelError(BackplayError, ValueError):
    """A model that cannot be loaded under the name that was given."""


class MissingLibraryError(BackplayError, ImportError):
    """An optional library that this needs and that is not installed."""
