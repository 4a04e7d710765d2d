"""Fixpipe and DataCopy from L0C: layouts, conversions, ReLU, matrices, scales."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.emulator.cube.calls import ND, NZ, At, finding, result
from tests.ops.emulator.cube.models import bf16_bits, nz, to_l0c

# Result and source type, whether the scales are a tensor.
MODES = {
    "NoQuant float": (0, "float", "float", False),
    "NoQuant int32": (0, "int32", "int32", False),
    "F322F16": (1, "half", "float", False),
    "F322BF16": (16, "bf16", "float", False),
    "DEQF16": (11, "half", "int32", False),
    "VDEQF16": (10, "half", "int32", True),
    "QF322B8": (24, "int8", "float", False),
    "VQF322B8": (23, "int8", "float", True),
    "QF322B8 u": (24, "uint8", "float", False),
    "VQF322B8 u": (23, "uint8", "float", True),
    "REQ8": (9, "int8", "int32", False),
    "VREQ8": (8, "int8", "int32", True),
    "REQ8 u": (9, "uint8", "int32", False),
    "VREQ8 u": (8, "uint8", "int32", True),
}


def _results(rng: np.random.Generator, source: str, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of products: floats of many sizes and ties of every rounding, or integers."""
    if source == "int32":
        values = rng.integers(-(2**20), 2**20, shape)
        values.ravel()[::7] = rng.integers(-(2**31), 2**31, values.ravel()[::7].shape)
        return values.astype(np.int32)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 20, shape)
    flat = values.ravel()
    flat[::5] = np.float16(flat[::5].clip(-6e4, 6e4)).astype(np.float64) * (1 + 2.0**-11)
    flat[1::5] = (np.float32(flat[1::5]).view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)
    flat[2::11] = rng.integers(-300, 300, flat[2::11].shape) + 0.5
    flat[:4] = [70000, -1e30, 65519.996, 65520]
    return values.astype(np.float32)


def _scales(rng: np.random.Generator, mode: str, n: int) -> np.ndarray:
    """Parameters whose float has low bits that do not count, and an offset."""
    size = 2.0**-18 if "DEQ" in mode or "REQ" in mode else 2.0**-2
    scales = (rng.uniform(0.5, 2, n) * size).astype(np.float32)
    offsets = rng.integers(-256, 256, n) if "8" in mode else np.zeros(n, np.int64)
    return scales.view(np.uint32).astype(np.uint64) | ((offsets & 0x1FF) << 37).astype(np.uint64)


