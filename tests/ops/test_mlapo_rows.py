"""Bits of mlapo's CPU backend: rows ignore each other, threads and, in integers, the processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.mlapo import cpu, mlapo
from glm5_ascend.ops.native import isa
from tests.ops.mlapo_cases import (
    AWKWARD,
    DEEPSEEK,
    EPS_KV,
    EPS_Q,
    GLM5,
    SCHEMES,
    SMALL,
    WIDE,
    Case,
    Shape,
)
from tests.ops.test_mlapo import check, run
from tests.support.compare import assert_identical

PER_TOKEN = ("token_x", "rope_sin", "rope_cos", "cache_index")


@pytest.fixture
def _library_again() -> Iterator[None]:
    cpu._KERNELS.forget()
    yield
    cpu._KERNELS.forget()


def rows_alone(case: Case, rows: Tensor) -> list[Tensor]:
    """Results and cache rows of some tokens in a call of their own."""
    a = case.fresh(cache_index=torch.arange(case.tokens))
    results = mlapo(**{**a, **{name: a[name][rows] for name in PER_TOKEN}}, backend="cpu")
    caches = [a[name].flatten(0, 2)[rows] for name in ("kv_cache", "kr_cache")]
    return [*results, *caches]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [SMALL, WIDE], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_ignore_each_other(scheme: str, shape: Shape, dtype: torch.dtype) -> None:
    case = Case(shape, 150, scheme, dtype)
    whole = rows_alone(case, torch.arange(150))
    parts = [torch.arange(i, i + n) for n in (1, 2, 3, 7, 8, 9, 16, 62, 129) for i in (0, 150 - n)]
    for rows in (*parts, torch.randperm(150)):
        for got, wanted in zip(rows_alone(case, rows), whole, strict=True):
            if wanted.numel():
                assert_identical(got, wanted[rows], name=f"{len(rows)} rows")


@pytest.mark.parametrize("scheme", ["float", "dynamic", "static"])
@pytest.mark.usefixtures("_library_again")
def test_threads_do_not_change_bits(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(WIDE, 150, scheme, torch.bfloat16)
    alone = run(case, "cpu")
    monkeypatch.setenv("GLM5_ASCEND_THREADS", "3")
    for name, tensor in run(case, "cpu").items():
        assert_identical(tensor, alone[name], name=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_bits_are_those_of_the_separate_operators(scheme: str, dtype: torch.dtype) -> None:
    for tokens in (1, 8, 33):
        case = Case(SMALL, tokens, scheme, dtype)
        a, got = case.arguments, run(case, "cpu", query_norm_quantised=False)

        def linear(x: Tensor, name: str, point: str, a: dict[str, Any] = a) -> Tensor:
            weight, scale = a[f"weight_{name}"].T, a[f"dequant_scale_w_{name}"]
            if scheme == "dynamic":
                return ops.linear_w8a8_dynamic(x, weight, scale.T, backend="cpu")
            static = a[f"quant_scale_{point}"], a[f"quant_offset_{point}"]
            bias = a[f"quant_bias_{name}"]
            return ops.linear_w8a8_static(x, weight, *static, bias, scale[0], backend="cpu")

        def rotate(x: Tensor, a: dict[str, Any] = a) -> Tensor:
            return ops.rotary_interleaved(x, cos=a["rope_cos"], sin=a["rope_sin"], backend="cpu")

        latent = ops.rms_norm(
            linear(a["token_x"], "dq", "x"), a["rmsnorm_gamma_cq"], EPS_Q, backend="cpu"
        )
        assert_identical(got["latent"], latent)
        query = linear(latent, "uq_qr", "cq").view(tokens, 4, 128)
        assert_identical(got["query_rope"], rotate(query[..., 64:]))
        kv = linear(a["token_x"], "dkv_kr", "x")
        rows = ops.rms_norm(kv[:, :256], a["rmsnorm_gamma_ckv"], EPS_KV, backend="cpu")
        for cache, wanted in (("kv_cache", rows), ("kr_cache", rotate(kv[:, 256:]))):
            target = torch.full_like(a[cache], torch.nan)
            ops.write_paged_rows(target[:, :, 0], wanted, a["cache_index"], backend="reference")
            assert_identical(got[cache], target, name=cache)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("scheme", ["float", "dynamic"])
def test_a_nan_stays_with_its_token(scheme: str, backend: str) -> None:
    case = Case(SMALL, 12, scheme, torch.float32)
    x = case.arguments["token_x"].clone()
    x[4, 100] = torch.nan
    changes = {"cache_index": torch.arange(12), "query_norm_quantised": False}
    got, wanted = run(case, backend, token_x=x, **changes), run(case, backend, **changes)
    others = torch.arange(12) != 4
    for name in ("query", "query_rope", "latent", "kv_cache", "kr_cache"):
        result, healthy = got[name], wanted[name]
        if "cache" in name:
            result, healthy = result.flatten(0, 2)[:12], healthy.flatten(0, 2)[:12]
        assert result[4].isnan().all()
        assert_identical(result[others], healthy[others])


@pytest.mark.slow  # compiles for each of them
@pytest.mark.parametrize("name", [i.name for i in isa.INSTRUCTION_SETS])
@pytest.mark.usefixtures("_library_again")
def test_every_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = next(i for i in isa.INSTRUCTION_SETS if i.name == name)
    if isa.missing(chosen):
        pytest.skip(f"not on this processor: {isa.missing(chosen)}")
    cases = [Case(AWKWARD, 33, s, d) for s in SCHEMES for d in (torch.bfloat16, torch.float32)]
    cases += [Case(WIDE, 9, "static", d) for d in (torch.bfloat16, torch.float16)]
    auto = [run(case, "cpu") for case in cases]
    cpu._KERNELS.forget()
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", name)
    for case, wanted in zip(cases, auto, strict=True):
        got = run(case, "cpu")
        # Everything but the product with W_UK is rounded operation by operation everywhere.
        for part in ("latent", "latent_scale", "query_rope", "kv_cache", "kr_cache"):
            assert_identical(got[part], wanted[part], name=f"{case.scheme} {part}")
        scale = None if case.scheme == "static" else got["latent_scale"]
        check(case, got, None if case.scheme == "float" else (got["latent"], scale))


@pytest.mark.slow  # the F64 formulas of a full-size layer
@pytest.mark.parametrize("shape", [GLM5, DEEPSEEK], ids=str)
def test_full_size(shape: Shape) -> None:
    case = Case(shape, 9, "dynamic", torch.bfloat16)
    got = run(case, "cpu")
    check(case, got, (got["latent"], got["latent_scale"]))
    first = {name: case.arguments[name][:1] for name in PER_TOKEN}
    for name in ("query", "query_rope", "latent", "latent_scale"):
        assert_identical(run(case, "cpu", **first)[name], got[name][:1], name=name)
