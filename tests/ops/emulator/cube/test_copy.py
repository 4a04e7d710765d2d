"""DataCopy by count and by blocks, between every two memories that have a path."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.emulator.cube.calls import At, finding, result
from tests.ops.emulator.cube.models import random_values

PATHS = [
    ("GM", "UB", 32), ("GM", "L1", 32), ("UB", "GM", 32), ("UB", "UB", 32), ("L1", "GM", 32),
    ("L1", "BT", 64), ("L1", "FB", 128),
]  # fmt: skip
DTYPES = ["int8", "half", "bf16", "float", "int32"]


def _images(rng: np.random.Generator, src: str, dst: str, size: int) -> tuple[At, At]:
    old = rng.integers(0, 256, size, dtype=np.uint8)
    new = rng.integers(0, 256, size, dtype=np.uint8)
    if src == dst:  # one memory: the source lies in its upper half
        image = np.concatenate([old, new])
        return At(src, image, size), At(dst, image)
    return At(src, new), At(dst, old)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("src", "dst", "unit"), PATHS)
def test_count(src: str, dst: str, unit: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    size = random_values(rng, dtype, (1,)).itemsize
    source, target = _images(rng, src, dst, 512)
    got = result("count", target, source, [3 * unit // size], dtype=dtype)
    want = target.image.copy()
    want[: 3 * unit] = source.image[source.address :][: 3 * unit]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("src", "dst", "unit"), PATHS)
def test_blocks(src: str, dst: str, unit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = 1024 if dst in ("BT", "FB") else 16384
    while True:
        count, length, src_gap, dst_gap = (int(v) for v in rng.integers((1, 1, 0, 0), (7, 5, 9, 9)))
        source_end = count * length * unit + (count - 1) * src_gap * 32
        target_end = count * length * unit + (count - 1) * dst_gap * unit
        if max(source_end, target_end) <= size:
            break
    source, target = _images(rng, src, dst, size)
    got = result("blocks", target, source, [count, length, src_gap, dst_gap], dtype="half")
    want = target.image.copy()
    for i in range(count):
        start = source.address + i * (length * unit + src_gap * 32)
        want[i * (length + dst_gap) * unit :][: length * unit] = source.image[start:][
            : length * unit
        ]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("narrow", ["half", "bf16"])
def test_bias_is_widened(narrow: str) -> None:
    rng = np.random.default_rng(3)
    stored = random_values(rng, narrow, (64,))
    got = result(
        "blocks", At("BT", np.zeros(256, np.uint8)), At("L1", stored), [1, 2, 0, 0],
        dtype="float", other=narrow,
    )  # fmt: skip
    wide = (
        stored.astype(np.float32)
        if narrow == "half"
        else (stored.astype(np.uint32) << 16).view(np.float32)
    )
    assert np.array_equal(got.view(np.float32), wide)


def test_longest_copy() -> None:
    data = np.arange(65535 * 8, dtype=np.int32)
    image = np.zeros(180 * 1024, np.uint8)
    got = result("blocks", At("UB", image), At("GM", data), [4095, 1, 3, 0], dtype="int32")
    want = data.reshape(-1, 8)[: 4095 * 4 : 4].ravel()
    assert np.array_equal(got.view(np.int32)[: want.size], want)


GM, UB = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
WRONG = {
    "blockCount 0": ("PARAM", "blocks", At("UB", UB), At("GM", GM), [0, 1, 0, 0]),
    "blockCount 4096": ("PARAM", "blocks", At("UB", UB), At("GM", GM), [4096, 1, 0, 0]),
    "blockLen 0": ("PARAM", "blocks", At("UB", UB), At("GM", GM), [1, 0, 0, 0]),
    "count 0": ("PARAM", "count", At("UB", UB), At("GM", GM), [0]),
    "ragged count": ("ALIGN", "count", At("UB", UB), At("GM", GM), [17]),
    "UB not aligned": ("ALIGN", "count", At("UB", UB, 16), At("GM", GM), [16]),
    "BT not aligned": ("ALIGN", "count", At("BT", UB[:1024], 32), At("L1", GM), [32]),
    "overlap": ("OVERLAP", "count", At("UB", UB, 32), At("UB", UB), [32]),
    "beyond GM": ("GM-OOB", "count", At("UB", UB), At("GM", GM, 4064), [32]),
    "beyond UB": ("OOB", "blocks", At("UB", UB), At("GM", GM), [2, 1, 0, 6144]),
    "no path": ("UNSUPPORTED", "count", At("L1", UB), At("L1", GM), [16]),
    "other type": ("DTYPE", "blocks", At("FB", UB[:2048]), At("L1", GM), [1, 1, 0, 0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(name: str) -> None:
    kind, op, dst, src, params = WRONG[name]
    more = {"dtype": "float", "other": "half"} if kind == "DTYPE" else {}
    assert finding(op, dst, src, params, **more) == kind
