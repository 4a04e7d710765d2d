"""Errors of the operators."""

from __future__ import annotations

from glm5_ascend.errors import Glm5Error

_HINT = (
    "compare the call with the docstring of the function, which lists shapes, dtypes and layouts"
)


class ArgumentError(Glm5Error, ValueError):
    """An argument of an operator is not what its contract expects; the message says what is.

    Also a ``ValueError``. ``torch.compile`` passes it on (tracing.py).
    """

    def __init__(self, message: str, hint: str = _HINT) -> None:
        super().__init__(message, hint)


class Declined(ArgumentError):
    """A backend does not take arguments that the operator's contract allows."""
