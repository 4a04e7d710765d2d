"""Lightning indexer in Triton: scores with the keys on the rows of each product, exact selection.

Not run on a GPU yet: Triton's interpreter runs the kernels, its compiler builds them for sm_90a.

A program scores one part of a request's keys for up to four of its query tokens. Long rows are
found without a matrix of logits (triton_fused.py), others by selecting from one. Both count digits
of the scores' bits, which is exact and deterministic whatever they hold; a row's bits do not depend
on its batch. Products of the keys' dtype are summed in F32 (int8 exactly in int32, e4m3 as F16),
heads in F32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.lightning_indexer import triton_fused
from glm5_ascend.ops.lightning_indexer.triton_fused import KEPT_BYTES, Rows
from glm5_ascend.ops.triton import tuning
from glm5_ascend.ops.triton.rows import describe
from glm5_ascend.ops.triton.runtime import INTERPRETED, check_device, padded

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Columns of a product: query tokens of one group times heads.
_COLUMNS = 128
_TOKENS = 4
# Scores, or what is kept of them, that exist at once.
_CHUNK_BYTES = 1 << 28


def forward(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
    sorted: bool = False,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """(int32 [rows, sparse_count], F32 values [rows, sparse_count] or [0]), as in reference.py.

    Raises:
        Declined: F64, or a head size that is no power of two.
        ArgumentError: tensors that are not on a CUDA device.
    """
    work = _Work(query, key, weights, None, None, requests, keys, sparse_count, causal)
    return work.run(in_order=sorted, ranked=sorted or return_value)


def forward_quant(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
    sorted: bool = False,
) -> Tensor:
    """int32 [rows, sparse_count] of int8 or e4m3 query and key, as in reference.py.

    Raises:
        As :func:`forward`.
    """
    work = _Work(
        query, key, weights, query_scale, key_scale, requests, keys, sparse_count, causal
    )  # fmt: skip
    return work.run(in_order=sorted, ranked=sorted)[0]


class _Work:
    """One call: what to score and how many of it to keep."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        query_scale: Tensor | None,
        key_scale: Tensor | None,
        requests: Queries,
        keys: Keys,
        count: int,
        causal: bool,
    ) -> None:
        check_device(query)
        dim = query.shape[2]
        if dim != padded(dim):
            raise Declined(
                f"backend 'triton' takes heads of a power of two of at least 16 dims, not {dim}",
                "choose backend 'reference'",
            )
        for tensor in (query, weights):
            if tensor.dtype not in (*_DTYPES, torch.int8, torch.float8_e4m3fn):
                raise Declined(
                    "backend 'triton' scores bfloat16, float16, float32, int8 or e4m3, not "
                    f"{str(tensor.dtype).removeprefix('torch.')}",
                    "choose backend 'reference'",
                )
        self.query, self.key, self.weights = query, key, weights.contiguous()
        self.query_scale = None if query_scale is None else query_scale.contiguous()
        self.key_scale, self.count, self.requests = key_scale, count, requests
        self.rows = describe(requests, keys, causal=causal)
        self.heads = padded(query.shape[1])
        self.tokens = max(1, min(_TOKENS, _COLUMNS // self.heads))
        self.width = max(1, *keys.lengths) if keys.lengths else 1

    def run(self, *, in_order: bool, ranked: bool) -> tuple[Tensor, Tensor]:
        rows = len(self.query)
        out = torch.empty(rows, self.count, dtype=torch.int32, device=self.query.device)
        values = torch.empty(
            out.shape if ranked else (0,), dtype=torch.float32, device=self.query.device
        )
        how = tuning.indexer(self.key.dtype, self.query.shape[1], self.width)
        fused = not ranked and triton_fused.fits(how, self.width, self.count)
        step = max(1, _CHUNK_BYTES // ((KEPT_BYTES if fused else 4) * self.width))
        for begin in range(0, rows, step):
            part = slice(begin, min(begin + step, rows))
            some = self._rows(part, out[part])
            if fused:
                triton_fused.run(some, how)
                continue
            logits = torch.empty(
                part.stop - begin, self.width, dtype=torch.float32, device=self.query.device
            )
            if some.groups:
                triton_fused.scored(some, how, some.visible, logits, some=False)
            triton_fused.selected(some, some.visible, logits, some=False)
            if ranked:
                out[part], values[part] = _ranked(logits, out[part], in_order=in_order)
        return out, values

    def _rows(self, part: slice, out: Tensor) -> Rows:
        first, size = self._groups(part)
        query, weights = self.query[part], self.weights[part]
        query_scale = weights if self.query_scale is None else self.query_scale[part]
        key_scale = self.weights if self.key_scale is None else self.key_scale
        rows, visible = self.rows, self.rows.visible[part]
        tensors = (
            query, query.stride(0), query.stride(1), self.key, self.key.stride(0), weights,
            weights.stride(0), query_scale, query_scale.stride(0), key_scale, key_scale.stride(0),
        )  # fmt: skip
        places = (
            first, size, rows.request[part], visible, rows.start, rows.table, rows.table_stride
        )  # fmt: skip
        constants = {
            "D": query.shape[2], "Q": self.tokens, "H": self.heads, "PAGE": rows.page,
            "QUANT": self.query_scale is not None, "FP8": self.key.dtype == torch.float8_e4m3fn,
            "INTERPRET": INTERPRETED,
        }  # fmt: skip
        heads = query.shape[1]
        return Rows(len(first), tensors, places, constants, visible, heads, self.width, out)

    def _groups(self, part: slice) -> tuple[Tensor, Tensor]:
        """(first row counted from the part's, query tokens) of every program's group."""
        first, size = [], []
        for start, length in zip(self.requests.starts, self.requests.lengths, strict=True):
            for row in range(start, start + length, self.tokens):
                low, high = max(row, part.start), min(row + self.tokens, start + length, part.stop)
                if low < high:
                    first.append(low - part.start)
                    size.append(high - low)
        device = self.query.device
        return torch.tensor(first, device=device), torch.tensor(size, device=device)


def _ranked(logits: Tensor, chosen: Tensor, *, in_order: bool) -> tuple[Tensor, Tensor]:
    """(positions, scores) of ascending ``chosen``, by score if ``in_order``; lower ones first."""
    values = logits.gather(1, chosen.long().clamp_(min=0))
    values = values.masked_fill(chosen < 0, -torch.inf)
    if in_order:
        values, order = values.sort(dim=1, descending=True, stable=True)
        chosen = chosen.gather(1, order)
    return chosen, values
