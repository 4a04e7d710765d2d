from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ops.npu.vendor import FakeVendor, installed


@pytest.fixture
def vendor() -> Iterator[FakeVendor]:
    """A stand-in for torch_npu on an Atlas A3, for CPU tensors."""
    with installed() as fake:
        yield fake
