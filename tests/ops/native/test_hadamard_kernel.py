"""The rotation's kernel on every instruction set of this machine, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from glm5_ascend.ops.native import isa, library
from tests.ops.native import hadamard_calls
from tests.ops.native.calls import here


@pytest.mark.parametrize("name", [s.name for s in isa.INSTRUCTION_SETS if not isa.missing(s)])
@pytest.mark.parametrize("dtype", hadamard_calls.DTYPES)
def test_bits_of_the_formula(dtype: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", name)
    call, expected = hadamard_calls.build(dtype)
    for ours, wanted in zip(here(library("hadamard_quant"), call), expected, strict=True):
        np.testing.assert_array_equal(ours, wanted)
