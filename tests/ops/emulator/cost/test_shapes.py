"""Shapes of the cost model: what no memory holds, and rows that are counted."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.ops.emulator import cost_case


@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        ("sparse_flash_attention", "s=999999999"),
        ("sparse_flash_attention", "q=999999999,s=999999999,int8=1"),
        ("mlapo", "h=999999999"),
    ],
)
def test_what_no_memory_holds_is_refused(operator: str, shape: str) -> None:
    command = ["ops", "cost", operator, "--shape", shape, "--limit", "1e12"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 3, result.output
    assert "of memory, and no smaller shape is like it" in result.stderr
    assert "hint: " in result.stderr


@pytest.mark.parametrize(
    ("operator", "heads", "taken"),
    [
        ("lightning_indexer", 1, "h=16, 32, 48, 64"),
        ("lightning_indexer", 80, "h=16, 32, 48, 64"),
        ("sparse_flash_attention", 129, "h=1 to h=128"),
    ],
)
def test_heads_that_the_kernel_does_not_take(operator: str, heads: int, taken: str) -> None:
    result = CliRunner().invoke(cli, ["ops", "cost", operator, "--shape", f"h={heads}"])
    assert result.exit_code == 1, result.output
    assert result.stderr.endswith(f"error: h={heads} heads\nhint: the kernel takes {taken}\n")


def test_rows_of_a_query_are_counted_in_closed_form() -> None:
    case = cost_case.module("sparse_flash_attention").case
    for q, s, k in ((1, 1, 8), (5, 9, 8), (9, 9, 4), (9, 12, 2048), (3, 12, 4)):
        rows = sum(min(k, s - q + i + 1) for i in range(q))
        made = case({"b": 2, "q": q, "s": s, "h": 64, "k": k, "int8": 0})
        assert made.floor_bytes == 2 * rows * 2 * (512 + 64)
