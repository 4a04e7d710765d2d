"""A kernel's source with a fault in it, in the place of the right one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


def plant(
    source: ModuleType,
    hosts: Iterable[ModuleType],
    right: str,
    wrong: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``hosts`` call the kernels of ``source`` with every ``right`` in its text made ``wrong``."""
    text = Path(str(source.__file__)).read_text(encoding="utf-8")
    assert right in text
    (folder / "planted.py").write_text(text.replace(right, wrong), encoding="utf-8")
    spec = spec_from_file_location("planted", folder / "planted.py")
    assert spec is not None
    assert spec.loader is not None
    planted = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted", planted)
    spec.loader.exec_module(planted)
    for name, kernel in vars(planted).items():
        function = getattr(kernel, "fn", None)
        if getattr(function, "__module__", "") == "planted":
            for host in (host for host in hosts if hasattr(host, name)):
                monkeypatch.setattr(host, name, kernel)
