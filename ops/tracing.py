"""Refused arguments while torch.compile traces.

Dynamo evaluates fake kernels and turns what they raise into an error of its own. Only its
``Unsupported`` passes: with ``fullgraph=True`` to the caller; otherwise the operator runs outside
of the graph, where the kernel refuses the same arguments.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from glm5_ascend.ops.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])


def passes_errors(fake: F) -> F:
    """``fake`` whose :class:`ArgumentError` reaches the caller of a compiled function."""

    @functools.wraps(fake)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return fake(*args, **kwargs)
        except ArgumentError as error:
            if "torch._dynamo" not in sys.modules or torch._guards.TracingContext.try_get() is None:
                raise
            raise _of_dynamo(error) from None

    return wrapped  # type: ignore[return-value]


def _of_dynamo(error: ArgumentError) -> ArgumentError:
    """The same error as one that Dynamo passes on; its text has the user's line as well."""
    return _class()(error.message, error.hint)


@functools.cache
def _class() -> type[ArgumentError]:
    from torch._dynamo.exc import Unsupported

    class TracedArgumentError(ArgumentError, Unsupported):
        def __init__(self, message: str, hint: str) -> None:
            Unsupported.__init__(self, message)
            self.message, self.hint = message, hint

    return TracedArgumentError
