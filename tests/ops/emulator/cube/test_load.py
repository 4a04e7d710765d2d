"""LoadData 2D and 3D, LoadDataWithTranspose, InitConstValue."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.emulator.cube.calls import At, finding, result
from tests.ops.emulator.cube.models import SIZES, nz, pack_int4, random_values, zn, zz

FRACTAL = 512


def _bytes(rng: np.random.Generator, fractals: int) -> np.ndarray:
    return rng.integers(0, 256, fractals * FRACTAL, dtype=np.uint8)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", ["int8", "half", "float"])
@pytest.mark.parametrize(
    ("src", "dst"), [("L1", "L0A"), ("L1", "L0B"), ("GM", "L0A"), ("GM", "L0B"), ("GM", "L1")]
)
def test_2d(src: str, dst: str, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    source, old = _bytes(rng, 40), _bytes(rng, 40)
    start, repeat = int(rng.integers(0, 8)), int(rng.integers(1, 7))
    step, gap = int(rng.integers(0, 5)), int(rng.integers(0, 5))
    transpose = dtype == "half" and src == "L1" and seed % 2 == 1
    backwards = seed >= 6
    if backwards:
        start = step * (repeat - 1) + 1
    params = [start, repeat, step, gap, transpose, backwards]
    got = result("load_2d", At(dst, old), At(src, source), params, dtype=dtype)
    want = old.reshape(-1, FRACTAL).copy()
    for i in range(repeat):
        fractal = source.reshape(-1, FRACTAL)[start - i * step if backwards else start + i * step]
        if transpose:
            fractal = np.ascontiguousarray(fractal.view(np.uint16).reshape(16, 16).T).view(np.uint8)
        want[i * (gap + 1)] = fractal.ravel()
    assert np.array_equal(got, want.ravel())


def _squares(rng: np.random.Generator, dtype: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Source fractals of squares, and the fractals that each becomes."""
    if dtype == "int4":
        squares = rng.integers(-8, 8, (count, 64, 64))
        return pack_int4(squares), pack_int4(squares.transpose(0, 2, 1)).reshape(count, 4, -1)
    edge = 32 if dtype == "int8" else 16
    squares = random_values(rng, dtype, (count, edge, edge))
    turned = np.ascontiguousarray(squares.transpose(0, 2, 1))
    if dtype not in ("float", "int32"):
        return squares, turned.view(np.uint8).reshape(count, -1, FRACTAL)
    # Two fractals of 16 x 8, side by side.
    cut = [
        np.ascontiguousarray(m.reshape(count, 16, 2, 8).transpose(0, 2, 1, 3))
        for m in (squares, turned)
    ]
    return cut[0], cut[1].view(np.uint8).reshape(count, 2, FRACTAL)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("dtype", "dst"),
    [(d, m) for d in ("int8", "half", "bf16", "float", "int32") for m in ("L0A", "L0B")]
    + [("int4", "L0B")],
)
def test_transposed(dtype: str, dst: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    source, turned = _squares(rng, dtype, 12)
    fractals = turned.shape[1]
    repeat, step = int(rng.integers(1, 4)), int(rng.integers(0, 4))
    start = int(rng.integers(0, 12 - step * (repeat - 1)))
    backwards = seed == 4
    if backwards:
        start = step * (repeat - 1)
    # Either the fractals of an iteration lie together, or those of equal place in all iterations.
    gap, inner = (fractals - 1 + seed, 0) if seed % 2 else (0, repeat - 1 + seed)
    old = _bytes(rng, 64)
    params = [start, repeat, step, gap, inner, backwards]
    got = result("load_transposed", At(dst, old), At("L1", source), params, dtype=dtype)
    want = old.reshape(-1, FRACTAL).copy()
    for i in range(repeat):
        for j in range(fractals):
            want[i * (gap + 1) + j * (inner + 1)] = turned[
                start + (-step if backwards else step) * i, j
            ]
    assert np.array_equal(got, want.ravel())


def _tile(
    rng: np.random.Generator, dtype: str, square: bool
) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Matrix, parameters and tile; with ``square`` the tile's sizes are multiples of 16 and C0."""
    c0 = 32 // SIZES[dtype]
    unit = max(16, c0)
    rows, columns = 16 * int(rng.integers(1, 6)), unit * int(rng.integers(1, 5))
    matrix = random_values(rng, dtype, (rows, columns))
    row, column = 16 * int(rng.integers(0, rows // 16)), c0 * int(rng.integers(0, columns // c0))
    if square:
        column -= column % unit
    height, width = rows - row, columns - column
    if not square:
        height, width = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
    h = next(h for h in (3, 2, 1) if rows % h == 0)
    tile = matrix[row : row + height, column : column + width]
    return matrix, [h, rows // h, columns, width, height, column, row], tile


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("dtype", "dst", "transpose"),
    [
        ("int8", "L0A", False), ("half", "L0A", False), ("float", "L0A", False),
        ("half", "L0A", True), ("bf16", "L0A", True), ("float", "L0A", True),
        ("half", "L0B", False), ("float", "L0B", False), ("bf16", "L0B", True),
    ],
)  # fmt: skip
def test_3d(dtype: str, dst: str, transpose: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    c0 = 32 // SIZES[dtype]
    matrix, params, tile = _tile(rng, dtype, square=True)
    order = zn(tile, c0) if dst == "L0B" else zz(tile.T if transpose else tile, c0)
    got = result(
        "load_3d", At(dst, np.zeros(65536, np.uint8)), At("L1", nz(matrix, c0)),
        [*params, transpose, 1], dtype=dtype,
    )  # fmt: skip
    assert np.array_equal(got[: order.nbytes], order.view(np.uint8).ravel())
    assert not got[order.nbytes :].any()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("dtype", "dst"), [("int8", "L0A"), ("half", "L0A"), ("half", "L0B"), ("float", "L0B")]
)
def test_ragged_3d(dtype: str, dst: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    c0 = 32 // SIZES[dtype]
    matrix, params, tile = _tile(rng, dtype, square=False)
    got = result(
        "load_3d", At(dst, np.zeros(65536, np.uint8)), At("L1", nz(matrix, c0)), [*params, 0, 1],
        dtype=dtype,
    )  # fmt: skip
    height, width = tile.shape
    rest = 0xA5 if dtype == "int8" else 0xFF
    full = np.full((1024, 1024), rest * (0x0101 if dtype == "half" else 1), np.uint32)
    raw = tile.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[SIZES[dtype]])
    if dtype == "float":
        full[:] = 0xFFFFFFFF
    down, across = (16, c0) if dst == "L0A" else (c0, 16)
    full[:height, :width] = raw
    cut = full[: -(-height // down) * down, : -(-width // across) * across].astype(raw.dtype)
    order = zz(cut, c0) if dst == "L0A" else zn(cut, c0)
    assert np.array_equal(got[: order.nbytes], order.view(np.uint8).ravel())


@pytest.mark.parametrize(("dst", "unit"), [("L1", 32), ("L0A", 512), ("L0B", 512)])
@pytest.mark.parametrize("dtype", ["half", "bf16", "float", "int32"])
def test_fill(dst: str, unit: int, dtype: str) -> None:
    rng = np.random.default_rng(2)
    value = random_values(rng, dtype, (1,))
    old = _bytes(rng, 40)
    bits = int.from_bytes(value.tobytes(), "little")
    got = result("fill", At(dst, old), At("GM", old), [3, 2, 1], dtype=dtype, value=bits)
    want = old.copy()
    for i in range(3):
        want[i * 3 * unit :][: 2 * unit] = np.resize(value.view(np.uint8), 2 * unit)
    assert np.array_equal(got, want)


def test_nothing_to_do() -> None:
    old = np.arange(64, dtype=np.uint8)
    for op, params in {"load_2d": [0] * 6, "load_transposed": [0] * 6, "fill": [0, 1, 0]}.items():
        assert np.array_equal(result(op, At("L0A", old), At("L1", old), params), old)


L1, L0 = np.zeros(65536, np.uint8), np.zeros(4096, np.uint8)
TILE = [
    1,
    64,
    64,
    16,
    16,
    0,
    0,
    0,
    1,
]  # l1H l1W channelSize kExt mExt kStart mStart transpose filter
WRONG = {
    "2d transpose of 8 bits": ("DTYPE", "load_2d", "int8", "L0A", [0, 1, 1, 0, 1, 0]),
    "2d transpose of 32 bits": ("DTYPE", "load_2d", "float", "L0A", [0, 1, 1, 0, 1, 0]),
    "2d below the start": ("PARAM", "load_2d", "half", "L0A", [1, 3, 1, 0, 0, 1]),
    "2d beyond L0A": ("OOB", "load_2d", "half", "L0A", [0, 2, 0, 200, 0, 0]),
    "2d to UB": ("UNSUPPORTED", "load_2d", "half", "L0C", [0, 1, 1, 0, 0, 0]),
    "int4 to L0A": ("DTYPE", "load_transposed", "int4", "L0A", [0, 1, 1, 0, 0, 0]),
    "iterations overlap": ("PARAM", "load_transposed", "int8", "L0B", [0, 3, 1, 0, 0, 0]),
    "3d 8 bits to L0B": ("DTYPE", "load_3d", "int8", "L0B", TILE),
    "3d 8 bits transposed": ("DTYPE", "load_3d", "int8", "L0A", [*TILE[:7], 1, 1]),
    "3d mStartPt": ("PARAM", "load_3d", "half", "L0A", [*TILE[:6], 8, 0, 1]),
    "3d kStartPt": ("PARAM", "load_3d", "half", "L0A", [*TILE[:5], 8, 0, 0, 1]),
    "3d too many rows": ("PARAM", "load_3d", "half", "L0A", [*TILE[:4], 16, 0, 64, 0, 1]),
    "3d too many columns": ("PARAM", "load_3d", "half", "L0A", [1, 64, 64, 17, 16, 48, 0, 0, 1]),
    "3d nothing": ("PARAM", "load_3d", "half", "L0A", [1, 64, 64, 0, 16, 0, 0, 0, 1]),
    "3d channelSize": ("UNSUPPORTED", "load_3d", "half", "L0A", [1, 64, 40, 16, 16, 0, 0, 0, 1]),
    "3d filter": ("UNSUPPORTED", "load_3d", "half", "L0A", [*TILE[:8], 3]),
    "fill of 8 bits": ("DTYPE", "fill", "int8", "L0A", [1, 1, 0]),
    "fill repeat": ("PARAM", "fill", "half", "L0A", [32768, 1, 0]),
    "fill of L0C": ("UNSUPPORTED", "fill", "half", "L0C", [1, 1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(name: str) -> None:
    kind, op, dtype, dst, params = WRONG[name]
    assert finding(op, At(dst, L0), At("L1", L1), params, dtype=dtype) == kind


def test_alignment() -> None:
    for op, params in {"load_2d": [0, 1, 1, 0, 0, 0], "load_3d": TILE}.items():
        assert finding(op, At("L0A", L0, 256), At("L1", L1), params) == "ALIGN"
        assert finding(op, At("L0A", L0), At("L1", L1, 16), params) == "ALIGN"


def test_transpose_from_gm() -> None:
    assert finding("load_2d", At("L0A", L0), At("GM", L0), [0, 1, 1, 0, 1, 0]) == "PARAM"
