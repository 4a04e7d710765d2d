"""Reductions against trees and searches in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.emulator.vector import cases, data
from tests.ops.emulator.vector.lanes import active, bits, load, settle, store
from tests.ops.emulator.vector.program import COUNT, FIRST, TYPES, WIDTH, Bytes, Command, run

REALS = ("half", "float")
ORDERS = ("value index", "index value", "value", "index")


def tree(x: np.ndarray) -> Any:
    """Neighbours added up until one is left, in the type of ``x``."""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def best(x: np.ndarray, largest: bool) -> int:
    """Position of the first extreme element; the first NaN if there is one."""
    if np.isnan(x).any():
        return int(np.flatnonzero(np.isnan(x))[0])
    return int(np.argmax(x) if largest else np.argmin(x))


def padded(values: np.ndarray, lanes: np.ndarray, width: int) -> np.ndarray:
    """A repeat with zeros where no lane is active."""
    full = np.zeros(2048 // width, values.dtype)
    full[lanes] = values
    return full


def repeats(command: Command, image: Bytes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Active lanes and their values, of each repeat."""
    kind, width = command.dst_type, WIDTH[command.dst_type]
    return [
        (lanes, load(image, kind, bits(command, 1, kind, width, r, lanes)).copy())
        for r, lanes in enumerate(active(command, width))
    ]


def index_type(kind: str) -> str:
    """The unsigned integer of the same size."""
    return {"half": "u2", "float": "u4"}[kind]


def whole_results(command: Command, image: Bytes) -> list[tuple[int, bytes]]:
    """Byte address and bytes of each result of WholeReduce*."""
    kind, size = command.dst_type, WIDTH[command.dst_type] // 8
    out = []
    for r, (lanes, values) in enumerate(repeats(command, image)):
        if command.name == "WholeReduceSum":
            out.append(
                (
                    command.dst + r * command.stride[3] * size,
                    tree(padded(values, lanes, 8 * size)).tobytes(),
                )
            )
            continue
        at = best(values, command.name.endswith("Max"))
        value, index = values[at].tobytes(), np.array(lanes[at]).astype(index_type(kind)).tobytes()
        order = ORDERS[command.mode]
        parts = {"value": value, "index": np.uint32(lanes[at]).tobytes()}
        parts |= {"value index": value + index, "index value": index + value}
        unit = {"value": size, "index": 4}.get(order, 2 * size)
        out.append((command.dst + r * command.stride[3] * unit, parts[order]))
    return out


def write(image: Bytes, results: list[tuple[int, bytes]]) -> None:
    """Put bytes at addresses, in order."""
    for address, raw in results:
        image[address : address + len(raw)] = np.frombuffer(raw, np.uint8)


def compare(
    command: Command, image: Bytes, results: list[tuple[int, bytes]], scratch: int = 0
) -> None:
    """Run it; ``scratch`` bytes from ``extra`` may change."""
    outcome = run([command], image)
    assert not outcome.report.findings, (command, outcome.report.findings[0])
    expected = image.copy()
    write(expected, results)
    kind, size = command.dst_type, WIDTH[command.dst_type] // 8
    touched = np.concatenate([np.arange(a, a + len(raw), size) for a, raw in results])
    settle(expected, outcome.image, kind, touched * 8)
    expected[command.extra : command.extra + scratch] = outcome.image[
        command.extra : command.extra + scratch
    ]
    wrong = np.flatnonzero(expected != outcome.image)
    assert wrong.size == 0, (command, wrong[:8], expected[wrong[:8]], outcome.image[wrong[:8]])


def masked(rng: np.random.Generator, width: int, count: int) -> list[cases.Fields]:
    """Random forms with a mask."""
    return [f for f in cases.forms(rng, width, 2 * count) if f["form"] != COUNT][:count]


def strided(fields: cases.Fields, repeat: int) -> cases.Fields:
    """The form with another repeat stride of the destination."""
    stride: Any = fields["stride"]
    return fields | {"stride": (*stride[:3], repeat, *stride[4:])}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", REALS)
def test_whole_reduce(kind: str, special: bool) -> None:
    rng = np.random.default_rng(4 + special)
    image = data.image(rng, (kind,) * 4, special)
    with np.errstate(all="ignore"):
        for i, fields in enumerate(masked(rng, WIDTH[kind], 24)):
            for name in ("WholeReduceSum", "WholeReduceMax", "WholeReduceMin"):
                command = Command(name, kind, mode=i % 4, **strided(fields, i % 5))
                compare(command, image, whole_results(command, image))


