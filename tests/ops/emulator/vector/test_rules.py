"""Masks, counter mode, overlap, ranges and order: what is allowed works, the rest is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ops.emulator.vector.program import BITS, COUNT, CURRENT, FIRST, Bytes, Command, run
from tests.ops.emulator.vector.test_elementwise import apply

ADD = Command("Add", "float", form=FIRST, mask=(64, 0))
HERE = Command("Add", "float", form=CURRENT, repeats=3)
SET, COUNTER, NORM, RESET = (
    Command(n, "half") for n in ("SetVectorMask", "SetMaskCount", "SetMaskNorm", "ResetMask")
)


@pytest.fixture(scope="module")
def image() -> Bytes:
    """Floats from 1 to 2, so that sums differ from what they replace."""
    return (1 + np.random.default_rng(20).random(0x2000)).astype(np.float32).view(np.uint8)


def changed(commands: list[Command], image: Bytes) -> np.ndarray:
    """Floats of dst that differ after commands without findings."""
    outcome = run(commands, image)
    assert not outcome.report.findings, outcome.report.findings[0]
    return np.flatnonzero(outcome.image.view(np.uint32) != image.view(np.uint32))


def test_mask_registers(image: Bytes) -> None:
    """SetVectorMask in its forms, then an instruction that takes the registers."""
    lanes = [0, 3, 63]
    words = replace(SET, dst_type="float", form=BITS, mask=(sum(1 << i for i in lanes), 0))
    expected = [64 * r + i for r in range(3) for i in lanes]
    assert changed([words, HERE], image).tolist() == expected
    assert changed([words, HERE, HERE], image).tolist() == expected
    length = replace(SET, dst_type="float", form=COUNT, count=10)
    assert changed([length, HERE], image).tolist() == [
        64 * r + i for r in range(3) for i in range(10)
    ]
    assert changed([RESET, HERE], image).tolist() == [*range(192)]


def test_half_uses_both_words() -> None:
    image = (1 + np.random.default_rng(21).random(0x4000) / 2).astype(np.float16).view(np.uint8)
    words = replace(SET, form=BITS, mask=(1 << 5, 1 << 63))
    outcome = run([words, replace(HERE, dst_type="half", repeats=1)], image)
    assert not outcome.report.findings
    assert np.flatnonzero(outcome.image.view(np.uint16) != image.view(np.uint16)).tolist() == [
        5,
        127,
    ]


def test_counter_mode(image: Bytes) -> None:
    """The count is of all elements; repeatTime has no meaning; strides have."""
    first = replace(ADD, mask=(150, 0), repeats=1)
    assert changed([COUNTER, first], image).tolist() == [*range(150)]
    strided = replace(first, stride=(1, 1, 1, 16, 8, 8))
    assert changed([COUNTER, strided], image).tolist() == [
        *range(64),
        *range(128, 192),
        *range(256, 278),
    ]
    count = replace(SET, dst_type="float", form=COUNT, count=130, option=1)
    assert changed([COUNTER, count, HERE], image).tolist() == [*range(130)]
    word = replace(SET, dst_type="float", form=BITS, mask=(70, 0), option=1)
    assert changed([COUNTER, word, HERE], image).tolist() == [*range(70)]
    assert changed([COUNTER, NORM, replace(ADD, repeats=2)], image).tolist() == [*range(128)]


@pytest.mark.parametrize(
    "commands",
    [
        [HERE],
        [RESET, ADD, HERE],
        [RESET, replace(ADD, form=COUNT, count=64), HERE],
        [COUNTER, HERE],
        [COUNTER, RESET, HERE],
        [replace(SET, form=COUNT, count=10, option=1), HERE],
        [COUNTER, replace(SET, form=COUNT, count=10), HERE],
        [COUNTER, replace(ADD, form=COUNT, count=64), ADD],
        [replace(SET, dst_type="float", form=COUNT, count=65)],
        [replace(SET, dst_type="float", form=BITS, mask=(1, 1))],
        [replace(SET, form=COUNT, count=0)],
        [replace(SET, form=COUNT, count=129)],
        [COUNTER, replace(ADD, form=BITS, mask=(64, 1))],
        [COUNTER, replace(ADD, mask=(0, 0))],
    ],
)
def test_unspecified_masks(commands: list[Command], image: Bytes) -> None:
    assert "PARAM" in run(commands, image).kinds


@pytest.mark.parametrize(
    "fields",
    [
        {"mask": (0, 0)},
        {"mask": (65, 0)},
        {"form": BITS, "mask": (0, 0)},
        {"form": BITS, "mask": (1, 1)},
        {"repeats": 256},
        {"repeats": -1},
        {"stride": (256, 1, 1, 8, 8, 8)},
        {"stride": (1, 1, 1, 256, 8, 8)},
        {"stride": (1, 1, 1, 8, -1, 8)},
        {"stride": (0, 1, 1, 8, 8, 8)},
        {"form": COUNT, "count": 0},
        {"form": COUNT, "count": -5},
    ],
)
def test_ranges(fields: dict[str, Any], image: Bytes) -> None:
    outcome = run([replace(ADD, **fields)], image)
    assert outcome.kinds == ["PARAM"]
    np.testing.assert_array_equal(outcome.image, image)


def test_no_repeat_is_no_work(image: Bytes) -> None:
    assert changed([replace(ADD, repeats=0)], image).size == 0


@pytest.mark.parametrize("tensor", ["dst", "src0", "src1"])
def test_alignment_and_bounds(tensor: str, image: Bytes) -> None:
    place: dict[str, Any] = {tensor: getattr(ADD, tensor) + 16}
    assert "ALIGN" in run([replace(ADD, **place)], image).kinds
    beyond: dict[str, Any] = {tensor: 192 * 1024 - 256 - 64}
    assert run([replace(ADD, **beyond)], image).kinds[-1] == "OOB"
    assert set(run([replace(ADD, size=252)], image).kinds) == {"OOB"}
    assert changed([replace(ADD, size=256)], image).tolist() == [*range(64)]


# dst, src0, src1, strides, repeats, name, whether it is allowed.
S, R = 0x2000, 256
OVERLAPS = [
    ("in place", S, S, 0, (1, 1, 1, 8, 8, 8), 4, "Add", True),
    ("both in place", S, S, S, (1, 1, 1, 8, 8, 8), 4, "Add", True),
    ("part of an iteration", S + 32, S, 0, (1, 1, 1, 8, 8, 8), 1, "Add", False),
    ("the next iteration's source", S + R, S, 0, (1, 1, 1, 8, 8, 8), 4, "Add", False),
    ("a later iteration's source", S + 2 * R, S, 0, (1, 1, 1, 8, 8, 8), 4, "Add", False),
    ("the iteration before", S, S + R, 0, (1, 1, 1, 8, 8, 8), 4, "Add", True),
    ("accumulate in src1", S, 0, S, (1, 1, 1, 0, 8, 0), 4, "Add", True),
    ("accumulate maximum", S, 0, S, (1, 1, 1, 0, 8, 0), 4, "Max", True),
    ("accumulate in src0", S, S, 0, (1, 1, 1, 0, 0, 8), 4, "Add", False),
    ("accumulate a quotient", S, 0, S, (1, 1, 1, 0, 8, 0), 4, "Div", False),
    ("source read again", S, S, 0, (1, 1, 1, 8, 0, 8), 4, "Add", False),
    ("other block strides", S, S, 0, (1, 2, 1, 8, 16, 8), 1, "Add", False),
    ("interleaved", S, S + 32, 0, (2, 2, 1, 16, 16, 8), 4, "Add", True),
]


@pytest.mark.parametrize("row", OVERLAPS, ids=lambda row: row[0])
def test_overlap(row: tuple[Any, ...], image: Bytes) -> None:
    _, dst, src0, src1, stride, repeats, name, allowed = row
    command = replace(ADD, name=name, dst=dst, src0=src0, src1=src1, stride=stride, repeats=repeats)
    outcome = run([command], image)
    assert outcome.kinds == ([] if allowed else ["OVERLAP"])
    if allowed:
        expected = image.copy()
        apply(command, expected)
        np.testing.assert_array_equal(outcome.image, expected)


def test_integers_do_not_accumulate(image: Bytes) -> None:
    command = replace(ADD, dst_type="int32", src1=0, src0=S, stride=(1, 1, 1, 0, 8, 0), repeats=4)
    assert run([command], image).kinds == ["OVERLAP"]


def test_narrowing_in_place(image: Bytes) -> None:
    assert run([Command("Cast", "half", "float", count=64, dst=S, mode=1)], image).kinds == [
        "OVERLAP"
    ]


@pytest.mark.parametrize(
    ("second", "kinds"),
    [
        (replace(ADD, dst=0x6000, src0=0), ["RAW"]),
        (replace(ADD), ["WAW"]),
        (replace(ADD, dst=S, src0=0x6000), ["WAR"]),
        (replace(ADD, dst=0x6000, src0=0x6000), []),
    ],
)
def test_order_of_two_instructions(second: Command, kinds: list[str], image: Bytes) -> None:
    """Without a barrier a hazard, with one none."""
    assert run([replace(ADD, barrier=False), second], image).kinds == kinds
    assert run([ADD, second], image).kinds == []


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        # Strided accesses touch their blocks only.
        (
            replace(ADD, stride=(2, 1, 1, 16, 8, 8)),
            replace(ADD, dst=32, stride=(2, 1, 1, 16, 8, 8)),
            [],
        ),
        (replace(ADD, mask=(8, 0)), replace(ADD, dst=0x6000, src0=32, mask=(8, 0)), []),
        (replace(ADD, mask=(9, 0)), replace(ADD, dst=0x6000, src0=32, mask=(8, 0)), ["RAW"]),
        (
            replace(ADD, form=BITS, mask=(1 << 63, 0)),
            replace(ADD, dst=0x6000, src0=0, mask=(56, 0)),
            [],
        ),
        (
            replace(ADD, form=BITS, mask=(1 << 63, 0)),
            replace(ADD, dst=0x6000, src0=224, mask=(1, 0)),
            ["RAW"],
        ),
    ],
)
def test_extent_of_accesses(
    first: Command, second: Command, kinds: list[str], image: Bytes
) -> None:
    assert run([replace(first, barrier=False), second], image).kinds == kinds


def test_uninitialised_source() -> None:
    """The image ends at 0x1000: what lies beyond was never written."""
    outcome = run(
        [Command("Adds", "float", dst=0, src0=0x2000, count=8)], np.zeros(0x1000, np.uint8)
    )
    assert outcome.kinds == ["UNINIT"]
    assert (
        run(
            [
                Command("Duplicate", "float", dst=0x2000, count=64),
                Command("Adds", "float", src0=0x2000, count=64),
            ],
            np.zeros(0x1000, np.uint8),
        ).kinds
        == []
    )


def test_work(image: Bytes) -> None:
    """Elements and repeats of the counters, by class of operation."""
    report = run(
        [
            replace(ADD, repeats=3, mask=(10, 0)),
            Command("Exp", "float", count=100),
            Command("Cast", "half", "float", count=130, mode=1),
            Command("Sort32", "float", repeats=2),
        ],
        image,
    ).report
    lane = next(lane for lane in report.lanes if lane.pipe == "V")
    assert lane.elements == {"simple": 30, "transcendental": 100, "cast": 130, "sort": 64}
    assert lane.repeats == {"simple": 3, "transcendental": 2, "cast": 3, "sort": 2}
