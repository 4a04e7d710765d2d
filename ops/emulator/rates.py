"""Chips, and the rates of their cores, as data: every number has a source and a mark.

Marks: D vendor documentation, P published and not reproduced, C computed, S read in public source
(fits of the PTO cost model to measurements), I assumed here, because nothing is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.ops.emulator import abi
from glm5_ascend.ops.emulator.abi import Rates

MARKS = {
    "D": "vendor documentation",
    "P": "published, not reproduced",
    "C": "computed from other numbers",
    "S": "read in public source",
    "I": "assumed: nothing is published",
}


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number, where it comes from, and its mark."""

    value: float
    mark: str
    source: str


@dataclass(frozen=True, slots=True)
class Chip:
    """What a launch gets: one die. ``ghz``, ``hbm`` and ``l2`` (bytes per second, all cores)."""

    name: str
    cubes: int
    ghz: Sourced
    hbm: Sourced
    l2: Sourced
    l2_bytes: Sourced

    @property
    def vectors(self) -> int:
        """AIV of the die."""
        return 2 * self.cubes

    def cycles(self, microseconds: float) -> float:
        """Cycles in so much time."""
        return microseconds * self.ghz.value * 1e3

    def microseconds(self, cycles: float) -> float:
        """Time of so many cycles."""
        return cycles / (self.ghz.value * 1e3)

    def products(self, kind: str) -> float:
        """Multiply-adds per second of all cubes; ``kind`` is one of ``abi.CUBE_TYPES``."""
        return self.cubes * 256 * CUBE_K[kind].value * self.ghz.value * 1e9


_A2_CLOCK = Sourced(1.8, "D", "implied by the documented vector peak of 11.06 TOPS in F32")
_NO_CLOCK = Sourced(1.8, "I", "no trustworthy source; that of 910B2")
_L2 = Sourced(5e12, "D", "about 5 TB/s of reads, 7 mixed")
_L2_SIZE = Sourced(192 * 2**20, "D", "192 MB")
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("910b2", 24, _A2_CLOCK, Sourced(1.6e12, "D", "1.6 to 1.8 TB/s"), _L2, _L2_SIZE),
        Chip(
            "910b3", 20, _NO_CLOCK, Sourced(1.6e12, "I", "64 GB as 910B2: the same"), _L2, _L2_SIZE
        ),
        Chip(
            "910b4",
            20,
            _NO_CLOCK,
            Sourced(0.8e12, "I", "32 GB; 0.8 TB/s stands in a page that names no chip"),
            _L2,
            _L2_SIZE,
        ),
        Chip(
            "910c",
            24,
            Sourced(1.8, "C", "implied by the peak of 707 TFLOPS for two dies"),
            Sourced(1.6e12, "P", "1.6 TB/s per die"),
            Sourced(5e12, "I", "that of A2"),
            Sourced(192 * 2**20, "I", "192 MB per die"),
        ),
    )
}

# Time before the first byte of each transfer between memories. The vendor's formula has the term
# and no value, so results are given for all of these, in microseconds.
START_UPS = (0.0, 0.5, 1.0)
MMAD_START = Sourced(60, "D", "cycles: 128 x 128 x 512 takes 2048 + 60")
ISSUE = Sourced(1, "I", "cycles of S per instruction")
LAUNCH_HEAD = Sourced(20.5, "D", "us of an empty kernel on all cores of an A2: 20 to 21")

CUBE_K = {
    "b16": Sourced(16, "D", "16 x 16 x 16 per cycle"),
    "int8": Sourced(32, "D", "16 x 16 x 32 per cycle"),
    "int4": Sourced(64, "D", "16 x 16 x 64 per cycle"),
    "f32": Sourced(4, "D", "16 x 16 x 4 per cycle"),
    "hf32": Sourced(8, "D", "16 x 16 x 8 per cycle"),
}
# 4-byte elements per cycle.
ELEMENTS = {
    "simple": Sourced(64, "D", "256 bytes per cycle"),
    "transcendental": Sourced(32, "D", "Exp, Ln, Sqrt, Div"),
    "cast": Sourced(64, "D", "Cast"),
    "copy": Sourced(64, "D", "256 bytes per cycle"),
    "broadcast": Sourced(64, "D", "Brcb"),
    "compare": Sourced(64, "I", "as other operations of one pass"),
    "reduce": Sourced(9, "D", "ReduceRepeat, about 9"),
    "gather_mask": Sourced(32, "D", "GatherMask in F32"),
    "gather": Sourced(5, "D", "Gather"),
    "sort": Sourced(2, "D", "Sort32 and MrgSort"),
    "transpose": Sourced(64, "I", "as other operations of one pass"),
}
_GIB = float(2**30)
_FIT = "fit of the PTO cost model, bytes per second"
# Bytes per second of one core between memories, and bytes per cycle inside it.
PER_SECOND = {
    "GM-UB": Sourced(100.9 * _GIB, "S", _FIT),
    "GM-L1": Sourced(135 * _GIB, "S", _FIT),
    "GM-L0A": Sourced(135 * _GIB, "I", "as to L1"),
    "GM-L0B": Sourced(135 * _GIB, "I", "as to L1"),
    "UB-GM": Sourced(188 * _GIB, "S", _FIT),
    "L1-GM": Sourced(188 * _GIB, "I", "as from UB"),
}
PER_CYCLE = {
    "UB-L1": Sourced(256, "I", "width of UB"),
    "UB-UB": Sourced(256, "D", "a vector instruction"),
    "L0C-GM": Sourced(128, "D", "per cycle; the fit is SLOW_FIXPIPE"),
    "L0C-L1": Sourced(128, "D", "per cycle; the fit is 128 GiB per second"),
    "L1-L0A": Sourced(256, "D", "per cycle"),
    "L1-L0B": Sourced(128, "D", "per cycle"),
    "L1-BT": Sourced(128, "I", "as to L0B"),
    "L1-FB": Sourced(128, "I", "as to L0B"),
    "fill": Sourced(256, "I", "width of L0A"),
}


# The documentation and the fit differ by a factor of three, so times are given for this one too.
# Published prefill times of a lightning indexer that stores F32 scores are not possible with it.
SLOW_FIXPIPE = Sourced(70 * _GIB, "S", _FIT + ", from L0C to GM")


def rates(chip: Chip, start_up: float, *, slow_fixpipe: bool = False) -> Rates:
    """Those of ``chip`` for a start-up of ``start_up`` microseconds per transfer to or from GM."""
    per_second = chip.ghz.value * 1e9
    table = Rates(
        issue=ISSUE.value,
        cube_start=MMAD_START.value,
        hbm_bytes=chip.hbm.value / per_second,
        l2_bytes=chip.l2.value / per_second,
    )
    for i, name in enumerate(abi.VECTOR_OPS):
        table.elements[i] = ELEMENTS[name].value
    for i, name in enumerate(abi.CUBE_TYPES):
        table.cube_k[i] = CUBE_K[name].value
    for i, name in enumerate(abi.PATHS):
        if name in PER_SECOND:
            table.move_bytes[i] = PER_SECOND[name].value / per_second
        else:
            table.move_bytes[i] = PER_CYCLE[name].value
        if name == "L0C-GM" and slow_fixpipe:
            table.move_bytes[i] = SLOW_FIXPIPE.value / per_second
        if "GM" in name:
            table.move_start[i] = chip.cycles(start_up)
    return table
