"""What an operator of the vendor, or a kernel, takes: a table that is checked before a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from glm5_ascend.ops.errors import Declined

T = TypeVar("T")
HINT = "backend 'auto' takes another backend for these arguments, 'reference' takes them all"


class Limit(NamedTuple, Generic[T]):
    """``takes`` completes the sentence "<operator> takes ..."; ``holds`` tells from the call."""

    takes: str
    holds: Callable[[T], bool]


def broken(operator: str, limits: Iterable[Limit[T]], call: T) -> str | None:
    """Why ``operator`` does not take ``call``: the first limit that does not hold, or None."""
    for limit in limits:
        if not limit.holds(call):
            return f"{operator} takes {limit.takes}"
    return None


def enforce(operator: str, limits: Iterable[Limit[T]], call: T) -> None:
    """Refuse ``call`` where a limit does not hold.

    Raises:
        Declined: the message names the first one.
    """
    if reason := broken(operator, limits, call):
        raise Declined(reason, HINT)
