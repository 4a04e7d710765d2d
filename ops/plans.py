"""Forms of calls that were checked before.

Of a call's form, that is shapes, strides, dtypes and devices of its tensors and all its other
arguments, the checks of an operator give one verdict. Checking anew for every layer takes longer
than the kernels of a decode step, which repeats a handful of forms. So a backend may have a
function ``plan``, asked once for a form that passed all checks: it returns a function which takes
the operator's tensors, checks only values, and computes; None from it stands for a value that the
ordinary way refuses by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from glm5_ascend.ops.dispatch import VARIABLE

Form = tuple[object, ...]
Plan = Callable[..., Any]
# Prompts of every length have forms of their own.
_MOST = 256


class Plans:
    """Plans of one operator by the form of the call; ``name`` is the backends' function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[Form | None, Plan | None] = {}
        # The plan of a form, None where there is none.
        self.get: Callable[[Form | None], Plan | None] = self._known.get

    def ask(self, form: Form | None, module: ModuleType, *args: Any, **options: Any) -> None:
        """Ask a backend for its plan of a form that is not known yet and passed all checks."""
        if form is None or form in self._known:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        make = getattr(module, self._name, None)
        self._known[form] = None if make is None else make(*args, **options)

    def forget(self) -> None:
        """Ask for all plans anew."""
        self._known.clear()


def form_of(backend: str, *arguments: object) -> Form | None:
    """The form of a call with these arguments: strided tensors, or what can be hashed.

    None for backend 'reference', which has no plans.
    """
    named = os.environ.get(VARIABLE, "") if backend == "auto" else backend
    if named == "reference":
        return None
    parts: list[object] = [named]
    for value in arguments:
        if isinstance(value, Tensor):
            parts += (value.shape, value.stride(), value.dtype, value.device)
        else:
            parts.append(value)
    return tuple(parts)
