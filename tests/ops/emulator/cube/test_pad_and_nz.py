"""DataCopyPad in both directions and rows to NZ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.emulator.cube.calls import At, finding, result
from tests.ops.emulator.cube.models import SIZES, random_values

DTYPES = ["int8", "half", "bf16", "float", "int32"]


def _up(value: int) -> int:
    return -(-value // 32) * 32


def _undefined(dtype: str) -> int:
    return 0xA5 if dtype.startswith("int") else 0xFF


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["pad_in", "old_pad_in"])
def test_pad_in(op: str, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = SIZES[dtype]
    count, elements = int(rng.integers(1, 5)), int(rng.integers(1, 40))
    length, src_gap, dst_gap = (
        elements * size,
        int(rng.integers(0, 5)) * size,
        int(rng.integers(0, 3)),
    )
    left, right = (int(v) for v in rng.integers(0, 32 // size + 1, 2))
    if seed < 2:
        left = right = 0
    given = bool(seed % 2)
    value = random_values(rng, dtype, (1,))
    source = rng.integers(0, 256, 4096, dtype=np.uint8)
    old = rng.integers(0, 256, 4096, dtype=np.uint8)
    start = size * 3  # GM takes any element
    bits = int.from_bytes(value.tobytes(), "little")
    got = result(
        op, At("UB", old, 32), At("GM", source, start),
        [count, length, src_gap, dst_gap, given, left, right], dtype=dtype, value=bits,
    )  # fmt: skip
    want = old.copy()
    block = _up((left + right) * size + length)
    for i in range(count):
        from_ = source[start + i * (length + src_gap) :][:length]
        to = want[32 + i * (block + dst_gap * 32) :][:block]
        if left == right == 0:
            to[:] = np.resize(from_[:size], block)
        else:
            to[:] = _undefined(dtype)
            if given:
                filled = (left + right) * size + length
                to[:filled] = np.resize(value.view(np.uint8), filled)
        to[left * size :][:length] = from_
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["pad_out", "old_pad_out"])
def test_pad_out(op: str, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = SIZES[dtype]
    count, length = int(rng.integers(1, 5)), int(rng.integers(1, 40)) * size
    src_gap, dst_gap = int(rng.integers(0, 3)), int(rng.integers(0, 5)) * size
    source = rng.integers(0, 256, 4096, dtype=np.uint8)
    old = rng.integers(0, 256, 4096, dtype=np.uint8)
    got = result(
        op,
        At("GM", old, size),
        At("UB", source, 64),
        [count, length, src_gap, dst_gap],
        dtype=dtype,
    )
    want = old.copy()
    for i in range(count):
        from_ = source[64 + i * (_up(length) + src_gap * 32) :][:length]
        want[size + i * (length + dst_gap) :][:length] = from_
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", DTYPES)
def test_nz(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = SIZES[dtype]
    c0 = 32 // size
    matrices, rows = int(rng.integers(1, 4)), int(rng.integers(1, 40))
    columns = int(rng.integers(1, 4 * c0 + 1))
    row_step = 1 if seed % 2 else int(rng.integers(1, 4))
    src_row = columns + int(rng.integers(0, 9))
    src_matrix = rows * src_row + int(rng.integers(0, 9))
    block_step = rows * row_step + int(rng.integers(0, 5))
    matrix_step = -(-columns // c0) * block_step * c0 + int(rng.integers(0, 3)) * c0
    source = random_values(rng, dtype, (matrices * src_matrix + 5,))
    old = rng.integers(0, 256, _up(matrices * matrix_step * size) + 64, dtype=np.uint8)
    params = [matrices, rows, columns, src_matrix, src_row, block_step, row_step, matrix_step]
    got = result("nz", At("L1", old, 32), At("GM", source, size), params, dtype=dtype)
    want = old.copy()
    cells = want[32:].view(source.dtype)
    for matrix in range(matrices):
        for n in range(rows):
            for d in range(-(-columns // c0) * c0):
                place = (d // c0) * block_step * c0 + n * row_step * c0 + d % c0
                inside = source[1 + matrix * src_matrix + n * src_row + d] if d < columns else 0
                cells[matrix * matrix_step + place] = inside
    assert np.array_equal(got, want)


@pytest.mark.parametrize("empty", [[0, 4, 4], [1, 0, 4], [1, 4, 0]])
def test_empty_nz(empty: list[int]) -> None:
    old = np.arange(64, dtype=np.uint8)
    got = result("nz", At("L1", old), At("GM", old), [*empty, 1, 1, 1, 1, 16])
    assert np.array_equal(got, old)


GM, UB = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
WRONG = {
    "blockCount": ("PARAM", "pad_in", [4096, 2, 0, 0, 0, 0, 0]),
    "blockLen 0": ("PARAM", "pad_in", [1, 0, 0, 0, 0, 0, 0]),
    "blockLen": ("PARAM", "pad_in", [1, 2097152, 0, 0, 0, 0, 0]),
    "half an element": ("PARAM", "pad_in", [1, 3, 0, 0, 0, 0, 0]),
    "padding": ("PARAM", "pad_in", [1, 2, 0, 0, 1, 17, 0]),
    "out blockCount": ("PARAM", "pad_out", [0, 2, 0, 0]),
    "out half an element": ("PARAM", "pad_out", [1, 3, 0, 0]),
    "ndNum": ("PARAM", "nz", [4096, 1, 1, 1, 1, 1, 1, 16]),
    "nValue": ("PARAM", "nz", [1, 16385, 1, 1, 1, 1, 1, 16]),
    "srcDValue": ("PARAM", "nz", [1, 1, 1, 1, 0, 1, 1, 16]),
    "dstNzC0Stride": ("PARAM", "nz", [1, 1, 1, 1, 1, 0, 1, 16]),
    "dstNzNStride": ("PARAM", "nz", [1, 1, 1, 1, 1, 1, 16385, 16]),
    "dstNzMatrixStride": ("ALIGN", "nz", [2, 1, 1, 1, 1, 1, 1, 24]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(name: str) -> None:
    kind, op, params = WRONG[name]
    ends = (At("GM", GM), At("UB", UB)) if op == "pad_out" else (At("UB", UB), At("GM", GM))
    if op == "nz":
        ends = (At("L1", UB), At("GM", GM))
    assert finding(op, *ends, params) == kind


@pytest.mark.parametrize(("op", "dst", "src"), [("pad_in", "L1", "GM"), ("pad_out", "GM", "L1")])
def test_no_such_path(op: str, dst: str, src: str) -> None:
    assert finding(op, At(dst, UB), At(src, GM), [1, 32, 0, 0]) == "UNSUPPORTED"
