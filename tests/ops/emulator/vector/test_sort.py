"""Sort32, MrgSort with suspension, and Extract against stable sorts in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.emulator.vector.program import COUNT, FIRST, Bytes, Command, run

REALS = ("half", "float")
CODE = {"half": np.float16, "float": np.float32}
TAKEN = {3: 2, 7: 3, 15: 4}


def scores(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Few values, so that many are equal; both zeros and infinities among them."""
    pool = np.array([*range(-9, 10), -0.0, np.inf, -np.inf], CODE[kind])
    return rng.choice(pool, count)


def records(values: np.ndarray, index: np.ndarray, filler: Bytes | None = None) -> Bytes:
    """Records of score and index; unused bytes as ``filler`` has them."""
    out = np.zeros((len(values), 8), np.uint8) if filler is None else filler.reshape(-1, 8).copy()
    size = values.dtype.itemsize
    out[:, :size] = values.view(np.uint8).reshape(-1, size)
    out[:, 4:] = index.astype(np.uint32).view(np.uint8).reshape(-1, 4)
    return out.reshape(-1)


def clean(outcome: Any) -> None:
    """No finding."""
    assert not outcome.report.findings, outcome.report.findings[0]


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("repeats", [1, 2, 16])
def test_sort32(kind: str, repeats: int) -> None:
    rng = np.random.default_rng(15)
    count = 32 * repeats
    for _ in range(8):
        image = rng.integers(0, 256, 0x8000).astype(np.uint8)
        values, index = scores(rng, kind, count), rng.permutation(count)
        image[0x2000 : 0x2000 + values.nbytes] = values.view(np.uint8)
        image[0x4000 : 0x4000 + 4 * count] = index.astype(np.uint32).view(np.uint8)
        expected = image.copy()
        for start in range(0, count, 32):
            part = slice(start, start + 32)
            order = np.argsort(-values[part].astype(np.float64), kind="stable")
            rows = slice(8 * start, 8 * start + 256)
            expected[rows] = records(values[part][order], index[part][order], expected[rows])
        outcome = run([Command("Sort32", kind, repeats=repeats)], image)
        clean(outcome)
        np.testing.assert_array_equal(outcome.image, expected)


def merged(lists: list[np.ndarray], suspend: bool) -> tuple[list[tuple[int, int]], list[int]]:
    """(list, position) of each record of the merge, and how many of each list were taken."""
    taken, order = [0] * len(lists), []
    while True:
        open_lists = [i for i, x in enumerate(lists) if taken[i] < len(x)]
        if not open_lists or (suspend and len(open_lists) < len(lists)):
            return order, taken
        best = max(open_lists, key=lambda i: (float(lists[i][taken[i]]), -i))
        order.append((best, taken[best]))
        taken[best] += 1


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("valid", [3, 7, 15])
@pytest.mark.parametrize("form", [COUNT, FIRST])
def test_merge(kind: str, suspend: bool, valid: int, form: int) -> None:
    rng = np.random.default_rng(16)
    for round_ in range(12):
        lengths = [int(n) for n in rng.integers(1, 60, 4)]
        gap = 8 * int(round_ % 3)
        image = rng.integers(0, 256, 0x8000).astype(np.uint8)
        lists, rows, at = [], [], 0x2000
        for length in lengths:
            values = np.sort(scores(rng, kind, length))[::-1].copy()
            raw = records(values, rng.integers(0, 2**32, length), image[at : at + 8 * length])
            image[at : at + 8 * length] = raw
            lists.append(values)
            rows.append(raw.reshape(-1, 8))
            at += 8 * length + gap
        order, taken = merged(lists[: TAKEN[valid]], suspend)
        expected = image.copy()
        unused = slice(2, 4) if kind == "half" else slice(4, 4)
        for k, (i, position) in enumerate(order):
            record = rows[i][position].copy()
            record[unused] = expected[8 * k : 8 * k + 8][unused]
            expected[8 * k : 8 * k + 8] = record
        command = Command(
            "MrgSort",
            kind,
            form=form,
            count=int(suspend),
            mode=valid,
            option=gap,
            lengths=tuple(lengths),
        )
        outcome = run([command], image)
        clean(outcome)
        np.testing.assert_array_equal(outcome.image, expected, str(command))
        if form == COUNT or suspend:
            assert outcome.results[0].tolist() == taken + [0] * (4 - len(taken))


