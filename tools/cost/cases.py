"""Shapes of the table, what they should reach, and published numbers beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glm5_ascend.ops.emulator.rates import CHIPS, ELEMENTS, LAUNCH_HEAD, MMAD_START

Row = Mapping[str, Any]
CHIP = "910c"


@dataclass(frozen=True, slots=True)
class Goal:
    """``measure`` of a row is at most ``bound``, or at least if ``at_least``.

    ``what`` for the terminal, ``short`` for the README, which has the values in columns.
    """

    what: str
    short: str
    measure: Callable[[Row], float]
    bound: float
    at_least: bool = False

    def show(self, value: float) -> str:
        """A share in percent, or a factor."""
        return f"{100 * value:.0f} %" if self.at_least else f"{value:.2f}x"

    def margin(self, value: float) -> float:
        """How far beyond the bound, as a part of it; negative where it is missed."""
        return value / self.bound - 1 if self.at_least else 1 - value / self.bound


@dataclass(frozen=True, slots=True)
class Entry:
    """A shape of an operator; ``quick`` ones are what ``--only`` runs."""

    name: str
    operator: str
    shape: str
    goals: tuple[Goal, ...] = ()
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """A number of others, in ``unit``.

    ``steps``: the model's number for what the published kernel does, by formula; ``entry``: the row
    of this project's kernel at that shape.
    """

    what: str
    number: str
    value: float
    unit: str
    entry: str = ""
    note: str = ""
    steps: float | None = None


def _over_floor(row: Row) -> float:
    return float(row["times"][0] / row["floor_bytes"])


def _over_bound(row: Row) -> float:
    return float(row["times"][0] / row["bounds"][0])


BOUND = Goal("time over the largest pipe bound", "bound", _over_bound, 1.25)
LI_DECODE = Goal("over the byte floor", "floor", _over_floor, 1.5)
SFA_DECODE = Goal("over the gather floor", "floor", _over_floor, 3.0)
MLAPO = Goal("over the weight-read floor", "floor", _over_floor, 1.3)


def _peak(bound: float) -> Goal:
    return Goal("of the cubes' peak", "peak", lambda row: float(row["cube_peak"]), bound, True)


def _decode(operator: str, short: str, goal: Goal) -> list[Entry]:
    return [
        Entry(
            f"{short}-decode{'-int8' * int8}-b{b}-{s // 1024}k",
            operator,
            f"b={b},q=1,s={s},int8={int8}",
            (BOUND, goal),
            quick=b == 1 and s == 65536,
        )
        for int8 in (0, 1)
        for b in (1, 16)
        for s in (65536, 131072)
    ]


ENTRIES = (
    *_decode("lightning_indexer", "li", LI_DECODE),
    Entry("li-prefill-8k", "lightning_indexer", "q=8192,s=8192", (BOUND, _peak(0.45))),
    Entry("li-prefill-2k", "lightning_indexer", "q=2048,s=2048"),
    Entry("li-prefill-128", "lightning_indexer", "q=128,s=128", quick=True),
    Entry("li-decode-b1-8k", "lightning_indexer", "q=1,s=8192"),
    Entry("li-tilelang", "lightning_indexer", "b=2,q=512,s=4096,k=1024"),
    *_decode("sparse_flash_attention", "sfa", SFA_DECODE),
    Entry("sfa-prefill-192", "sparse_flash_attention", "q=192,s=65536", (BOUND, _peak(0.55))),
    *(
        Entry(f"mlapo-{t}", "mlapo", f"t={t},int8=1", (BOUND, MLAPO), quick=t == 8)
        for t in (1, 8, 64)
    ),
)

_SORT_STEPS, _SORT_STEPS_MORE = 4.36, 3300  # elements sorted and merged per key, and per row


def _indexer_prefill(tokens: int) -> float:
    """Microseconds, launch head included, of the published indexer's vector steps in a prefill.

    Per key and row one cycle to weight and add 32 heads, and a full sort: Sort32 and four levels of
    merges with a running list of 2048.
    """
    chip = CHIPS[CHIP]
    keys = (tokens + 1) / 2
    sorting = (_SORT_STEPS * keys + _SORT_STEPS_MORE) / ELEMENTS["sort"].value
    rows = tokens / chip.vectors
    return LAUNCH_HEAD.value + chip.microseconds(rows * (keys + sorting))


_LI = "AscendC lightning indexer on A3 (FlagGems-vllm PR 791)"
_HEADS = "heads not published: 32, since with 64 it would exceed the peak of a die"
PUBLISHED = (
    Published(f"{_LI}, decode", "19.5 to 27.4 us", 23.45, "us", "li-decode-b1-8k",
              "context not published: 8192 keys; ratio to the middle"),
    Published(f"{_LI}, prefill 128", "32 us", 32.0, "us", "li-prefill-128", _HEADS,
              _indexer_prefill(128)),
    Published(f"{_LI}, prefill 2048", "102.6 us", 102.6, "us", "li-prefill-2k", _HEADS,
              _indexer_prefill(2048)),
    Published(f"{_LI}, prefill 8192", "989.8 us", 989.8, "us", "li-prefill-8k", _HEADS,
              _indexer_prefill(8192)),
    Published("MLA pre-processing, fused (xLLM, GLM)", "97 us", 97.0, "us", "mlapo-8",
              "tokens and chip not published: 8 tokens"),
    Published("TileLang lightning indexer on A3, B 2, S1 512, S2 4096, K 1024", "654 us", 654.0,
              "us", "li-tilelang", "heads not published: 32; a kernel of another kind"),
    Published("AMLA, dense MLA on 910C", "86.8 % of peak", 86.8, "% of peak", "",
              "products of 128 x 128 x 128 by their formula, 512 / (512 + 60)",
              100 * 512 / (512 + MMAD_START.value)),
    Published("sparse_attn_sharedkv on 910B1, decode and prefill", "40.3 us, 6.66 ms", 0, "", "",
              "neither batch nor context is published"),
    Published("PTO flash attention on 910B2, 16 to 32k", "42 to 48 % of peak", 0, "", "",
              "dense attention; no kernel here does that"),
)  # fmt: skip


def ours(published: Published, rows: Mapping[str, Row]) -> float | None:
    """This project's kernel beside a published time of a launch, its head included."""
    row = rows.get(published.entry)
    if row is None:
        return None
    return float(row["times"][0]) + LAUNCH_HEAD.value * row["launches"]
