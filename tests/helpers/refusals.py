"""Refusals: a `BackplayError` of a built-in kind, whose message names what it should."""

import pytest

import backplay as bp

BUILT_IN = (ValueError, TypeError, RuntimeError)


def refused(action, *words, kind=BUILT_IN):
    """`action` raises a BackplayError of this built-in kind whose message contains every word."""
    with pytest.raises(bp.BackplayError) as caught:
        action()
    assert isinstance(caught.value, kind), type(caught.value).__mro__
    message = str(caught.value)
    for word in words:
        assert str(word).lower() in message.lower(), f"{word!r} is missing in: {message}"
    assert len(message) > 20 and "Traceback" not in message
    return message
