"""Costs, floors and the sheet of the GPU kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import roofline
from tools.gpu_bench import costs
from tools.gpu_bench.shapes import BY_NAME, KERNELS, SHAPES


@pytest.mark.parametrize(
    ("name", "nbytes", "gflop", "floor"),
    [
        # Eight requests x 2048 rows of 656 bytes; a token of 16 heads has 16 x (576 + 512) BF16
        # numbers in and out and 2048 positions of 4 bytes.
        ("attention-decode-fp8-b8-h16", 8 * (2048 * 656 + 34816 + 8192), 0.570, 2.579),
        # 64 tokens x 64 heads x 2048 rows x (576 + 512) x 2 operations over 798 TFLOP/s.
        ("attention-decode-fp8-b64-h64", 64 * (2048 * 656 + 139264 + 8192), 18.254, 22.874),
        # 4096 tokens; each of the 32768 rows of 1152 bytes once.
        ("attention-prefill-32k-h8-random", 32768 * 1152 + 4096 * (17408 + 8192), 146.03, 182.99),
        # 132 bytes a key; query 32 x (128 + 4) bytes; 2048 positions.
        ("indexer-decode-fp8-128k", 131072 * 132 + 4224 + 8192, 1.0737, 4.028),
        # Keys seen: 126977 by the first token, 131072 by the last one.
        ("indexer-prefill-fp8-128k", 131072 * 132 + 4096 * 12416, 4329.344, 2187.64),
        # 6144 x 2624 and 2048 x 16384 codes, 64 x 192 x 512 BF16; x, query, cache row in BF16.
        (
            "mlapo-w8a8-1",
            16121856 + 33554432 + 2 * 6291456 + 2 * (6144 + 36864 + 576),
            0.1119,
            14.50,
        ),
        ("mlapo-bf16-1", 2 * (16121856 + 33554432 + 6291456 + 6144 + 36864 + 576), 0.1119, 26.05),
        ("hadamard-4096", 4096 * 388, 0.0, 0.3696),
    ],
)
def test_costs_by_hand(name: str, nbytes: int, gflop: float, floor: float) -> None:
    cost = BY_NAME[name].cost
    assert cost.nbytes == nbytes
    assert sum(cost.flops.values()) / 1e9 == pytest.approx(gflop, rel=1e-3)
    assert cost.floor_us == pytest.approx(floor, rel=1e-3)


def test_the_floor_is_the_longer_time() -> None:
    memory, products = BY_NAME["mlapo-w8a8-1"].cost, BY_NAME["indexer-prefill-bf16-128k"].cost
    assert (memory.bound, products.bound) == ("memory", "products")
    assert memory.floor_us == memory.memory_us > memory.products_us
    assert products.floor_us == products.products_us > products.memory_us


def test_a_cache_is_read_once_and_no_further_than_it_can_be_named() -> None:
    few, many = costs.attention(1, 4, 32768, 8, "bf16"), costs.attention(1, 64, 32768, 8, "bf16")
    rows = [(cost.nbytes - n * (17408 + 8192)) / 1152 for cost, n in ((few, 4), (many, 64))]
    assert rows == [4 * 2048, 32768]
    assert many.gathered == 64 * 2048 * 1152


def test_a_short_context_costs_what_its_tokens_see() -> None:
    cost = BY_NAME["attention-prefill-2119-h8-random"].cost
    pairs = 2048 * 2049 // 2 + 71 * 2048
    assert sum(cost.flops.values()) == 2.0 * pairs * 8 * 1088
    assert cost.gathered == pairs * 1152


def test_every_kernel_has_shapes_and_the_goals_come_first() -> None:
    assert {shape.kernel for shape in SHAPES} == set(KERNELS)
    assert len(BY_NAME) == len(SHAPES)
    with_goal = [shape.goal is not None for shape in SHAPES]
    assert with_goal == sorted(with_goal, reverse=True)
    assert sum(with_goal) == 13


def test_the_committed_sheet_is_the_computed_one() -> None:
    assert roofline.main(["--check"]) == 0


def test_check_notices_another_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "README.md"
    file.write_text("<!-- generated: roofline -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(roofline, "OPS_README", file)
    assert roofline.main(["--check"]) == 1
    assert roofline.main([]) == 0
    assert roofline.main(["--check"]) == 0
    monkeypatch.setattr(costs, "MEMORY", costs.MEMORY._replace(value=3e12))
    assert roofline.main(["--check"]) == 1
