"""Makes visible what a loader does in silence: memory never written, casts, double writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import deterministic


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill uninitialised memory: NaN in floating point, the largest value in integers.

    torch's own Linear (vllm-ascend uses one for ``rot.weight``) would start with random numbers.
    """
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = True
    try:
        with mock.patch.object(torch.nn.Linear, "reset_parameters"):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def poison(model: torch.nn.Module) -> None:
    """Fill every parameter as :func:`poisoned` does, also those that were made with a value."""
    for value in model.parameters():
        if value.is_floating_point():
            value.data.fill_(float("nan"))
        elif value.dtype is not torch.bool:
            value.data.fill_(torch.iinfo(value.dtype).max)


def uninitialised(model: torch.nn.Module, prefix: str = "") -> list[str]:
    """Names of the parameters of ``model`` that still hold the filling of :func:`poisoned`.

    Integer parameters of one element are left out: the filling is a value that they may have.
    """
    return [prefix + name for name, value in model.named_parameters() if _is_filled(value.detach())]


def healed(model: torch.nn.Module, prefix: str) -> set[str]:
    """Names of floating-point parameters without a NaN: loaded, or taken from another model."""
    return {
        prefix + name
        for name, value in model.named_parameters()
        if value.is_floating_point() and not torch.isnan(value.float()).any()
    }


def _is_filled(value: torch.Tensor) -> bool:
    if value.is_floating_point():
        return bool(torch.isnan(value.float()).any())
    if value.numel() < 2 or value.dtype is torch.bool:
        return False
    rows = value.reshape(-1, value.shape[-1]) if value.shape[-1] > 8 else value.reshape(1, -1)
    return bool((rows == torch.iinfo(value.dtype).max).all(dim=1).any())


class CopyWatch(TorchFunctionMode):
    """Notes copies of integers into floating point, and of another value into the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cast: list[str] = []
        self.overwritten: list[str] = []
        self._written: dict[tuple[int, torch.Size], torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.copy_ and isinstance(args[1], torch.Tensor):
            with torch._C.DisableTorchFunction():
                self._note(args[0].detach(), args[1].detach())
        return func(*args, **(kwargs or {}))

    def _note(self, target: torch.Tensor, source: torch.Tensor) -> None:
        shape = "x".join(map(str, target.shape)) or "scalar"
        if target.is_floating_point() and not source.is_floating_point():
            _add(self.cast, f"{source.dtype} into {target.dtype} [{shape}]")
        # The names of the parameters are not known here; what differs is told by type and shape.
        key = (target.data_ptr(), target.shape)
        before = self._written.get(key)
        if before is not None and not torch.equal(before, source.to(target.dtype)):
            _add(self.overwritten, f"{target.dtype} [{shape}]")
        if target.numel() <= _SMALL:
            self._written[key] = source.to(target.dtype).clone()


# Only parameters of a few values are shared by several tensors of a checkpoint.
_SMALL = 4096


def _add(texts: list[str], text: str) -> None:
    if text not in texts:
        texts.append(text)


class SourceWatch(TorchFunctionMode):
    """Notes which of the tensors that a loader was given were copied from, by way of others too."""

    def __init__(self) -> None:
        super().__init__()
        self._unread: dict[str, None] = {}
        self._names: dict[int, str] = {}
        self._seen: set[str] = set()
        self._kept: list[torch.Tensor] = []

    def noted(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The same pairs; a name that is given again need not be read again."""
        for name, tensor in weights:
            own = tensor.clone()
            if name not in self._seen:
                self._unread[name] = None
            self._seen.add(name)
            self._keep(own, name)
            yield name, own

    def unread(self) -> list[str]:
        """Names whose tensor was given, and never a source."""
        return list(self._unread)

    def _keep(self, tensor: torch.Tensor, name: str) -> None:
        self._kept.append(tensor)  # or its memory would be another's
        self._names[tensor.untyped_storage().data_ptr()] = name

    def _name(self, value: Any) -> str | None:
        if not isinstance(value, torch.Tensor):
            return None
        return self._names.get(value.untyped_storage().data_ptr())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _WRITING:
            name = self._name(args[-1])
            if name is not None:
                self._unread.pop(name, None)
        elif func in _COPYING:
            name = self._name(args[0])
            if name is not None:
                self._keep(result, name)
        return result


_WRITING = (torch.Tensor.copy_, torch.Tensor.__setitem__)
_COPYING = (torch.Tensor.contiguous, torch.Tensor.to)
