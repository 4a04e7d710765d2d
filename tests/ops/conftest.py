"""Fixtures of the operators' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glm5_ascend.ops.mlapo import cpu as mlapo
from glm5_ascend.ops.moe import cpu as moe
from glm5_ascend.ops.native import isa
from glm5_ascend.ops.norm_rope import cpu as norm_rope
from glm5_ascend.ops.paged_cache import cpu as paged_cache
from glm5_ascend.ops.quant_linear import cpu as quant_linear
from glm5_ascend.ops.sparse_flash_attention import cpu as sparse_flash_attention


def _forget() -> None:
    """Let every backend ask for its library again."""
    for entry_points in (
        mlapo._KERNELS,
        moe.KERNELS,
        norm_rope.KERNELS,
        paged_cache.KERNELS,
        quant_linear.KERNELS,
        sparse_flash_attention.KERNELS,
    ):
        entry_points.forget()


@pytest.fixture(params=isa.INSTRUCTION_SETS, ids=lambda chosen: chosen.name)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of an instruction set in force; skipped where the processor lacks it."""
    chosen: isa.InstructionSet = request.param
    if lack := isa.missing(chosen):
        pytest.skip(f"this processor lacks {lack[0]}")
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", chosen.name)
    _forget()
    yield chosen.name
    _forget()
