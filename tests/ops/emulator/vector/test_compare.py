"""Compare, CompareScalar and Select against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.emulator.vector import cases, data
from tests.ops.emulator.vector.lanes import active, bits, load, settle, store
from tests.ops.emulator.vector.program import COUNT, FIRST, WIDTH, Command, run

COMPARISONS = (np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal)
EQ = 2


def full_forms(rng: np.random.Generator, width: int, count: int) -> list[cases.Fields]:
    """Forms that name every lane."""
    lanes = 2048 // width
    forms = cases.forms(rng, width, count)
    return [
        {"form": COUNT, "count": int(rng.integers(1, 8)) * lanes}
        if f["form"] == COUNT
        else f | {"form": FIRST, "mask": (lanes, 0)}
        for f in forms
    ]


@pytest.mark.parametrize("mode", range(6))
@pytest.mark.parametrize("kind", ["half", "float", "int32"])
@pytest.mark.parametrize("name", ["Compare", "CompareScalar"])
def test_bits(name: str, kind: str, mode: int) -> None:
    rng = np.random.default_rng(7)
    width, image = WIDTH[kind], data.image(rng, (kind,) * 4)
    image[0x4000 : 0x4000 + 0x1000] = image[0x2000 : 0x2000 + 0x1000]
    for fields in full_forms(rng, width, 12):
        command = Command(name, kind, mode=mode, scalar=2, **fields)
        outcome = run([command], image)
        if kind == "int32" and mode != EQ:
            assert outcome.kinds == ["DTYPE"]
            continue
        assert not outcome.report.findings, outcome.report.findings[0]
        expected, rows = image.copy(), []
        for r, lanes in enumerate(active(command, width)):
            a, b = (load(image, kind, bits(command, i, kind, width, r, lanes)) for i in (1, 2))
            rows.append(
                COMPARISONS[mode](a, b if name == "Compare" else np.array(2).astype(a.dtype))
            )
        packed = np.packbits(np.concatenate(rows), bitorder="little")
        expected[: len(packed)] = packed
        np.testing.assert_array_equal(outcome.image, expected, str(command))


@pytest.mark.parametrize("kind", ["half", "float"])
@pytest.mark.parametrize("mode", range(3))
def test_select(mode: int, kind: str) -> None:
    rng = np.random.default_rng(8)
    width, image = WIDTH[kind], data.image(rng, (kind, kind, kind, "uint8"))
    full = 2048 // width
    for fields in cases.forms(rng, width, 24):
        command = Command("Select", kind, mode=mode, option=int(mode == 1), scalar=-2.5, **fields)
        outcome = run([command], image)
        assert not outcome.report.findings, outcome.report.findings[0]
        chosen = np.unpackbits(image[command.extra :], bitorder="little").astype(bool)
        expected = image.copy()
        for r, lanes in enumerate(active(command, width)):
            to, x, y = (bits(command, i, kind, width, r, lanes) for i in range(3))
            b = (
                load(image, kind, y)
                if mode != 1
                else np.array(-2.5).astype(load(image, kind, y).dtype)
            )
            bit = chosen[lanes + (0 if mode == 0 else r * full)]
            store(expected, kind, to, np.where(bit, load(image, kind, x), b))
            settle(expected, outcome.image, kind, to)
        np.testing.assert_array_equal(outcome.image, expected, str(command))


def test_ragged_tail_is_reported_and_left_out() -> None:
    image = np.full(0x8000, 0xFF, np.uint8)
    outcome = run([Command("CompareScalar", "float", count=100, scalar=1.0, mode=1)], image)
    assert outcome.kinds == ["PARAM"]
    assert "36 elements are not compared" in outcome.report.findings[0].text
    assert outcome.image[:8].tolist() == [0] * 8
    assert (outcome.image[8:16] == 0xFF).all()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"name": "Compare", "form": FIRST, "mask": (63, 0)}, "PARAM"),
        ({"name": "Compare", "count": 64, "dst": 0x2000}, "OVERLAP"),
        ({"name": "Compare", "count": 64, "dst": 8}, "ALIGN"),
        ({"name": "Select", "count": 64, "mode": 1}, "PARAM"),
        ({"name": "Select", "count": 64, "mode": 2, "option": 1}, "PARAM"),
        ({"name": "Select", "count": 64, "mode": 2, "extra": 0x6008}, "ALIGN"),
        ({"name": "Select", "count": 64, "mode": 2, "extra": 0}, "OVERLAP"),
        ({"name": "Select", "count": 64, "mode": 2, "dst": 0x2020}, "OVERLAP"),
    ],
)
def test_wrong_calls(fields: dict[str, Any], kind: str) -> None:
    outcome = run([Command(dst_type="float", **fields)], np.zeros(0x8000, np.uint8))
    assert outcome.kinds == [kind]
