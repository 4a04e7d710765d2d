"""The conformance suite on the backends that every machine has, and the suite's own rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from glm5_ascend.cli import cli
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.verify import compare, formula, hadamard, suite
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import AttentionShape
from glm5_ascend.ops.verify.case import Case, Problem, Unsupported
from glm5_ascend.ops.verify.report import Report
from glm5_ascend.ops.verify.requests import Requests
from glm5_ascend.ops.verify.rows import Expected, RowsCase, RowsProblem
from glm5_ascend.ops.verify.runner import Plan, plan, public, run, run_one
from tests.support.tiled_attention import FAULTS, tiled

SEEDS = range(12)


@lru_cache(maxsize=1)
def problem_of(case: Case) -> Problem:
    return case.problem()


@pytest.mark.usefixtures("poison_empty")
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", list(suite.cases()), ids=lambda case: f"{case.operator}-{case}")
def test_backend_conforms(case: Case, backend: str) -> None:
    call = plan([case.operator], [backend]).calls[case.operator][backend]
    run_one(case, problem_of(case), backend, call).require()


def test_cases_have_names_of_their_own() -> None:
    names = [(case.operator, str(case)) for case in suite.cases("full")]
    assert len(set(names)) == len(names)


def test_sizes_contain_each_other() -> None:
    quick, normal, full = (
        {(c.operator, str(c)) for c in suite.cases(size)} for size in ("quick", "normal", "full")
    )
    assert quick < normal < full
    assert {operator for operator, _ in quick} == {operator for operator, _ in full}


def test_fast_transform_is_the_matrix() -> None:
    x = torch.randn(5, 128, dtype=torch.float64).numpy()
    difference = hadamard.fast_transform(x) - x @ formula.hadamard(128)
    assert abs(difference).max() < 1e-13


def attention_case(seed: int, keys: int = 213) -> AttentionCase:
    """Two tokens of eight heads that read every key, and some unused entries."""
    requests = Requests("all", ((2, keys),))
    return AttentionCase(requests=requests, shape=AttentionShape(8), count=keys + 9, seed=seed)


def tiled_backend(fault: str) -> Callable[..., Any]:
    """``sparse_flash_attention`` of one request, tile by tile."""

    def call(function: str, /, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        assert function == "sparse_flash_attention"
        query = torch.cat((arguments["query"], arguments["query_rope"]), -1)
        cache = torch.cat((arguments["key"], arguments["key_rope"]), -1).flatten(0, 2)
        out = torch.zeros_like(arguments["query"])
        size = arguments["key"].shape[1]
        for t in range(2):
            chosen = arguments["sparse_indices"][t, 0].long()
            chosen = chosen[chosen >= 0]
            rows = cache[arguments["block_table"][0].long()[chosen // size] * size + chosen % size]
            out[t] = tiled((query[t], rows), fault)
        return out, out.new_empty(0), out.new_empty(0)

    return call


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_kernel_passes_and_each_fault_is_caught(seed: int) -> None:
    for keys, faults in ((213, FAULTS[:4] + FAULTS[5:]), (1521, FAULTS[4:5])):
        problem = attention_case(seed, keys).problem()
        compare.require(problem.judge(problem.run(tiled_backend(""))))
        for fault in faults:
            assert problem.judge(problem.run(tiled_backend(fault))).problem, fault


def spoiled(x: Tensor, how: str) -> Tensor:
    """A copy with one fault; integers know "element" and "zero" only."""
    x = x.clone()
    flat = x.view(-1)
    if how == "scale":
        return x * 1.02
    if how == "zero":
        return x.zero_()
    if how == "row":
        x[0] = x[-1]
    elif how == "nan":
        flat[int(flat.isfinite().int().argmax())] = torch.nan
    elif x.is_floating_point():
        flat[flat.nan_to_num(0, 0, 0).abs().argmax()] *= 1.1
    else:
        flat[int((flat > 0).int().argmax())] -= 1
    return x


def spoiling_backend(how: str) -> Callable[..., Any]:
    """The reference with the first result, or the cache that was written, spoiled."""

    def call(function: str, /, **arguments: Any) -> Any:
        result = public("reference")(function, **arguments)
        if result is None:
            arguments["cache"].copy_(spoiled(arguments["cache"], how))
            return None
        first, *others = result if isinstance(result, tuple) else (result,)
        if function == "mlapo" or first.is_floating_point() or how in ("element", "zero"):
            first = spoiled(first, how)
        return (first, *others) if others else first

    return call


MULTIPLE_ROWS = {
    "lightning_indexer": "decode-32x128-top64-bf16-TND-PA_BSND16-mode3",
    "lightning_indexer_quant": "decode-32x128-top64-int8-TND-PA_BSND16-mode3-wf16",
    "sparse_flash_attention": "decode-4x256+64-of64-bf16-TND-PA_BSND16-mode3",
    "kv_quant_sparse_flash_attention": "decode-8x512+64-of64-bf16-TND-PA_BSND16-mode3",
    "paged_cache": "write_paged_rows-62x128-bf16-pages16",
    "hadamard_quant": "62x1-bf16",
    "norm_rope": "rotary_interleaved-62x64x64-bf16",
    "quant_linear": "linear_w8a8_dynamic-62x192x213-bf16",
    "moe": "experts-62-w4a8",
    "mlapo": "9-384-256-4x192+64-512-bf16-weights2",
    "attention_layers": "prompts-90-41-top16",
}


@pytest.mark.parametrize("operator", MULTIPLE_ROWS)
def test_spoiled_results_of_every_operator_are_caught(operator: str) -> None:
    case = next(
        c for c in suite.cases() if (c.operator, str(c)) == (operator, MULTIPLE_ROWS[operator])
    )
    problem = case.problem()
    integers = operator.startswith(("lightning", "hadamard"))
    for how in ("element", "zero") if integers else ("element", "zero", "scale", "row", "nan"):
        assert problem.judge(problem.run(spoiling_backend(how))).problem, how


def test_extra_backends_run_beside_those_of_the_project() -> None:
    case = attention_case(0)

    def declines(function: str, /, **arguments: Any) -> Any:
        raise Unsupported(f"{function} is not in this graph")

    extra = {"tiled": tiled_backend(""), "wrong": tiled_backend("scale"), "partial": declines}
    seen = []
    runs = plan([case.operator], ["reference", *extra], extra)
    results = {r.backend: r for r in run([case], runs, seen.append)}
    assert [r.backend for r in seen] == ["reference", *extra]
    assert results["reference"].passed
    assert results["tiled"].passed
    assert "'scale 2 % too large'" in results["wrong"].figures.problem
    assert not results["partial"].passed
    assert results["partial"].declined == "sparse_flash_attention is not in this graph"
    with pytest.raises(AssertionError, match=r"wrong: sparse_flash_attention: all-8x512.*mistake"):
        results["wrong"].require()
    results["partial"].require()
    rows = {row["backend"]: row for row in Report("quick", seen, []).as_dict()["rows"]}  # type: ignore[attr-defined]
    assert [rows[name]["passed"] for name in rows] == [True, True, False, False]


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="'triton' of lightning_indexer is not available"):
        plan(["lightning_indexer", "moe"], ["triton"])


def test_a_backend_that_cannot_run_after_all_is_no_pass() -> None:
    def absent(function: str, /, **arguments: Any) -> Any:
        raise BackendUnavailable("no folder for compiled kernels", "set another")

    case = attention_case(0)
    runs = plan([case.operator], [], {"absent": absent, "tiled": tiled_backend("")})
    calls = {name: runs.calls[case.operator][name] for name in ("absent", "tiled")}
    for name, passes in (("tiled", True), ("absent", False)):
        only = Plan({case.operator: {"tiled": calls["tiled"], name: calls[name]}}, [], named=False)
        report = Report("quick", run([case], only), [])
        assert report.passed == passes
    assert [row.result for row in report.rows] == ["pass", "cannot run"]
    reason = "absent sparse_flash_attention: no folder for compiled kernels; set another"
    assert report.as_text().splitlines()[-1] == reason
    assert "declined by" not in report.as_text()
    assert report.as_dict()["unavailable"] == [
        {
            "operator": "sparse_flash_attention",
            "backend": "absent",
            "reason": "no folder for compiled kernels",
            "hint": "set another",
        }
    ]
    with pytest.raises(BackendUnavailable, match="no folder"):
        run([case], plan([case.operator], ["absent"], {"absent": absent}))


class Doubles:
    """A function with one mischief."""

    def __init__(self, mischief: str) -> None:
        self.mischief = mischief
        self.calls = 0

    def __call__(self, function: str, /, **arguments: Any) -> Tensor:
        x: Tensor = arguments["x"]
        self.calls += 1
        if self.mischief == "raises":
            raise RuntimeError("out of registers")
        if self.mischief == "writes":
            x += 1
        off = self.mischief == "forgets" and self.calls == 2
        off |= self.mischief == "depends" and len(x) == 1
        return 2 * x + (1e-7 if off else 0)


@pytest.mark.parametrize(
    ("mischief", "problem"),
    [
        ("", ""),
        ("raises", "raised RuntimeError: out of registers"),
        ("writes", "wrote into an input, x: 12 of 12 values differ"),
        ("forgets", "second run: y: "),
        ("depends", "another batch: y: "),
    ],
)
def test_rules_beyond_the_numbers(mischief: str, problem: str) -> None:
    def make(seed: int) -> RowsProblem:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        return RowsProblem("double", {"x": x}, ("x",), {"y": Expected(2 * x.double(), 2 * x)})

    case = RowsCase(group="double", label="3x4", make=make)
    result = run_one(case, case.problem(), "mine", Doubles(mischief))
    assert (problem in result.figures.problem) if problem else result.passed


def verify(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["ops", "verify", *arguments])


def test_command_prints_a_table() -> None:
    result = verify("--quick", "--backend", "reference", "--op", "moe", "--op", "hadamard_quant")
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split("  ")[0] == "operator"
    assert [row.split()[:2] for row in rows] == [
        ["hadamard_quant", "reference"],
        ["moe", "reference"],
    ]
    assert all(row.endswith("pass") for row in rows)
    assert "moe: 11 cases in" in result.stderr


def test_command_reports_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: str, /, **arguments: Any) -> Any:
        codes, scale = public("reference")(function, **arguments)
        return codes, scale * 1.02

    monkeypatch.setattr("glm5_ascend.ops.verify.runner.public", lambda backend: broken)
    options = ("--quick", "--backend", "reference", "--op", "hadamard_quant")
    result = verify(*options, "--json")
    assert result.exit_code == 1
    assert not result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert not document["passed"]
    assert document["rows"][0]["failed"] == document["rows"][0]["cases"] == 9
    assert "scale: " in document["failures"][0]["problem"]
    text = verify(*options)
    assert text.exit_code == 1
    assert "9 failed" in text.stdout
    assert "failed: reference hadamard_quant 1x32-f32" in text.stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--backend", "triton"), 5, "backend 'triton' of lightning_indexer is not available"),
        (("--backend", "nonsense"), 2, "'nonsense' is not one of"),
        (("--full",), 2, "--quick and --full exclude each other"),
        (("--op", "nonsense"), 2, "'nonsense' is not one of lightning_indexer, "),
    ],
)
def test_command_refuses(options: tuple[str, ...], code: int, message: str) -> None:
    result = verify("--quick", *options)
    assert result.exit_code == code
    assert message in result.stderr
    assert not result.stdout


def test_a_wrong_variable_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_THREADS", "x")
    command = ["ops", "verify", "--quick", "--op", "hadamard_quant", "--backend", "cpu"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: GLM5_ASCEND_THREADS is 'x'" in result.stderr


def test_seeds_change_the_inputs() -> None:
    case = attention_case(0)
    first, same, other = (c.problem() for c in (case, case, replace(case, seed=1)))
    outputs = first.run(public("reference"))
    assert same.judge(outputs).passed
    assert not other.judge(outputs).passed
