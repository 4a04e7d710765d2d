"""The Triton kernels of Hadamard rotation and paged caches: the reference's bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.errors import ArgumentError, Declined
from glm5_ascend.ops.hadamard_quant import triton_kernel as hadamard_host
from glm5_ascend.ops.hadamard_quant import triton_source as hadamard_source
from glm5_ascend.ops.paged_cache import triton_kernel as cache_host
from glm5_ascend.ops.paged_cache import triton_source as cache_source
from glm5_ascend.ops.verify import device, hadamard
from glm5_ascend.ops.verify.caches import PackedCase, WriteCase
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.runner import public, run_one
from tests.ops.triton.planted import plant

SPECIAL = PackedCase(tokens=9, dtype=torch.float32, special=True)
PACKED = PackedCase(tokens=5)
WRITE = WriteCase(tokens=7, width=65, dtype=torch.bfloat16)


def cases() -> Iterator[Case]:
    for case in hadamard.cases():
        if not str(case).startswith("9x64"):
            yield case
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield WriteCase(tokens=7, width=65, dtype=dtype)
        yield PackedCase(tokens=5, dtype=dtype)
    yield WriteCase(tokens=6, width=1100, dtype=torch.bfloat16, block_size=4, narrow=True)
    yield WriteCase(tokens=0, width=512, dtype=torch.bfloat16)
    yield SPECIAL


def result_of(case: Case) -> str:
    # NumPy reports the quotients of infinities.
    with np.errstate(invalid="ignore"):
        result = run_one(case, case.problem(), "triton", public("triton"))
    assert not result.declined
    assert result.error is None
    return result.figures.problem


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.operator}-{case}")
def test_conforms(case: Case) -> None:
    assert result_of(case) == ""


def identical(x: Tensor, expected: Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@pytest.mark.parametrize("factor", [0.0, -0.0, 1e-45, 1e-38, 1e36], ids=str)
@pytest.mark.parametrize("rows", [1, 17])
def test_rotation_of_extremes(factor: float, rows: int) -> None:
    x = factor * torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows))
    for found, expected in zip(
        ops.hadamard_quant(x, backend="triton"), ops.hadamard_quant(x, backend="reference"),
        strict=True,
    ):  # fmt: skip
        assert identical(found, expected)


def test_ties_are_rounded_to_even() -> None:
    latent = (torch.arange(512) % 128 - 63.5).clamp(max=127)[None]
    latent[:, ::128] = 127  # scales of 1
    cache = torch.zeros(1, 1, 656, dtype=torch.int8)
    ops.write_kv_rows(cache, latent, torch.zeros(1, 64), torch.tensor([0]), backend="triton")
    assert cache[0, 0, :512].tolist() == np.rint(latent[0].numpy()).tolist()


@pytest.mark.parametrize("distance", [656, 657, 700])
def test_packed_rows_at_any_distance(distance: int) -> None:
    gen = torch.Generator().manual_seed(distance)
    latent, rope = torch.randn(3, 512, generator=gen), torch.randn(3, 64, generator=gen)
    latent[1], latent[2] = -0.0, latent[2] * 1e-44
    slots = torch.tensor([5, -1, 2], dtype=torch.int32)
    caches = [torch.full((3, 2, distance), 77, dtype=torch.int8)[..., :656] for _ in range(2)]
    for cache, backend in zip(caches, ("triton", "reference"), strict=True):
        ops.write_kv_rows(cache, latent, rope.bfloat16(), slots, backend=backend)
    assert identical(*caches)
    read = [ops.read_kv_rows(caches[0], slots, backend=name) for name in ("triton", "reference")]
    assert all(identical(*both) for both in zip(*read, strict=True))


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float64, torch.float8_e4m3fn], ids=str)
def test_rows_of_any_format(dtype: torch.dtype) -> None:
    rows = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    caches = [torch.zeros(2, 2, 20, dtype=dtype) for _ in range(2)]
    for cache, backend in zip(caches, ("triton", "reference"), strict=True):
        ops.write_paged_rows(cache, rows, torch.tensor([3, -1, 0]), backend=backend)
    assert identical(*caches)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Declined, match="float64"):
        ops.hadamard_quant(torch.zeros(1, 128, dtype=torch.float64), backend="triton")
    monkeypatch.setattr("glm5_ascend.ops.triton.runtime.INTERPRETED", False)
    with pytest.raises(ArgumentError, match="takes CUDA tensors"):
        ops.hadamard_quant(torch.zeros(1, 128), backend="triton")
    with pytest.raises(ArgumentError, match="takes CUDA tensors"):
        ops.write_paged_rows(
            torch.zeros(1, 1, 4), torch.zeros(1, 4), torch.zeros(1).int(), backend="triton"
        )


def test_cases_go_to_the_gpu_unless_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(function: str, /, **arguments: Tensor) -> int:
        return arguments["x"].data_ptr()

    x = torch.zeros(1)
    assert device.at_home(call, "triton") is call
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setitem(device.HOMES, "triton", "cpu")
    assert device.at_home(call, "triton")("f", x=x) != x.data_ptr()


HADAMARD = next(iter(hadamard.cases()))
FAULTS = {
    "not normed": (hadamard_source, hadamard_host, "y * factor", "y", HADAMARD),
    "one distance short": (hadamard_source, hadamard_host, "range(STEPS)", "range(6)", HADAMARD),
    "another order": (hadamard_source, hadamard_host, "1 << step", "64 >> step", HADAMARD),
    "half away from zero": (
        cache_source, cache_host, "int8_codes(tl.div_rn(", "int8_codes(0.5 + tl.div_rn(", PACKED
    ),
    "padding rows": (
        cache_source, cache_host, "tl.load(slots + token)", "tl.abs(tl.load(slots + token))", PACKED
    ),
    "one row for all": (cache_source, cache_host, "rows + token *", "rows + 0 *", WRITE),
    "end of a row": (cache_source, cache_host, "column < width", "column < 64", WRITE),
    "scales of another tile": (cache_source, cache_host, "4 * tile +", "4 * (3 - tile) +", PACKED),
    "bytes swapped": (
        cache_source, cache_host, "join(word, word >> 8)", "join(word >> 8, word)", PACKED
    ),
    "scale of 128": (cache_source, cache_host, "127.0", "128.0", PACKED),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, host, right, wrong, case = FAULTS[name]
    plant(source, [host], right, wrong, tmp_path, monkeypatch)
    assert result_of(case)