def _convert(
    values: np.ndarray, mode: str, dtype: str, parameters: np.ndarray, relu: bool
) -> np.ndarray:
    """[m][n] of the result's stored type."""
    if relu:
        values = np.where(values < 0, values.dtype.type(0), values)
    if mode.startswith("NoQuant"):
        return values
    with np.errstate(over="ignore"):
        if mode == "F322F16":
            return values.astype(np.float16)
        if mode == "F322BF16":
            return bf16_bits(values)
        scale = (parameters.astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        scaled = values.astype(np.float32) * scale
        if dtype == "half":
            return scaled.astype(np.float16)
    offset = ((parameters >> np.uint64(37)) & np.uint64(0x1FF)).astype(np.int64)
    offset = np.where(offset < 256, offset, offset - 512)
    info = np.iinfo(dtype)
    return np.clip(np.rint(scaled.astype(np.float64)) + offset, info.min, info.max).astype(dtype)


def _call(
    rng: np.random.Generator, mode: str, image: np.ndarray, target: At, params: list[int],
    config: int, api: str = "fix",
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Image of the destination, and the parameters per column."""
    quant, dtype, source, vector = MODES[mode]
    n = params[0]
    parameters = _scales(rng, mode, n if vector else 1)
    params = [*params[:4], quant, *params[4:]]
    table = np.zeros(8192 + -(-n // 16) * 16, np.uint64)  # apart from a destination in L1
    table[8192:] = np.resize(parameters, table.size - 8192)
    got = result(
        f"{api}_vector" if vector else api, target, At("L0C", image), params, dtype=dtype,
        other=source, config=config, second=At("L1", table, 65536), value=int(parameters[0]),
    )  # fmt: skip
    return got, parameters


SHAPES = [(16, 16), (33, 48), (7, 20), (128, 64), (1, 100)]


@pytest.mark.parametrize("api", ["fix", "co12"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_rows(mode: str, m: int, n: int, relu: bool, api: str) -> None:
    rng = np.random.default_rng(m * 100 + n)
    _, dtype, source, _ = MODES[mode]
    values = _results(rng, source, (m, n))
    rows = -(-m // 16) * 16 + 16
    pitch = n + int(rng.integers(0, 9))
    item = _convert(values[:1, :1], mode, dtype, _scales(rng, mode, 1), False).itemsize
    old = rng.integers(0, 256, m * pitch * item + 64, dtype=np.uint8)
    got, parameters = _call(
        rng, mode, to_l0c(values, rows), At("GM", old, item),
        [n, m, rows, pitch, 1, 0, 0, relu], ND, api=api,
    )  # fmt: skip
    want = old.copy()
    stored = _convert(values, mode, dtype, parameters, relu)
    cells = want[item:][: m * pitch * item].reshape(m, pitch * item)
    cells[:, : n * item] = np.ascontiguousarray(stored).view(np.uint8).reshape(m, -1)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("dst", ["GM", "L1"])
@pytest.mark.parametrize(("m", "n"), [(16, 32), (33, 64), (7, 96)])
@pytest.mark.parametrize("mode", MODES)
def test_nz(mode: str, m: int, n: int, dst: str) -> None:
    if dst == "L1" and mode.startswith("NoQuant"):
        return
    rng = np.random.default_rng(m * 100 + n)
    _, dtype, source, _ = MODES[mode]
    values = _results(rng, source, (m, n))
    rows = -(-m // 16) * 16
    item = _convert(values[:1, :1], mode, dtype, _scales(rng, mode, 1), False).itemsize
    c0 = 32 if item == 1 else 16
    step = m * c0 * item // 32 + int(rng.integers(0, 3))
    old = rng.integers(0, 256, n // c0 * step * 32 + 64, dtype=np.uint8)
    got, parameters = _call(
        rng, mode, to_l0c(values, rows), At(dst, old, 32), [n, m, rows, step, 1, 0, 0, 0], NZ
    )
    want = old.copy()
    blocks = nz(_convert(values, mode, dtype, parameters, False), c0)
    for i, block in enumerate(blocks):
        want[32 + i * step * 32 :][: block.nbytes] = block.view(np.uint8).ravel()
    assert np.array_equal(got, want)


def test_channel_split() -> None:
    rng = np.random.default_rng(4)
    values = rng.standard_normal((20, 24)).astype(np.float32)
    got = result(
        "fix", At("GM", np.zeros(3 * 20 * 32, np.uint8)), At("L0C", to_l0c(values, 32)),
        [24, 20, 32, 20, 0, 1, 0, 0, 0, 0, 1], dtype="float", other="float", config=NZ,
    )  # fmt: skip
    assert np.array_equal(got.view(np.float32).reshape(3, 20, 8), nz(values, 8))


@pytest.mark.parametrize("api", ["fix", "co12"])
@pytest.mark.parametrize("mode", ["NoQuant float", "F322BF16", "VDEQF16"])
def test_matrices(mode: str, api: str) -> None:
    rng = np.random.default_rng(9)
    _, dtype, source, _ = MODES[mode]
    values = [_results(rng, source, (20, 16)) for _ in range(3)]
    image = np.zeros((3, 4, 1024), np.uint8)  # 4 fractals apart
    for i, matrix in enumerate(values):
        image[i, :2] = to_l0c(matrix, 32).view(np.uint8).reshape(2, 1024)
    item = {"float": 4}.get(dtype, 2)
    old = np.zeros(3 * 500 * item, np.uint8)
    got, parameters = _call(
        rng, mode, image, At("GM", old), [16, 20, 32, 18, 3, 4, 500, 0], ND, api=api
    )
    want = np.zeros((3, 500 * item), np.uint8)
    for i, matrix in enumerate(values):
        stored = np.ascontiguousarray(_convert(matrix, mode, dtype, parameters, False))
        rows = want[i, : 20 * 18 * item].reshape(20, 18 * item)
        rows[:, : 16 * item] = stored.view(np.uint8).reshape(20, -1)
    assert np.array_equal(got, want.ravel())


def test_every_half_and_bf16() -> None:
    """Values at, below and above each tie between neighbours."""
    bits = np.arange(0, 0x7C00, dtype=np.uint16)
    exact = bits.view(np.float16).astype(np.float64)
    middle = (exact + np.append(exact[1:], 65536.0)) / 2
    ties = np.concatenate(
        [f(middle) for f in (lambda x: x, lambda x: x * (1 - 2**-23), lambda x: x * (1 + 2**-23))]
    )
    brain = (np.arange(0, 0x7F80, 13, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    for values, mode, want in (
        (ties.astype(np.float32), "F322F16", lambda v: v.astype(np.float16).view(np.uint16)),
        (brain, "F322BF16", bf16_bits),
    ):
        quant, dtype, _, _ = MODES[mode]
        for start in range(0, values.size, 16 * 1024):
            piece = np.resize(values[start : start + 16 * 1024], (1024, 16))
            piece = np.where(np.arange(16) % 2, -piece, piece).astype(np.float32)
            got = result(
                "fix", At("GM", np.zeros(piece.size * 2, np.uint8)), At("L0C", piece),
                [16, 1024, 1024, 16, quant, 1, 0, 0], dtype=dtype, other="float", config=ND,
            )  # fmt: skip
            with np.errstate(over="ignore"):
                assert np.array_equal(got.view(np.uint16), want(piece).ravel())


def test_nan_and_infinity() -> None:
    values = np.zeros((16, 16), np.float32)
    values[0, :3] = [np.nan, np.inf, -np.inf]
    for mode, stored in (("F322F16", np.float16), ("F322BF16", np.uint16)):
        quant, dtype, _, _ = MODES[mode]
        got = result(
            "fix", At("GM", np.zeros(512, np.uint8)), At("L0C", values),
            [16, 16, 16, 16, quant, 1, 0, 0, 1], dtype=dtype, other="float", config=ND,
        ).view(stored)[:3]  # fmt: skip
        numbers = got if dtype == "half" else (got.astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(numbers, [np.nan, np.inf, 0], equal_nan=True)


ROOM = np.zeros(32768, np.uint8)
WRONG = {  # n m srcStride dstStride quant ndNum srcNd dstNd relu unitFlag split
    "nSize 0": ("PARAM", ND, "GM", [0, 16, 16, 16, 0, 1, 0, 0, 0, 0, 0]),
    "nSize": ("PARAM", ND, "GM", [4096, 16, 16, 4096, 0, 1, 0, 0, 0, 0, 0]),
    "mSize 0": ("PARAM", ND, "GM", [16, 0, 16, 16, 0, 1, 0, 0, 0, 0, 0]),
    "srcStride": ("PARAM", ND, "GM", [32, 16, 20, 32, 0, 1, 0, 0, 0, 0, 0]),
    "srcStride below m": ("PARAM", ND, "GM", [32, 20, 16, 32, 0, 1, 0, 0, 0, 0, 0]),
    "dstStride below n": ("PARAM", ND, "GM", [16, 16, 16, 8, 0, 1, 0, 0, 0, 0, 0]),
    "unitFlag": ("PARAM", ND, "GM", [16, 16, 16, 16, 0, 1, 0, 0, 0, 1, 0]),
    "ndNum": ("PARAM", ND, "GM", [16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0]),
    "srcNdStride": ("PARAM", ND, "GM", [16, 16, 16, 16, 0, 2, 513, 256, 0, 0, 0]),
    "dstNdStride": ("PARAM", ND, "GM", [16, 16, 16, 16, 0, 2, 1, 0, 0, 0, 0]),
    "split rows": ("PARAM", ND, "GM", [16, 16, 16, 16, 0, 1, 0, 0, 0, 0, 1]),
    "NZ nSize": ("PARAM", NZ, "GM", [20, 16, 16, 16, 0, 1, 0, 0, 0, 0, 0]),
    "NZ dstStride": ("PARAM", NZ, "GM", [16, 16, 16, 0, 0, 1, 0, 0, 0, 0, 0]),
    "float to L1": ("DTYPE", NZ, "L1", [16, 16, 16, 16, 0, 1, 0, 0, 0, 0, 0]),
    "to UB": ("UNSUPPORTED", NZ, "L0A", [16, 16, 16, 16, 0, 1, 0, 0, 0, 0, 0]),
    "quantPre": ("DTYPE", ND, "GM", [16, 16, 16, 16, 1, 1, 0, 0, 0, 0, 0]),
    "unknown quantPre": ("UNSUPPORTED", ND, "GM", [16, 16, 16, 16, 6, 1, 0, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(name: str) -> None:
    kind, config, dst, params = WRONG[name]
    call = {"dtype": "float", "other": "float", "config": config}
    assert finding("fix", At(dst, ROOM), At("L0C", ROOM), params, **call) == kind


def test_scales_that_do_not_fit() -> None:
    ends = (At("GM", ROOM), At("L0C", ROOM))
    kinds = {"dtype": "half", "other": "int32", "config": ND, "second": At("L1", ROOM)}
    assert finding("fix", *ends, [16, 16, 16, 16, 10, 1, 0, 0], **kinds) == "PARAM"
    assert finding("fix_vector", *ends, [16, 16, 16, 16, 11, 1, 0, 0], **kinds) == "PARAM"
    assert finding("fix_vector", *ends, [272, 16, 16, 272, 10, 1, 0, 0], **kinds) == "PARAM"


def test_eight_bits_come_in_blocks_of_32() -> None:
    call = {"dtype": "int8", "other": "float", "config": NZ}
    params = [16, 16, 16, 16, 24, 1, 0, 0]
    assert finding("fix", At("GM", ROOM), At("L0C", ROOM), params, **call) == "UNSUPPORTED"


def test_alignment() -> None:
    call = {"dtype": "half", "other": "float", "config": NZ}
    params = [16, 16, 16, 16, 1, 1, 0, 0]
    assert finding("fix", At("L1", ROOM, 16), At("L0C", ROOM), params, **call) == "ALIGN"
    assert finding("fix", At("L1", ROOM), At("L0C", ROOM, 32), params, **call) == "ALIGN"
