"""Pictures."""

from backplay.view.tokens import tokens

__all__ = ["tokens"]
