"""mlapo's kernels compiled for ARM, run under an emulator, against this processor's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glm5_ascend.ops.native import library
from tests.ops.native.calls import Array, Call, Out, emulated, here
from tests.ops.native.cross import driver, emulator

ENTRIES = ("g5_mlapo_quantise", "g5_mlapo_product", "g5_mlapo_latents", "g5_mlapo_heads")
F32, BF16 = 0, 1
WHOLE_F32 = 2  # kind of a product
ROWS, Q_LORA, KV_LORA, ROPE, HEADS, NOPE = 5, 37, 45, 6, 3, 21
_GENERATOR = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return _GENERATOR.standard_normal(shape).astype(np.float32)


def _stored(x: Array, dtype: int) -> Array:
    """F32, or the upper half of it: BF16 by truncation."""
    return x if dtype == F32 else (x.view(np.uint32) >> 16).astype(np.uint16)


def _format(dtype: int) -> type:
    return np.float32 if dtype == F32 else np.uint16


def _sums(width: int) -> Array:
    return np.rint(_floats(ROWS, width) * 40000).astype(np.float32)


def _tables() -> list[Array]:
    angles = _floats(ROWS, ROPE // 2)
    return [np.cos(angles), np.sin(angles)]


def quantise(dtype: int, fixed: Array | None) -> Call:
    x = _stored(_floats(ROWS, 101), dtype)
    results = Out(np.int8, (ROWS, 101)), Out(np.float32, (ROWS,))
    return Call(ENTRIES[0], (x, dtype, ROWS, 101, 101, fixed, *results))


def product(terms: int) -> Call:
    codes, weight = (
        _GENERATOR.integers(-128, 128, shape).astype(np.int8) for shape in ((8, terms), (70, terms))
    )
    return Call(ENTRIES[1], (codes, 8, terms, weight, 70, terms, Out(np.int32, (8, 70))))


def latents(dtype: int, fixed: Array | None) -> Call:
    """With biases and one scale for all rows where ``fixed``, else with scales per row."""
    parts: list[Array | int | None] = []
    for width in (Q_LORA, KV_LORA + ROPE):
        bias = None if fixed is None else np.arange(width, dtype=np.int32) * 17
        parts += [_sums(width), WHOLE_F32, np.abs(_floats(width)) * 1e-4, bias]
    row_scale = None if fixed is not None else np.abs(_floats(ROWS))
    kind = _format(dtype)
    sizes = np.array([ROWS, Q_LORA, KV_LORA, ROPE, KV_LORA, ROPE], np.int64)
    return Call(
        ENTRIES[2],
        (
            *(dtype, sizes, *parts, row_scale),
            *(_stored(_floats(width), dtype) for width in (Q_LORA, KV_LORA)),
            *(np.array([1e-5, 3e-5]), *_tables(), np.array([3, -1, 0, 6, 7], np.int64)),
            *(Out(kind, (8, KV_LORA)), Out(kind, (8, ROPE))),
            *(Out(kind, (ROWS, Q_LORA)), fixed),
            *(Out(np.int8, (ROWS, Q_LORA)), Out(np.float32, (ROWS,))),
        ),
    )


def heads(dtype: int, rows: int) -> Call:
    width, kind = HEADS * (NOPE + ROPE), _format(dtype)
    angles = _floats(rows, ROPE // 2)
    return Call(
        ENTRIES[3],
        (
            *(dtype, rows, HEADS, NOPE, ROPE, KV_LORA),
            *(np.rint(_floats(rows, width) * 40000).astype(np.float32), WHOLE_F32),
            *(np.abs(_floats(width)) * 1e-4, None, np.abs(_floats(rows))),
            *(np.cos(angles), np.sin(angles)),
            *(_stored(_floats(HEADS, NOPE, KV_LORA), dtype), NOPE * KV_LORA, KV_LORA),
            *(Out(kind, (rows, HEADS, KV_LORA)), Out(kind, (rows, HEADS, ROPE))),
        ),
    )


def _value(x: Array) -> Array:
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


@pytest.mark.slow  # compiles everything in one go
def test_same_results_on_arm(tmp_path: Path) -> None:
    fixed = np.array([0.02, -7], np.float32)
    exact = [quantise(d, f) for d in (F32, BF16) for f in (None, fixed)]
    exact += [latents(d, f) for d in (F32, BF16) for f in (None, fixed)]
    exact += [product(terms) for terms in (1, 48, 200)]
    close = [heads(d, rows) for d in (F32, BF16) for rows in (1, 2, 7, 30)]
    command = [emulator(), str(driver("mlapo", ENTRIES, "neon", tmp_path))]
    results = emulated(command, ENTRIES, [*exact, *close], tmp_path, threads=2)
    kernels = library("mlapo")
    for call, found in zip(exact, results, strict=False):
        for ours, wanted in zip(found, here(kernels, call), strict=True):
            np.testing.assert_array_equal(ours, wanted, err_msg=call.entry)
    for call, found in zip(close, results[len(exact) :], strict=True):
        (query, rope), (wanted, wanted_rope) = found, here(kernels, call)
        np.testing.assert_array_equal(rope, wanted_rope)
        limit = 1e-5 if query.dtype == np.float32 else 2**-7
        np.testing.assert_allclose(
            _value(query), _value(wanted), rtol=limit, atol=limit * np.abs(_value(wanted)).max()
        )