@pytest.mark.parametrize("kind", REALS)
def test_sort_by_merging_repeats(kind: str) -> None:
    """Sort32, then repeats of four lists: the whole is one stable sort."""
    rng = np.random.default_rng(17)
    values, index = scores(rng, kind, 512), np.arange(512)
    image = np.zeros(0x8000, np.uint8)
    image[0x2000 : 0x2000 + values.nbytes] = values.view(np.uint8)
    image[0x4000:0x4800] = index.astype(np.uint32).view(np.uint8)
    commands = [
        Command("Sort32", kind, repeats=16),
        Command("MrgSort", kind, dst=0x2000, src0=0, lengths=(32,) * 4, mode=15, repeats=4),
        Command("MrgSort", kind, dst=0, src0=0x2000, lengths=(128,) * 4, mode=15),
        Command("Extract", kind, dst=0x2000, extra=0x6000, src0=0, repeats=16),
    ]
    outcome = run(commands, image)
    clean(outcome)
    order = np.argsort(-values.astype(np.float64), kind="stable")
    got = outcome.image[0x2000 : 0x2000 + values.nbytes].view(CODE[kind])
    np.testing.assert_array_equal(got, values[order])
    np.testing.assert_array_equal(outcome.image[0x6000:0x6800].view(np.uint32), order)


MERGE: dict[str, Any] = {"name": "MrgSort", "mode": 15, "lengths": (4, 4, 4, 4)}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"name": "Sort32", "dst": 128}, "ALIGN", ""),
        ({"name": "Sort32", "src0": 0x2020}, "ALIGN", ""),
        ({"name": "Sort32", "src1": 0x4020}, "ALIGN", ""),
        ({"name": "Sort32", "dst": 0x2000}, "OVERLAP", ""),
        ({"name": "Sort32", "repeats": 256}, "PARAM", ""),
        ({"name": "Sort32", "repeats": 2, "size": 0x100}, "OOB", ""),
        ({"name": "Extract", "repeats": -1}, "PARAM", ""),
        ({"name": "Extract", "dst": 0x2000}, "OVERLAP", ""),
        (MERGE | {"mode": 5}, "PARAM", "validBit"),
        (MERGE | {"lengths": (4096, 4, 4, 4)}, "PARAM", "elementLengths"),
        (MERGE | {"lengths": (0, 4, 4, 4)}, "PARAM", "elementLengths"),
        (MERGE | {"repeats": 256}, "PARAM", "repeatTimes"),
        (MERGE | {"repeats": 2, "count": 1}, "PARAM", "repeatTimes > 1"),
        (MERGE | {"repeats": 2, "lengths": (4, 4, 4, 5)}, "PARAM", "repeatTimes > 1"),
        (MERGE | {"repeats": 2, "option": 8}, "PARAM", "repeatTimes > 1"),
        (MERGE | {"repeats": 2, "mode": 7}, "PARAM", "repeatTimes > 1"),
        (MERGE | {"dst": 0x2000}, "OVERLAP", ""),
        (MERGE | {"dst": 8}, "ALIGN", ""),
        (MERGE | {"src0": 0x2004}, "ALIGN", ""),
    ],
)
def test_wrong_calls(fields: dict[str, Any], kind: str, text: str) -> None:
    outcome = run([Command(dst_type="float", **fields)], np.zeros(0x8000, np.uint8))
    assert kind in outcome.kinds
    assert any(text in finding.text for finding in outcome.report.findings)


def test_unsorted_list_is_reported() -> None:
    image = np.zeros(0x8000, np.uint8)
    image[0x2000 : 0x2000 + 16] = records(np.array([1, 2], np.float32), np.arange(2))
    outcome = run([Command("MrgSort", "float", mode=3, lengths=(2, 2, 0, 0))], image)
    assert outcome.kinds[0] == "PARAM"
    assert "not sorted" in outcome.report.findings[0].text
