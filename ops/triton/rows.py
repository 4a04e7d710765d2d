"""Whose row is whose, as the kernels read it: small int64 tensors on the tensors' device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Keys, Queries, visible_keys


class Rows(NamedTuple):
    """``request`` and ``visible`` [rows]: owner and number of keys seen, 0 where nobody owns a row;
    ``start`` [requests]: first flat key row, zeros with a block table."""

    request: Tensor
    visible: Tensor
    start: Tensor
    table: Tensor
    table_stride: int
    page: int


def describe(requests: Queries, keys: Keys, *, causal: bool) -> Rows:
    """Rows of a call that passed ``layout.check`` and ``layout.spans``."""
    request, visible = visible_keys(requests, keys, causal=causal)
    starts = keys.starts or [0] * max(1, len(keys.lengths))
    start = torch.tensor(starts, dtype=torch.int64, device=keys.device)
    table = keys.block_table
    if table is None:
        return Rows(request, visible, start, start, 0, 0)
    return Rows(request, visible, start, table, table.stride(0), keys.block_size)
