"""Errors of the operators."""

from __future__ import annotations

from glm5_ascend.errors import Glm5Error

_HINT = (
    "compare the call with the docstring of the function, which lists shapes, dtypes and layouts"
)


class ArgumentError(Glm5Error, ValueError):
    """An argument of an operator is not what its contract expects; the message says what is.

    Also a ``ValueError``. During tracing (``torch.compile``, ``torch.export``) torch wraps it in
    an error of its own, whose text holds ``ArgumentError('<the same message>')``.
    """

    def __init__(self, message: str, hint: str = _HINT) -> None:
        super().__init__(message, hint)
