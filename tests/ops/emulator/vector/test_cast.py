"""Cast: every pair of types, every rounding mode, ties, saturation, NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.emulator.vector import arithmetic, cases, data
from tests.ops.emulator.vector.lanes import active, bits, load, settle, store
from tests.ops.emulator.vector.program import COUNT, WIDTH, Bytes, Command, run

MODES = ("NONE", "RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD")
FIVE = MODES[1:6]
# As public documentation lists them for Atlas A2 and A3.
PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("half", "float"): ("NONE",),
    ("half", "int32"): FIVE,
    ("half", "int16"): FIVE,
    ("half", "int8"): ("NONE", *FIVE),
    ("half", "uint8"): ("NONE", *FIVE),
    ("half", "int4"): ("NONE", *FIVE),
    ("float", "float"): FIVE,
    ("float", "half"): MODES,
    ("float", "int64"): FIVE,
    ("float", "int32"): FIVE,
    ("float", "int16"): FIVE,
    ("float", "bf16"): FIVE,
    ("bf16", "float"): ("NONE",),
    ("bf16", "int32"): FIVE,
    ("int4", "half"): ("NONE",),
    ("uint8", "half"): ("NONE",),
    ("int8", "half"): ("NONE",),
    ("int16", "half"): ("NONE", *FIVE),
    ("int16", "float"): ("NONE",),
    ("int32", "float"): ("NONE", *FIVE),
    ("int32", "int64"): ("NONE",),
    ("int32", "int16"): ("NONE",),
    ("int32", "half"): ("NONE",),
    ("int64", "int32"): ("NONE",),
    ("int64", "float"): FIVE,
}
SCALE = 0.375


def apply(command: Command, image: Bytes, actual: Bytes) -> None:
    """The model: change ``image`` as the command does; NaNs keep the bits of ``actual``."""
    kind, source = command.dst_type, command.source
    widest = max(WIDTH[kind], WIDTH[source])
    for repeat, lanes in enumerate(active(command, widest)):
        to = bits(command, 0, kind, widest, repeat, lanes)
        x = load(image, source, bits(command, 1, source, widest, repeat, lanes))
        with np.errstate(all="ignore"):
            result = arithmetic.cast(x, source, kind, MODES[command.mode], SCALE)
        store(image, kind, to, result)
        settle(image, actual, kind, to)


def compare(command: Command, image: Bytes) -> None:
    """One Cast on one image."""
    before = [Command("SetDeqScale", "half", scalar=SCALE)] if command.source == "int32" else []
    outcome = run([*before, command], image)
    assert not outcome.report.findings, (command, outcome.report.findings[0])
    expected = image.copy()
    apply(command, expected, outcome.image)
    if command.dst_type == "bf16":
        both = [v.view(np.uint16) & 0x7FFF > 0x7F80 for v in (expected, outcome.image)]
        nan = both[0] & both[1]
        expected.view(np.uint16)[nan] = outcome.image.view(np.uint16)[nan]
    wrong = np.flatnonzero(expected != outcome.image)
    assert wrong.size == 0, (command, wrong[:8], expected[wrong[:8]], outcome.image[wrong[:8]])


@pytest.mark.parametrize(
    ("source", "kind", "mode"), [(*pair, mode) for pair, modes in PAIRS.items() for mode in modes]
)
def test_values(source: str, kind: str, mode: str) -> None:
    rng = np.random.default_rng(MODES.index(mode))
    image = data.image(rng, (kind, source, source, source))
    widest = max(WIDTH[source], WIDTH[kind])
    compare(
        Command("Cast", kind, source, COUNT, mode=MODES.index(mode), count=0x2000 * 8 // widest),
        image,
    )
    for fields in cases.forms(rng, widest, 5):
        if "int4" in (source, kind):
            fields = fields | {"form": COUNT, "count": int(rng.integers(1, 300)) * 2}
        compare(Command("Cast", kind, source, mode=MODES.index(mode), **fields), image)


@pytest.mark.parametrize("mode", MODES)
def test_every_half_comes_back(mode: str) -> None:
    """Exact values keep their bits in every mode."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = values[~np.isnan(values)]
    for start in range(0, len(values), 2048):
        part = values[start : start + 2048].astype(np.float32)
        image = np.zeros(0x6000, np.uint8)
        image[0x2000 : 0x2000 + part.nbytes] = part.view(np.uint8)
        outcome = run(
            [Command("Cast", "half", "float", count=len(part), mode=MODES.index(mode))], image
        )
        back = outcome.image[: 2 * len(part)].view(np.float16)
        np.testing.assert_array_equal(back.view(np.uint16), part.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize(("source", "kind"), PAIRS)
def test_modes_that_the_pair_lacks(source: str, kind: str) -> None:
    image = np.zeros(0x8000, np.uint8)
    for mode in set(MODES) - set(PAIRS[source, kind]):
        outcome = run([Command("Cast", kind, source, count=64, mode=MODES.index(mode))], image)
        assert outcome.kinds == ["PARAM"], mode


def test_scale_is_needed() -> None:
    outcome = run([Command("Cast", "half", "int32", count=64)], np.zeros(0x8000, np.uint8))
    assert outcome.kinds == ["PARAM"]
    assert "SetDeqScale" in outcome.report.findings[0].text


def test_half_a_byte_of_int4() -> None:
    image = np.zeros(0x8000, np.uint8)
    outcome = run([Command("Cast", "int4", "half", count=63)], image)
    assert outcome.kinds == ["PARAM"]
