"""The best keys without a matrix of logits: a sampled bound, what reaches it, the best of that.

Exact whatever the sample says: what is kept are all keys that reach the bound, so if they are
enough the best of all are among them. Rows for which they are too few, or more than one program
takes, are found by ``scores`` and ``select`` instead, in the memory of what was kept; those two are
launched always and do nothing where no row asks for them, so that nothing is read back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops.lightning_indexer.triton_source import (
    bounds,
    choose,
    keep,
    sample,
    scores,
    select,
)
from glm5_ascend.ops.triton.runtime import padded
from glm5_ascend.ops.triton.tuning import Indexer

SCAN, BITS = 1024, 8  # scores of a step of the selection, bits of a digit
DIGITS = {"BINS": 1 << BITS, "BITS": BITS}
# Numbers of one warp where a program holds all of a row's.
_OF_WARP = 512
# Bytes of a row's key: a score and a position.
KEPT_BYTES = 8


class Rows(NamedTuple):
    """Some rows of a call: groups of query tokens, what the kernels need of them, where to put it.

    ``tensors`` and ``places`` are the first arguments of every kernel that scores, ``constants``
    its compiled ones.
    """

    groups: int
    tensors: tuple[Any, ...]
    places: tuple[Any, ...]
    constants: dict[str, Any]
    visible: Tensor
    heads: int
    width: int
    out: Tensor


def fits(how: Indexer, width: int, count: int) -> bool:
    """Whether a row of ``width`` keys at most is sampled to find ``count`` of them."""
    return how.samples > 0 and width >= 4 * count and 2 * count <= how.room


def warps(numbers: int) -> int:
    """Warps of a program that holds ``numbers`` at once."""
    return max(4, numbers // _OF_WARP)


def run(rows: Rows, how: Indexer) -> None:
    """Fill ``rows.out``, int32 [rows, count], with ascending positions."""
    n, count = rows.out.shape
    device, visible = rows.out.device, rows.visible
    parts = -(-rows.width // how.part)
    width = parts * how.part

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    bound, wanted, fills = integers(n), integers(n), integers(n, parts)
    values, positions = integers(n, width), integers(n, width)
    samples = torch.empty(n, how.samples, dtype=torch.float32, device=device)
    if not rows.groups:
        fills.zero_()
    else:
        sample[(rows.groups, how.samples // how.tile)](
            *rows.tensors, *rows.places, samples, count, rows.heads,
            **rows.constants, BN=how.tile, SAMPLES=how.samples, num_warps=how.warps, num_stages=1,
        )  # fmt: skip
        bounds[(n,)](
            samples, visible, bound, count, SAMPLES=how.samples, **DIGITS,
            num_warps=warps(how.samples),
        )  # fmt: skip
        keep[(rows.groups, parts)](
            *rows.tensors, *rows.places, bound, values, positions, fills, width, how.part, count,
            rows.heads, **rows.constants, BN=how.tile, num_warps=how.warps, num_stages=how.stages,
        )  # fmt: skip
    choose[(n,)](
        values, positions, fills, visible, rows.out, wanted, width, how.part, parts, count,
        PARTS=padded(parts, 1), ROOM=how.room, BN=SCAN, **DIGITS,
        num_warps=warps(2 * how.room),
    )  # fmt: skip
    if rows.groups:
        scored(rows, how, wanted, values.view(torch.float32), some=True)
    selected(rows, wanted, values.view(torch.float32), some=True)


def scored(rows: Rows, how: Indexer, wanted: Tensor, logits: Tensor, *, some: bool) -> None:
    """Fill ``logits`` F32 [rows, width]; if ``some``, of groups with a row that is wanted."""
    scores[(rows.groups, -(-rows.width // how.part))](
        *rows.tensors, *rows.places, wanted, logits, logits.shape[1], how.part, rows.heads,
        **rows.constants, BN=how.tile, SOME=some, num_warps=how.warps, num_stages=how.stages,
    )  # fmt: skip


def selected(rows: Rows, wanted: Tensor, logits: Tensor, *, some: bool) -> None:
    """Fill ``rows.out`` by ``logits``; if ``some``, of rows that are wanted."""
    select[(len(rows.out),)](
        logits, logits.shape[1], rows.visible, wanted, rows.out, rows.out.shape[1],
        BN=SCAN, **DIGITS, SOME=some, num_warps=8,
    )  # fmt: skip
