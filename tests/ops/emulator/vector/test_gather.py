"""GatherMask, Gather, Gatherb, Duplicate, CreateVecIndex, Copy, Brcb and Transpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.emulator.vector import cases, data
from tests.ops.emulator.vector.lanes import active, bits, load, store
from tests.ops.emulator.vector.program import COUNT, FIRST, TYPES, WIDTH, Command, bits_of, run

STORABLE = ("int16", "uint16", "half", "bf16", "int32", "uint32", "float")


def code(kind: str) -> str:
    """NumPy type that moves the bits of elements."""
    return f"u{WIDTH[kind] // 8}"


def keeps(pattern: int, count: int) -> np.ndarray:
    """Which of ``count`` elements a built-in pattern keeps."""
    index = np.arange(count)
    if pattern in (1, 2):
        return index % 2 == pattern - 1
    return index % 4 == pattern - 3 if pattern < 7 else np.ones(count, bool)


def same(outcome: Any, expected: np.ndarray, command: Command) -> None:
    """No finding and the same bytes."""
    assert not outcome.report.findings, (command, outcome.report.findings[0])
    np.testing.assert_array_equal(outcome.image, expected, str(command))


@pytest.mark.parametrize("kind", STORABLE)
@pytest.mark.parametrize("pattern", range(8))
def test_gather_mask(pattern: int, kind: str) -> None:
    rng = np.random.default_rng(9)
    size, image = WIDTH[kind] // 8, data.image(rng, (kind,) * 2 + (f"uint{WIDTH[kind]}",) * 2)
    for i in range(12):
        counter, per = i % 2, 32 // size
        count = int(rng.integers(1, 300)) if counter else 256 // size
        repeats = int(rng.integers(1, 5))
        stride = (
            1,
            int(rng.integers(1, 3)),
            1,
            0,
            int(rng.integers(0, 40)),
            int(rng.integers(0, 3)),
        )
        command = Command(
            "GatherMask",
            kind,
            mode=pattern,
            option=counter,
            count=count * counter,
            repeats=repeats,
            stride=stride,
        )
        kept = []
        for r in range(repeats):
            lanes = np.arange(count)
            at = command.src0 + (r * stride[4] + lanes // per * stride[1]) * 32 + lanes % per * size
            values = load(image, kind, at * 8)
            tensor = np.unpackbits(image[command.src1 + r * stride[5] * 32 :], bitorder="little")[
                :count
            ]
            kept.append(values[keeps(pattern, count) if pattern else tensor.astype(bool)])
        result = np.concatenate(kept)
        expected = image.copy()
        raw = result.view(np.uint8)
        expected[: len(raw)] = raw
        outcome = run([command], image)
        same(outcome, expected, command)
        assert outcome.results[0, 0] == len(result)


@pytest.mark.parametrize("kind", STORABLE)
def test_gather(kind: str) -> None:
    rng = np.random.default_rng(10)
    size = WIDTH[kind] // 8
    image = data.image(rng, (kind,) * 2 + ("uint32",) * 2)
    offsets = rng.integers(0, 0x1F00 // size, 0x800).astype(np.uint32) * size
    image[0x4000:0x6000] = offsets.view(np.uint8)
    for i, fields in enumerate(cases.forms(rng, WIDTH[kind], 16)):
        fields = fields | {"stride": (1, 1, 1, 8 + i % 3, 8, 8)}
        base = i * size
        command = Command("Gather", kind, scalar=base, size=0x2000, **fields)
        expected = image.copy()
        for r, lanes in enumerate(active(command, WIDTH[kind])):
            place = command.src0 + base + offsets[r * 256 // size + lanes].astype(np.int64)
            store(
                expected,
                kind,
                bits(command, 0, kind, WIDTH[kind], r, lanes),
                load(image, kind, place * 8),
            )
        # The scalar travels as bits of the element type.
        outcome = run(
            [command.__class__(**{**command.__dict__, "scalar": _raw(base, kind)})], image
        )
        same(outcome, expected, command)


def _raw(number: int, kind: str) -> Any:
    """A scalar of ``kind`` whose bits are ``number``."""
    if kind == "bf16":
        return float(np.uint32(number << 16).view(np.float32))
    return np.array(number).astype(code(kind)).view(TYPES[kind]).item()


@pytest.mark.parametrize("kind", ["half", "float"])
def test_gather_blocks(kind: str) -> None:
    rng = np.random.default_rng(11)
    image = data.image(rng, (kind,) * 2 + ("uint32",) * 2)
    offsets = rng.integers(0, 0x1F00 // 32, 0x800).astype(np.uint32) * 32
    image[0x4000:0x6000] = offsets.view(np.uint8)
    for block, repeat, count in ((1, 8, 3), (2, 16, 5), (3, 1, 4), (1, 0, 2)):
        command = Command(
            "Gatherb", kind, repeats=count, stride=(block, 1, 1, repeat, 8, 8), size=0x2000
        )
        expected = image.copy()
        for i in range(count * 8):
            to = (i // 8 * repeat + i % 8 * block) * 32
            at = 0x2000 + int(offsets[i])
            expected[to : to + 32] = image[at : at + 32]
        same(run([command], image), expected, command)


@pytest.mark.parametrize("kind", STORABLE)
def test_fill_copy_broadcast(kind: str) -> None:
    rng = np.random.default_rng(12)
    width = WIDTH[kind]
    size, image = width // 8, data.image(rng, (kind,) * 4)
    for i, fields in enumerate(cases.forms(rng, width, 16)):
        command = Command("Duplicate", kind, scalar=3, **fields)
        expected = image.copy()
        value = np.array([bits_of(3, kind)]).astype(code(kind)).view(TYPES[kind])
        for r, lanes in enumerate(active(command, width)):
            store(
                expected,
                kind,
                bits(command, 0, kind, width, r, lanes),
                np.repeat(value, len(lanes)),
            )
        same(run([command], image), expected, command)
        if fields["form"] != COUNT:
            command = Command("Copy", kind, **fields)
            expected = image.copy()
            for r, lanes in enumerate(active(command, width)):
                to, x = (bits(command, k, kind, width, r, lanes) for k in range(2))
                store(expected, kind, to, load(image, kind, x))
            same(run([command], image), expected, command)
        command = Command("Brcb", kind, repeats=1 + i, stride=(1 + i % 2, 1, 1, 8 + i % 3, 8, 8))
        expected = image.copy()
        for k in range(8 * command.repeats):
            to = (k // 8 * command.stride[3] + k % 8 * command.stride[0]) * 32
            expected[to : to + 32] = np.tile(image[0x2000 + k * size :][:size], 32 // size)
        same(run([command], image), expected, command)


@pytest.mark.parametrize("kind", ["int16", "half", "int32", "float"])
def test_index_ramp(kind: str) -> None:
    rng = np.random.default_rng(13)
    width, image = WIDTH[kind], data.image(rng, (kind,) * 4)
    for fields in cases.forms(rng, width, 12):
        command = Command("CreateVecIndex", kind, scalar=-7, **fields)
        expected = image.copy()
        for r, lanes in enumerate(active(command, width)):
            to = bits(command, 0, kind, width, r, lanes)
            store(expected, kind, to, (r * 2048 // width + lanes - 7.0))
        same(run([command], image), expected, command)


@pytest.mark.parametrize("kind", ["int16", "uint16", "half"])
@pytest.mark.parametrize("src", [0x2000, 0])
def test_transpose(kind: str, src: int) -> None:
    image = data.image(np.random.default_rng(14), (kind,) * 4)
    expected = image.copy()
    expected[:512] = (
        image[src : src + 512].view(np.uint16).reshape(16, 16).T.copy().reshape(-1).view(np.uint8)
    )
    command = Command("Transpose", kind, src0=src)
    same(run([command], image), expected, command)


MASKED = {"name": "GatherMask", "dst_type": "float", "mode": 1, "option": 1, "count": 64}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (MASKED | {"mode": 8}, "PARAM"),
        (MASKED | {"count": 0}, "PARAM"),
        (MASKED | {"option": 0}, "PARAM"),
        (MASKED | {"repeats": 65536}, "PARAM"),
        (MASKED | {"dst": 0x2000}, "OVERLAP"),
        (MASKED | {"dst": 4}, "ALIGN"),
        (MASKED | {"size": 64}, "OOB"),
        ({"name": "Gather", "dst_type": "float", "count": 8, "size": 0x1000}, "OOB"),
        (
            {"name": "Gather", "dst_type": "float", "count": 8, "dst": 0x2000, "src1": 0x6000},
            "OVERLAP",
        ),
        ({"name": "Gather", "dst_type": "float", "count": 9}, "ALIGN"),
        ({"name": "Brcb", "dst_type": "float", "repeats": 255}, "PARAM"),
        ({"name": "Brcb", "dst_type": "float", "dst": 0x2000}, "OVERLAP"),
        (
            {
                "name": "Duplicate",
                "dst_type": "float",
                "form": FIRST,
                "mask": (64, 0),
                "stride": (0, 1, 1, 8, 8, 8),
            },
            "PARAM",
        ),
        ({"name": "Duplicate", "dst_type": "float", "count": 0}, "PARAM"),
        ({"name": "Duplicate", "dst_type": "float", "count": -1}, "PARAM"),
        ({"name": "Duplicate", "dst_type": "float", "count": 64, "size": 128}, "OOB"),
        (
            {"name": "Copy", "dst_type": "float", "form": FIRST, "mask": (64, 0), "dst": 0x2080},
            "OVERLAP",
        ),
        ({"name": "Transpose", "dst_type": "half", "dst": 0x2020}, "OVERLAP"),
    ],
)
def test_wrong_calls(fields: dict[str, Any], kind: str) -> None:
    image = np.zeros(0x8000, np.uint8)
    image[0x4000:0x4040].view(np.uint32)[:] = [*range(0x0, 0x20, 4), 2, *range(4, 32, 4)]
    if kind == "OOB":
        image[0x4000:0x4004].view(np.uint32)[0] = 0x1000
    outcome = run([Command(**fields)], image)
    assert kind in outcome.kinds
