"""Which bytes of UB an instruction touches: the model of masks, repeats and strides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.ops.emulator.vector.program import BITS, COUNT, TYPES, WIDTH, Bytes, Command

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def active(command: Command, width: int, counter: bool = False) -> Iterator[Ints]:
    """The active lanes of each repeat of an instruction on elements of ``width`` bits."""
    per_repeat = 2048 // width
    total = command.count if command.form == COUNT else command.mask[0] if counter else None
    if total is not None:
        for start in range(0, total, per_repeat):
            yield np.arange(min(per_repeat, total - start))
        return
    for _ in range(command.repeats):
        if command.form == BITS:
            word = command.mask[0] | command.mask[1] << 64
            yield np.array([i for i in range(per_repeat) if word >> i & 1], np.int64)
        else:
            yield np.arange(command.mask[0])


def bits(command: Command, operand: int, kind: str, widest: int, repeat: int, lanes: Ints) -> Ints:
    """Bit positions in UB of the lanes of a repeat; ``operand``: 0 dst, 1 src0, 2 src1."""
    width = WIDTH[kind]
    base = (command.dst, command.src0, command.src1)[operand] * 8
    if command.form == COUNT:
        return base + (repeat * (2048 // widest) + lanes) * width
    per_block = 256 // width
    block, stride = command.stride[operand], command.stride[3 + operand]
    return base + (repeat * stride + lanes // per_block * block) * 256 + lanes % per_block * width


def load(image: Bytes, kind: str, positions: Ints) -> np.ndarray:
    """Elements at bit positions; int4 as signed numbers."""
    if kind == "int4":
        nibbles = image[positions // 8] >> (positions % 8).astype(np.uint8) & 15
        return nibbles.astype(np.int8) - 16 * (nibbles >= 8).astype(np.int8)
    size = WIDTH[kind] // 8
    raw = image[positions[:, None] // 8 + np.arange(size)]
    return raw.reshape(-1).view(TYPES[kind])


def store(image: Bytes, kind: str, positions: Ints, values: np.ndarray) -> None:
    """Write elements at bit positions; later ones win."""
    if kind == "int4":
        for position, value in zip(positions, values, strict=True):
            shift = int(position % 8)
            kept = int(image[position // 8]) & ~(15 << shift)
            image[position // 8] = kept | (int(value) & 15) << shift
        return
    size = WIDTH[kind] // 8
    raw = np.ascontiguousarray(values.astype(TYPES[kind])).view(np.uint8).reshape(-1, size)
    image[positions[:, None] // 8 + np.arange(size)] = raw


def settle(
    expected: Bytes, actual: Bytes, kind: str, positions: Ints, ulps: int = 0, zeros: bool = False
) -> None:
    """Take over elements of ``actual`` that are NaN in both, or at most ``ulps`` units off.

    ``zeros``: also those that are a zero of either sign in both.
    """
    if kind not in ("half", "float"):
        return
    signed = {"half": "i2", "float": "i4"}[kind]
    want, have = load(expected, kind, positions), load(actual, kind, positions)
    nan = np.isnan(want) & np.isnan(have)
    near = nan | (zeros & (want == 0) & (have == 0))
    if ulps:
        low = np.iinfo(signed).min
        raw = (want.view(signed).astype(np.int64), have.view(signed).astype(np.int64))
        steps = [np.where(s < 0, low - s, s) for s in raw]
        near |= (np.abs(steps[0] - steps[1]) <= ulps) & np.isfinite(want) & np.isfinite(have)
    store(expected, kind, positions[near], have[near])
