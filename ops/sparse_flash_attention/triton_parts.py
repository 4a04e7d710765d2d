"""Results of a call, and of the parts that its rows are split into."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.sparse_flash_attention.triton_source import combine
from glm5_ascend.ops.triton.runtime import INTERPRETED, padded

# Output [rows, H, width], or sums [parts, rows, H, width]; maximum and sum of weights F32.
Results = tuple[Tensor, Tensor, Tensor]
_ALL = 1 << 40  # positions of an only part


def results(query: Tensor, width: int) -> Results:
    """Output, maximum and sum of ``query`` [rows, H, ..], all to be filled."""
    peak = query.new_empty(query.shape[:2], dtype=torch.float32)
    return query.new_empty(*query.shape[:2], width), peak, torch.empty_like(peak)


def pieces(query: Tensor, n: int, width: int, parts: int) -> Results:
    """The same of ``parts`` of ``n`` rows, in F32."""
    peak = query.new_empty(parts, n, query.shape[1], dtype=torch.float32)
    out = torch.empty(*peak.shape, width, dtype=torch.float32, device=query.device)
    return out, peak, torch.empty_like(peak)


def length(count: int, parts: int, tile: int) -> int:
    """Positions of a part, whole tiles."""
    return -(-max(count, 1) // (parts * tile)) * tile if parts > 1 else _ALL


def add(found: Results, which: Tensor, whole: Results) -> None:
    """Put the parts of the rows ``which`` together."""
    out = found[0]
    parts, n, heads, width = out.shape
    combine[(n, heads)](
        *found, which, *whole, n, heads,
        PARTS=parts, PP=padded(parts, 1), V=width, VP=padded(width), INTERPRET=INTERPRETED,
    )  # fmt: skip
