"""Bits of mlapo's CPU backend: rows ignore each other, threads and, in integers, the processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.mlapo import cpu, mlapo
from glm5_ascend.ops.native import isa
from tests.ops.mlapo_cases import AWKWARD, SCHEMES, SMALL, WIDE, Case, Shape
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
