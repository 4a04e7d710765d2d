"""What planted faults are made of: patches of one oracle that undo themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa

from tests.support.hf import HfOracle

modeling: Any = modeling_glm_moe_dsa
Break = Callable[[HfOracle], AbstractContextManager[Any]]


class Proxy:
    """A module with some names replaced."""

    def __init__(self, wrapped: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def layers_of(oracle: HfOracle) -> list[Any]:
    """Return the decoder layers of the main model."""
    return list(oracle.model.model.layers)


@contextmanager
def attributes(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set (object, name, value) and put the old values back at the end."""
    with ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


@contextmanager
def hooks(handles: list[Any]) -> Iterator[None]:
    """Remove registered hooks at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
