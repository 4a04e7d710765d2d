"""The extrapolation of the quantiser's speed: sums by hand, and what is missing is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.quant_bench import report
from tools.quant_bench.cases import Release, inputs, release
from tools.quant_bench.extrapolate import HASHES, total, whole

Row = dict[str, Any]
RATES = {"copy": 20e9, "hash": 2e9, "write": 1e9, "read": 4e9}


@pytest.fixture(scope="module")
def bf16() -> Release:
    return release("GLM-5.2")


def rows_of(found: Release, nanoseconds: float) -> list[Row]:
    return [
        {
            "kind": "case",
            "case": case.name,
            "shape": list(case.step.shape),
            "scheme": case.step.scheme.value,
            "source_dtype": case.dtype,
            "turned": "columns",
            "bytes": 2.5,
            **dict.fromkeys(("ns", "p20", "p80", "wall_ns"), nanoseconds),
        }
        for case in found.cases
    ]


def test_every_weight_of_a_release_is_in_one_case(bf16: Release) -> None:
    """744 billion and the MTP layer's 9.95, with its copies of embedding and head."""
    copies = 2 * bf16.config.vocab_size * bf16.config.hidden_size
    count = sum(case.total for case in bf16.cases) - copies
    assert count == pytest.approx(bf16.source_bytes / 2, rel=1e-3)
    experts = [case for case in bf16.cases if "experts." in case.name and "shared" not in case.name]
    assert {case.step.shape for case in experts} == {(2048, 6144), (6144, 2048)}
    assert sum(case.total for case in experts) == 75 * 256 * 3 * 2048 * 6144


def test_hours_are_time_by_weight_and_bytes_by_rate(bf16: Release) -> None:
    row = whole(bf16, rows_of(bf16, 3.6), RATES)
    weights = sum(case.total for case in bf16.cases)
    assert sum(row["parts"].values()) == pytest.approx(weights * 3.6 / 3.6e12)
    output = bf16.output_bytes
    files = output * (HASHES / 2e9 + 1 / 1e9 + 1 / 4e9) / 3600
    assert total(row) == pytest.approx(weights / 1e12 + files)
    assert row["floor_hours"] == pytest.approx((bf16.source_bytes + output) / 20e9 / 3600)


def test_fp8_takes_the_time_of_its_twin_where_it_was_not_measured(bf16: Release) -> None:
    fp8 = release("GLM-5.2-FP8")
    assert fp8.source_bytes < 0.51 * bf16.source_bytes
    measured = rows_of(bf16, 1.0) + [
        row for row in rows_of(fp8, 2.0) if row["case"] == "experts.gate_proj"
    ]
    row = whole(fp8, measured, RATES)
    gate = sum(case.total for case in fp8.cases if case.name == "experts.gate_proj")
    weights = sum(case.total for case in fp8.cases)
    assert sum(row["parts"].values()) == pytest.approx((weights + gate) / 3.6e12)


def test_a_kind_without_a_measurement_is_an_error(bf16: Release) -> None:
    with pytest.raises(LookupError, match=r"o_proj \(6144, 16384\) was not measured"):
        whole(bf16, [r for r in rows_of(bf16, 1.0) if "o_proj" not in r["case"]], RATES)


def test_inputs_hold_norms_and_block_scales(bf16: Release) -> None:
    case = next(c for c in release("GLM-5.2-FP8").cases if c.name == "self_attn.q_a_proj")
    shapes = {name.rpartition(".")[2]: spec.shape for name, spec in inputs(case).items()}
    assert shapes["weight_scale_inv"] == (16, 48)
    assert (6144,) in [spec.shape for spec in inputs(case).values()]


def test_readme_is_compared_with_the_last_rows(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- generated: quant-speed -->\nold\n<!-- end -->\n")
    assert report.check(readme, tmp_path / "none.jsonl") != []
    assert report.rendered(readme.read_text(), "new\n") != readme.read_text()
