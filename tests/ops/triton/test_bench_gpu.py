"""The GPU benchmark finds the interpreted Triton kernels right, and planted faults wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.gpu_problems import ATTENTION, HADAMARD, INDEXER, MLAPO, run, small
from tools.gpu_bench.shapes import Shape


def own(shape: Shape) -> list[dict[str, Any]]:
    """Rows of the project's kernels and of the public call."""
    rows = run(shape, "triton").values()
    return [row for row in rows if row["kind"] in ("project", "call")]


SHAPES = [ATTENTION[0], *ATTENTION[2:4], INDEXER[-1], MLAPO[0], *HADAMARD]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_kernels_are_right(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    rows = own(shape)
    assert [row["status"] for row in rows] == ["timed", "timed"], [r["reason"] for r in rows]


def test_a_kernel_that_loses_a_tile_of_keys_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    from glm5_ascend.ops.sparse_flash_attention import triton_kernel

    whole = triton_kernel.forward

    def short(query: Any, key: Any, value: Any, indices: Any, *rest: Any, **options: Any) -> Any:
        return whole(query, key, value, indices[:, :-16].contiguous(), *rest, **options)

    monkeypatch.setattr(triton_kernel, "forward", short)
    rows = own(ATTENTION[0])
    assert [row["status"] for row in rows] == ["wrong", "wrong"]
    assert "out of limit" in rows[0]["reason"]