@pytest.mark.parametrize("kind", REALS)
def test_block_and_pair_reduce(kind: str) -> None:
    rng = np.random.default_rng(5)
    size, image = WIDTH[kind] // 8, data.image(rng, (kind,) * 4)
    per, full = 32 // size, 256 // size
    with np.errstate(all="ignore"):
        for i, fields in enumerate(masked(rng, WIDTH[kind], 16)):
            if fields["form"] == FIRST:
                fields = fields | {"mask": (full - i % per, 0)}
            command = Command("PairReduceSum", kind, **strided(fields, 1 + i % 3))
            results = []
            for r, (lanes, values) in enumerate(repeats(command, image)):
                row = padded(values, lanes, 8 * size)
                for pair in np.unique(lanes // 2):
                    at = command.dst + r * command.stride[3] * 128 + int(pair) * size
                    results.append((at, (row[2 * pair] + row[2 * pair + 1]).tobytes()))
            compare(command, image, results)
            for name in ("BlockReduceSum", "BlockReduceMax", "BlockReduceMin"):
                command = Command(name, kind, **strided(fields, 1 + i % 3))
                results = []
                for r, (lanes, values) in enumerate(repeats(command, image)):
                    row = padded(values, lanes, 8 * size)
                    for block in range(8):
                        mine = values[lanes // per == block]
                        chosen = (
                            tree(row[block * per :][:per])
                            if name.endswith("Sum")
                            else mine[best(mine, name.endswith("Max"))]
                        )
                        results.append(
                            (
                                command.dst + r * command.stride[3] * 8 * size + block * size,
                                chosen.tobytes(),
                            )
                        )
                compare(command, image, results)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", REALS)
def test_reduce_to_one(kind: str, special: bool) -> None:
    rng = np.random.default_rng(6 + special)
    size, image = WIDTH[kind] // 8, data.image(rng, (kind,) * 4, special)
    full = 256 // size
    with np.errstate(all="ignore"):
        for i, fields in enumerate(cases.forms(rng, WIDTH[kind], 24)):
            stride: Any = fields.get("stride", (1, 1, 1, 8, 8, 8))
            fields = fields | {"stride": (1, 1, 1, 8, stride[4], 8)}
            for name in ("ReduceSum", "ReduceMax", "ReduceMin"):
                command = Command(name, kind, option=i % 2, **fields)
                rows = repeats(command, image)
                if name == "ReduceSum":
                    level = np.array([tree(padded(v, lanes, 8 * size)) for lanes, v in rows])
                    while len(level) > 1:
                        level = np.pad(level, (0, -len(level) % full))
                        level = np.array([tree(part) for part in level.reshape(-1, full)])
                    result = level[0].tobytes()
                else:
                    values = np.concatenate([v for _, v in rows])
                    places = np.concatenate([r * full + lanes for r, (lanes, _) in enumerate(rows)])
                    at = best(values, name.endswith("Max"))
                    result = values[at].tobytes()
                    if command.option:
                        result += np.array(places[at]).astype(index_type(kind)).tobytes()
                compare(command, image, [(command.dst, result)], 0x2000)


def test_sums_are_trees() -> None:
    """1e8, 1, -1e8, 1, ...: in order the ones would be lost one by one."""
    image = np.zeros(0x8000, np.uint8)
    image.view(np.float32)[0x800 : 0x800 + 64] = np.tile(np.float32([1e8, 1, -1e8, 1]), 16)
    outcome = run(
        [Command("ReduceSum", "float", count=64), Command("ReduceSum", "float", dst=64, count=64)],
        image,
    )
    pairs = (np.float32(1e8) + np.float32(1)) + (np.float32(-1e8) + np.float32(1))
    assert outcome.image.view(np.float32)[0] == 16 * pairs
    assert TYPES["float"] == "f4"


def test_equal_elements_give_the_lowest_index() -> None:
    image = np.zeros(0x8000, np.uint8)
    image.view(np.float32)[0x800 : 0x800 + 500] = -1
    image.view(np.float32)[[0x800 + 70, 0x800 + 71, 0x800 + 400]] = 3
    outcome = run(
        [
            Command("ReduceMax", "float", count=500, option=1),
            Command(
                "WholeReduceMax",
                "float",
                form=FIRST,
                mask=(64, 0),
                repeats=7,
                dst=64,
                stride=(1, 1, 1, 1, 8, 8),
            ),
        ],
        image,
    )
    assert outcome.image.view(np.uint32)[1] == 70
    assert outcome.image.view(np.uint32)[16 + 1 : 16 + 14 : 2].tolist() == [0, 6, 0, 0, 0, 0, 16]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (
            {"name": "ReduceMax", "dst_type": "float", "count": 2000, "option": 1, "size": 300},
            "PARAM",
        ),
        ({"name": "ReduceMax", "dst_type": "float", "count": 64, "dst": 4}, "ALIGN"),
        ({"name": "ReduceSum", "dst_type": "float", "count": 64, "dst": 2}, "ALIGN"),
        ({"name": "ReduceSum", "dst_type": "float", "count": 64, "dst": 0x2000}, "OVERLAP"),
        ({"name": "ReduceSum", "dst_type": "float", "count": 64, "extra": 0x2000}, "OVERLAP"),
        ({"name": "WholeReduceSum", "dst_type": "float", "form": FIRST, "mask": (65, 0)}, "PARAM"),
        (
            {
                "name": "WholeReduceSum",
                "dst_type": "float",
                "form": FIRST,
                "mask": (64, 0),
                "repeats": 256,
            },
            "PARAM",
        ),
        ({"name": "BlockReduceMax", "dst_type": "float", "form": FIRST, "mask": (56, 0)}, "PARAM"),
        (
            {
                "name": "BlockReduceMax",
                "dst_type": "float",
                "form": FIRST,
                "mask": (64, 0),
                "dst": 16,
            },
            "ALIGN",
        ),
    ],
)
def test_wrong_calls(fields: dict[str, Any], kind: str) -> None:
    outcome = run([Command(**fields)], np.zeros(0x8000, np.uint8))
    assert kind in outcome.kinds


def test_half_rounds_at_every_node() -> None:
    values = np.full(128, 0.1, np.float16)
    image = np.zeros(0x8000, np.uint8)
    image[0x2000 : 0x2000 + 256] = values.view(np.uint8)
    outcome = run([Command("ReduceSum", "half", count=128)], image)
    copy = np.zeros(0x8000, np.uint8)
    store(copy, "half", np.array([0]), np.array([tree(values)]))
    assert outcome.image.view(np.float16)[0] == copy.view(np.float16)[0] == np.float16(0.1) * 128
