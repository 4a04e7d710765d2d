"""Errors of the operators."""

from __future__ import annotations

from glm5_ascend.errors import Glm5Error


class ArgumentError(Glm5Error, ValueError):
    """An argument of an operator is not what its contract expects; the message says what is."""
