"""Modules that stand for device libraries: everything can be imported from them, nothing happens.

What a module is asked for becomes a class, so that it can be called, subclassed, used in
annotations and with ``isinstance``; instances absorb calls, attributes, items and ``with``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

DEVICE_LIBRARIES = (
    "acl",
    "fla_npu",
    "memcache_hybrid",
    "memfabric_hybrid",
    "mooncake",
    "torch_npu",
)


class _InertType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()


class Inert(metaclass=_InertType):
    """Absorbs calls, attributes, items, unions of types and use as a context manager."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return Inert()

    def __getitem__(self, key: object) -> Any:
        return Inert()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: object) -> None:
        del args


class InertModule(types.ModuleType):
    """A module whose missing attributes are inert classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _InertType(name, (Inert,), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, libraries: Sequence[str]) -> None:
        self.libraries = libraries

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.libraries:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def install(libraries: Sequence[str]) -> None:
    """Make the libraries importable as inert modules, before any installed one."""
    sys.meta_path.insert(0, _Finder(libraries))
