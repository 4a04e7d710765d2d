"""Indexer scores and selection over paged keys: inputs, F64, and the project's contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import lightning_indexer, lightning_indexer_quant
from glm5_ascend.ops.verify.compare import Figures
from tools.gpu_bench import draw
from tools.gpu_bench.costs import INDEX_DIM, INDEX_HEADS
from tools.gpu_bench.draw import PAGE
from tools.gpu_bench.entry import Contestant, Ready, own
from tools.gpu_bench.shapes import Shape

# Relative error of a score's sum that is granted: of F32 sums, and of e4m3 products, which Hopper's
# tensor cores add with fewer bits (14 below the largest of 32 terms).
_GRANTED = {"bf16": 2.0**-20, "int8": 2.0**-20, "fp8": 2.0**-12}


@dataclass(frozen=True)
class Set:
    """query [tokens, 32, 128] and keys [context, 128] in order of position, weights F32 [tokens,
    32]; where quantised as codes with F32 scales [tokens, 32] and [context]."""

    query: Tensor
    keys: Tensor
    weights: Tensor
    query_scale: Tensor | None
    key_scale: Tensor | None
    table: Tensor

    def paged(self, rows: Tensor) -> Tensor:
        """[pages, 64, ..] of ``rows`` [context, ..], where the table says."""
        # Bytes, since torch does not index every dtype.
        given = rows.contiguous().view(torch.uint8).view(len(rows) // PAGE, -1)
        out = torch.empty_like(given)
        out[self.table[0].long()] = given
        return out.view(rows.dtype).view(-1, PAGE, *rows.shape[1:])


class Problem:
    """One request; its last ``queries`` tokens choose the best keys of those that they see."""

    def __init__(self, shape: Shape, device: str, seed: int, backend: str = "triton") -> None:
        self.shape, self.backend = shape, backend
        gen = draw.generator(device, seed)
        count = draw.input_sets(shape.cost.floor_us)
        self.sets = [self._draw(gen) for _ in range(count)]

    def _draw(self, gen: torch.Generator) -> Set:
        shape = self.shape
        query = draw.normal(gen, shape.tokens, INDEX_HEADS, INDEX_DIM)
        keys = draw.normal(gen, shape.context, INDEX_DIM)
        weights = draw.normal(gen, shape.tokens, INDEX_HEADS, dtype=torch.float32) + 0.4
        table = draw.pages(gen, 1, shape.context)
        if shape.dtype == "bf16":
            return Set(query, keys, weights, None, None, table)
        (query, query_scale), (keys, key_scale) = (
            draw.codes(rows, shape.dtype) for rows in (query, keys)
        )
        if shape.dtype == "int8":  # which come with F16 scales and weights
            query_scale, key_scale = query_scale.half().float(), key_scale.half().float()
            weights = weights.half().float()
        return Set(query, keys, weights, query_scale, key_scale, table)

    @property
    def seen(self) -> Tensor:
        """int64 [tokens]: keys that a token sees."""
        shape = self.shape
        return torch.arange(shape.queries) + shape.context - shape.queries + 1

    @cached_property
    def exact(self) -> list[list[tuple[Tensor, Tensor]]]:
        """(scores F64 [seen], error granted [seen]) of the judged tokens of every set."""
        return [
            [self._exact(each, int(token)) for token in draw.judged(self.shape.tokens)]
            for each in self.sets
        ]

    def _exact(self, each: Set, token: int) -> tuple[Tensor, Tensor]:
        seen = int(self.seen[token])
        query, weight = each.query[token].double(), each.weights[token].double()
        if each.query_scale is not None:
            weight = weight * each.query_scale[token].double()
        scores, size = [], []
        for begin in range(0, seen, 1 << 15):
            part = slice(begin, min(begin + (1 << 15), seen))
            keys = each.keys[part].double()
            factor = 1.0 if each.key_scale is None else each.key_scale[part].double()
            scores.append((keys @ query.T).clamp_(min=0) @ weight * factor)
            size.append(keys.abs() @ query.abs().T @ weight.abs() * factor)
        return torch.cat(scores), torch.cat(size) * _GRANTED[self.shape.dtype]

    def check(self, number: int, result: Any) -> Figures:
        """Whether the positions [tokens, chosen] are the best ones, but for the granted error."""
        found = result[0] if isinstance(result, tuple) else result
        found = found.reshape(self.shape.tokens, -1)
        wanted, least = min(self.shape.chosen, self.shape.context), 1.0
        for place, token in enumerate(draw.judged(self.shape.tokens).tolist()):
            scores, granted = self.exact[number][place]
            row = found[token].long()
            row = row[row >= 0]
            count = min(wanted, len(scores))
            if len(row) != count or len(row.unique()) != count or int(row.max()) >= len(scores):
                problem = (
                    f"token {token}: {len(row.unique())} distinct positions below {len(scores)}"
                )
                return Figures(recall=0.0, problem=f"{problem}, not {count}")
            taken = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
            taken[row] = True
            best = torch.zeros_like(taken)
            best[scores.topk(count).indices] = True
            least = min(least, float((taken & best).sum()) / count)
            if count == len(scores):
                continue
            lost = (scores - granted)[~taken].max() - (scores + granted)[taken].min()
            if not float(lost) <= 0:
                problem = f"token {token}: a score that was left out exceeds one chosen"
                return Figures(recall=least, problem=f"{problem} by {float(lost):.2e} too much")
        return Figures(recall=least)

    def contestants(self) -> Iterator[Contestant]:
        """The project's, and torch's where it has the products."""
        shape = self.shape
        common = {
            "actual_seq_lengths_query": torch.tensor([shape.tokens], dtype=torch.int32),
            "actual_seq_lengths_key": torch.tensor([shape.context], dtype=torch.int32),
            "layout_query": "TND", "layout_key": "PA_BSND", "sparse_count": shape.chosen,
            "backend": self.backend,
        }  # fmt: skip

        def public(each: Set) -> Callable[[], Any]:
            cache = each.paged(each.keys)[:, :, None]
            if each.query_scale is None or each.key_scale is None:
                return lambda: lightning_indexer(
                    each.query, cache, each.weights, block_table=each.table, **common
                )
            kind = torch.float16 if shape.dtype == "int8" else torch.float32
            scale = each.paged(each.key_scale).to(kind)[:, :, None]
            weights, query_scale = each.weights.to(kind), each.query_scale.to(kind)
            return lambda: lightning_indexer_quant(
                each.query, cache, weights, query_scale, scale, block_table=each.table, **common
            )

        def make() -> tuple[list[Callable[[], Any]], Any]:
            return [public(each) for each in self.sets], self.check

        yield from own(make, shape.dtype, INDEX_HEADS)
        if shape.dtype == "bf16":
            yield Contestant("torch chain, bf16", "torch", "bf16", INDEX_HEADS, self._torch)

    def _torch(self) -> Ready:
        """mm, relu, weighted sum and topk over scores in BF16; judged by F64 like everyone."""
        limits = self.seen.to(self.sets[0].query.device)

        def run(each: Set) -> Tensor:
            out, where = [], torch.arange(self.shape.context, device=limits.device)
            for begin in range(0, self.shape.tokens, 64):
                part = slice(begin, begin + 64)
                scores = torch.einsum("thd,sd->ths", each.query[part], each.keys).relu_()
                scores = torch.einsum("ths,th->ts", scores.float(), each.weights[part])
                scores = scores.masked_fill_(where >= limits[part, None], -torch.inf)
                out.append(scores.topk(self.shape.chosen, -1, sorted=False).indices)
            return torch.cat(out)

        def check(number: int, result: Tensor) -> Figures:
            return recall(self.check(number, result))

        calls = [lambda each=each: run(each) for each in self.sets]
        return Ready(calls, check, torch.__version__)


def recall(figures: Figures, least: float = 0.98) -> Figures:
    """The verdict on a peer that rounds its scores: ``least`` of the best positions suffice."""
    if figures.recall is not None and figures.recall >= least:
        return Figures(recall=figures.recall)
    return figures
