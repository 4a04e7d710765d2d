"""Goals, ratios and tables that the cost table makes of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.ops.emulator.cost_case import module, parse_shape
from tools import cost_table
from tools.check_docs import with_block
from tools.cost import report
from tools.cost.cases import ENTRIES, PUBLISHED, ours

README = "# Title\n\n<!-- generated: cost -->\nold\n<!-- end -->\n\nrest\n"


def row(case: str, time: float, **more: Any) -> dict[str, Any]:
    made = {
        "date": "2026-02-01T00:00:00Z", "commit": "0123456789abcdef", "dirty": False,
        "command": "python -m tools.cost_table", "case": case, "shape": {"b": 1, "s": 64},
        "times": [time, 2 * time, 3 * time], "bounds": [10.0, 12.0, 14.0], "bound": "HBM",
        "slow_fixpipe": time + 1, "floor_bytes": 8.0, "floor_products": 4.0,
        "cube_peak": 4.0 / time, "launches": 1, "extrapolated": False,
        "emulated": [{"b": 1, "s": 64}],
    }  # fmt: skip
    return made | more


def test_goals_say_by_how_much() -> None:
    text = report.line(row("li-decode-b1-64k", 14.0))
    assert "1.40x time over the largest pipe bound, goal ≤ 1.25x: MISSED by 12 %" in text
    assert "1.75x over the byte floor, goal ≤ 1.50x: MISSED by 17 %" in text
    assert "1.50x over the gather floor, goal ≤ 3.00x: reached" in report.line(
        row("sfa-decode-b1-64k", 12.0)
    )
    peak = report.line(row("li-prefill-8k", 16.0))
    assert "25 % of the cubes' peak, goal ≥ 45 %: MISSED by 44 %" in peak
    assert "40 % of the cubes' peak" in report.line(row("li-prefill-8k", 10.0))


def test_published_times_are_compared_with_the_head() -> None:
    rows = {"li-prefill-2k": row("li-prefill-2k", 100.0, launches=2)}
    published = next(each for each in PUBLISHED if each.entry == "li-prefill-2k")
    assert ours(published, rows) == pytest.approx(100.0 + 2 * 20.5)
    assert ours(published, {}) is None
    text = report.markdown(list(rows.values()))
    # 2048 rows on 48 AIVs: 1024.5 cycles for the heads, (4.36 * 1024.5 + 3300) / 2 to sort.
    steps = 20.5 + 2048 / 48 * (1024.5 + (4.36 * 1024.5 + 3300) / 2) / 1800
    assert published.steps == pytest.approx(steps)
    assert f"| 102.6 us | {steps:.1f} ({steps / 102.6:.2f}x) | 141.0 (1.37x) |" in text
    far = report.markdown([row("li-prefill-2k", 300.0)])
    assert "| 320.5 (3.12x, NOT within 2x, bound by HBM) |" in far
    assert "| 86.8 % of peak | 89.5 (1.03x) | – |" in far
    assert "neither batch nor context is published" in text


def test_extrapolated_rows_say_from_what() -> None:
    drawn = row(
        "li-prefill-8k", 9.0, extrapolated=True, emulated=[{"b": 1, "s": 32}, {"b": 1, "s": 16}]
    )
    assert "b=1,s=64 (extrapolated from s=32 and s=16)" in report.markdown([drawn])
    assert "EXTRAPOLATED" in report.line(drawn)


def test_readme_has_values_and_goals_in_columns() -> None:
    text = report.markdown([row("li-decode-b1-64k", 14.0), row("mlapo-8", 9.0, floor_products=9.0)])
    goals = "bound ≤ 1.25x: MISSED by 12 %; floor ≤ 1.50x: MISSED by 17 %"
    assert f"| 14.0 | 28.0 | 42.0 | 15.0 | HBM | 1.40x | 1.75x | 29 % | {goals} |" in text
    assert "| 9.0 | 18.0 | 27.0 | 10.0 | HBM | 0.90x | – | 44 % |" in text


def test_check_notices_other_rows(tmp_path: Path) -> None:
    readme, file = tmp_path / "README.md", tmp_path / "cost.jsonl"
    assert cost_table.check(readme, file) == ["cost.jsonl does not exist: run without options"]
    rows = [row("mlapo-8", 9.0)]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    readme.write_text(README)
    assert cost_table.check(readme, file) == [
        "README.md does not show the last rows of cost.jsonl: run with --render"
    ]
    readme.write_text(with_block(README, "cost", report.markdown(rows)))
    assert cost_table.check(readme, file) == []


def test_every_entry_has_a_shape_and_each_goal_of_the_kernels_a_row() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert {each.entry for each in PUBLISHED if each.entry} <= set(names)
    for entry in ENTRIES:
        shape = parse_shape(entry.operator, entry.shape)
        assert module(entry.operator).case(shape).floor_bytes > 0
    for short, shapes in (("li", 8), ("sfa", 8), ("mlapo", 3)):
        found = [e for e in ENTRIES if e.name.startswith(short) and len(e.goals) == 2]
        assert len([e for e in found if "prefill" not in e.name]) == shapes


@pytest.mark.parametrize(
    ("operator", "shape", "floor", "products"),
    [
        # 256 bytes and 8192 flop per key; 130 bytes in int8.
        ("lightning_indexer", "b=1,q=1,s=65536", 16_777_216, 65536 * 4096),
        ("lightning_indexer", "b=16,q=1,s=131072,int8=1", 16 * 131072 * 130, 16 * 131072 * 4096),
        # Rows that see no more keys than they keep need no scores: 2048 positions are written.
        ("lightning_indexer", "q=3,s=5", 3 * 2048 * 4, 0),
        ("lightning_indexer", "q=3,s=4000", 4000 * 256, (3998 + 3999 + 4000) * 4096),
        # 2048 rows of 1152 bytes, 0.285 Gflop.
        ("sparse_flash_attention", "b=1", 2048 * 1152, 142_606_336),
        ("sparse_flash_attention", "b=2,q=2,s=10,int8=1", 2 * 19 * 656, 2 * 19 * 64 * 1088),
        # 6144 x 2624 and 2048 x 64 x 256 in int8, 64 x 192 x 512 in BF16.
        ("mlapo", "t=8", 62_259_200, 8 * 55_967_744),
    ],
)
def test_floors_by_hand(operator: str, shape: str, floor: int, products: int) -> None:
    case = module(operator).case(parse_shape(operator, shape))
    assert case.floor_bytes == floor
    assert sum(case.products.values()) == products
