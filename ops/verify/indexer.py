"""Conformance of the lightning indexer: the best positions, up to near-ties of F32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare, formula
from glm5_ascend.ops.verify.case import DTYPES, Call, Case, Outputs, Problem, Verdict, invoke
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.indexer_data import CODES, EXACT, IndexerData, draw
from glm5_ascend.ops.verify.requests import PAGES, Batch, Layout, Requests, batches, gather
from glm5_ascend.ops.verify.rows import columns

Scores = Callable[..., formula.Array]
_NAMES = {**DTYPES, torch.int8: "int8", torch.float8_e4m3fn: "e4m3"}


@dataclass(frozen=True, kw_only=True)
class IndexerCase(Case):
    """One call of ``lightning_indexer``, or of its twin if ``dtype`` is int8 or e4m3.

    ``kind`` as in ``indexer_data``.
    """

    requests: Requests
    heads: int = 32
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    weights_dtype: torch.dtype = torch.float32
    count: int = 64
    layout: Layout = PAGES
    mode: int = 3
    kind: str = "random"
    by_score: bool = False
    with_values: bool = False
    strided: bool = False

    @property
    def operator(self) -> str:
        """The quantised one for codes."""
        return "lightning_indexer" + ("_quant" if self.dtype in CODES else "")

    def __str__(self) -> str:
        extra = [
            f"mode{self.mode}",
            *([self.kind] if self.kind != "random" else []),
            *(name for name in ("by_score", "with_values", "strided") if getattr(self, name)),
            *([f"w{DTYPES[self.weights_dtype]}"] if self.weights_dtype != torch.float32 else []),
            *([f"seed{self.seed}"] if self.seed else []),
        ]
        shape = f"{self.heads}x{self.dim}-top{self.count}"
        return "-".join([str(self.requests), shape, _NAMES[self.dtype], str(self.layout), *extra])

    def problem(self) -> Problem:
        """Draw the inputs and score every key."""
        data = draw(self.requests, self.heads, self.dim, self.kind, self.seed)
        return IndexerProblem(self, data.cast(self.dtype, self.weights_dtype))


class IndexerProblem(Problem):
    """Scores of all requests, [tokens, longest], in F64 and F32."""

    def __init__(self, case: IndexerCase, data: IndexerData) -> None:
        self.case = case
        self.data = data
        rows = case.requests.rows(causal=case.mode == 3)
        self.visible = torch.tensor([visible for _, visible in rows], dtype=torch.int64)
        self.oracle, self.low = (self.scores(dtype=d) for d in formula.PRECISIONS)
        seen = torch.arange(self.oracle.shape[1]) < self.visible[:, None]
        self.limit = compare.error_limit(
            torch.where(seen, self.oracle, 0.0), torch.where(seen, self.low, 0.0).float()
        )

    def scores(self, *, dtype: Any = np.float64, score: Scores = formula.index_scores) -> Tensor:
        """Of every key of the token's request, hidden ones too; NaN counts as minus infinity."""
        longest = max([k for _, k in self.case.requests.lengths] + [1])
        out = torch.full((self.case.requests.tokens, longest), -torch.inf, dtype=torch.float64)
        first = 0
        for b, (q_len, k_len) in enumerate(self.case.requests.lengths):
            rows = slice(first, first + q_len)
            scored = score(*self._factors(rows, b, dtype), dtype)
            if self.data.key_scale is not None:
                with np.errstate(invalid="ignore"):
                    scored = scored * self.data.key_scale[b][:, 0].double().numpy().astype(dtype)
            out[rows, :k_len] = torch.from_numpy(formula.without_nan(scored)).double()
            first += q_len
        return out

    def _factors(self, rows: slice, request: int, dtype: Any) -> tuple[formula.Array, ...]:
        """query, keys and weights of some tokens of a request."""
        data = self.data
        weights = data.weights[rows].double().numpy().astype(dtype)
        if data.query_scale is not None:
            weights = weights * data.query_scale[rows].double().numpy().astype(dtype)
        return data.query[rows].double().numpy(), data.keys[request].double().numpy(), weights

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """Of the public function, for the batch's requests."""
        case, data = self.case, self.data
        scales = {} if data.key_scale is None else {"scale": data.key_scale}
        keys, where = batch.keys(key=data.keys, **scales)
        if case.strided:
            keys = {name: columns(key) for name, key in keys.items()}
        arguments = {
            "query": batch.queries(self.data.query),
            "key": keys["key"],
            "weights": batch.queries(self.data.weights),
            "actual_seq_lengths_query": batch.query_lengths(),
            "actual_seq_lengths_key": where["lengths"],
            "block_table": where.get("block_table"),
            "layout_query": case.layout.query,
            "layout_key": case.layout.key,
            "sparse_count": case.count,
            "sparse_mode": case.mode,
        }
        if data.query_scale is not None:
            arguments["query_dequant_scale"] = batch.queries(data.query_scale)
            arguments["key_dequant_scale"] = keys["scale"].squeeze(-1)
        if case.by_score:
            arguments["sorted"] = True
        if case.with_values:
            arguments["return_value"] = True
        return arguments

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """``indices``, ``clean`` (rows of no request are) and, if asked for, ``values``."""
        requests, parts, values = self.case.requests, [], []
        for batch in batches(requests, self.case.layout, shuffled=shuffled):
            result = invoke(call, self.case.operator, self.arguments(batch))
            indices, scores = result if isinstance(result, tuple) else (result, None)
            parts.append((batch, indices.reshape(batch.rows, self.case.count)))
            if self.case.with_values and scores is not None:
                values.append((batch, scores.reshape(batch.rows, self.case.count)))
        outputs = {
            "indices": gather(requests, parts),
            "clean": torch.cat([batch.rest(rows) for batch, rows in parts]).eq(-1).all(),
        }
        return outputs | ({"values": gather(requests, values)} if values else {})

    def judge(self, outputs: Outputs) -> Figures:
        """The selection, its order, and the values if there are any."""
        return self._against(outputs, self.oracle, self.low, self.visible)

    def _against(self, outputs: Outputs, oracle: Tensor, low: Tensor, visible: Tensor) -> Figures:
        found = [self._chosen(outputs, oracle, visible)]
        if not outputs["clean"]:
            found.append(Figures(problem="rows of no request hold positions"))
        if "values" in outputs and not found[0].problem:
            found.append(self._values(outputs, oracle, low))
        return compare.worst(found)

    def _chosen(self, outputs: Outputs, scores: Tensor, visible: Tensor) -> Figures:
        """Whether the positions are the best of ``scores``; exactly where ties decide."""
        if outputs["indices"].dtype != torch.int32:
            return Figures(problem=f"indices are {outputs['indices'].dtype}, wanted int32")
        order = "score" if self.case.by_score else "position"
        figures = compare.selection(
            outputs["indices"], scores, self.limit, visible=visible, order=order, name="indices"
        )
        if figures.problem or self.case.kind not in EXACT:
            return figures
        wanted = best(scores, visible, self.case.count, by_score=self.case.by_score)
        ties = compare.identical(outputs["indices"], wanted, name="ties to the lowest position")
        return replace(figures, problem=ties.problem)

    def _values(self, outputs: Outputs, oracle: Tensor, low: Tensor) -> Figures:
        positions = outputs["indices"].long()
        unused = positions < 0
        wanted, rough = (
            s.gather(1, positions.clamp(min=0)).masked_fill(unused, -torch.inf)
            for s in (oracle, low)
        )
        values = outputs["values"]
        return compare.close(values, wanted, rough.float().to(values.dtype), name="values")

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Each recomputes the scores or the mask the wrong way."""

        def scored(score: Scores) -> Verdict:
            def verdict(outputs: Outputs) -> Figures:
                oracle, low = (self.scores(dtype=d, score=score) for d in formula.PRECISIONS)
                return self._against(outputs, oracle, low, self.visible)

            return verdict

        def masked(visible: Tensor) -> Verdict:
            return lambda outputs: self._against(outputs, self.oracle, self.low, visible)

        rows = [b for b, _ in self.case.requests.rows()]
        longest = torch.tensor([k for _, k in self.case.requests.lengths])[rows]
        yield "missing ReLU", scored(partial(formula.index_scores, relu=False))
        yield "head weights without sign", scored(_unsigned)
        yield "head weights in BF16", scored(_rough_weights)
        yield "one key too many", masked((self.visible + 1).minimum(longest))
        yield "one key too few", masked((self.visible - 1).clamp(min=0))
        yield "no causal mask", masked(longest)
        if self.case.kind in EXACT:
            yield "ties to the highest position", self._highest_ties

    def _highest_ties(self, outputs: Outputs) -> Figures:
        """Whether the positions are the best when the higher one wins."""
        wanted = torch.full_like(outputs["indices"], -1)
        for row, seen in enumerate(self.visible.tolist()):
            backwards = self.oracle[row, :seen].flip(0).sort(descending=True, stable=True).indices
            chosen = (seen - 1 - backwards[: self.case.count]).int()
            wanted[row, : len(chosen)] = chosen if self.case.by_score else chosen.sort().values
        return compare.identical(outputs["indices"], wanted, name="indices")


def _unsigned(q: formula.Array, k: formula.Array, w: formula.Array, dtype: Any) -> formula.Array:
    return formula.index_scores(q, k, np.abs(w), dtype)


def _rough_weights(
    q: formula.Array, k: formula.Array, w: formula.Array, dtype: Any
) -> formula.Array:
    rough = torch.from_numpy(w).bfloat16().double().numpy()
    return formula.index_scores(q, k, rough, dtype)


def best(scores: Tensor, visible: Tensor, count: int, *, by_score: bool = False) -> Tensor:
    """int32 [T, count]: the positions that the contract names, in its order, then -1."""
    out = torch.full((len(scores), count), -1, dtype=torch.int32)
    for row, seen in enumerate(visible.tolist()):
        ranked = scores[row, :seen].sort(descending=True, stable=True).indices[:count].int()
        out[row, : len(ranked)] = ranked if by_score else ranked.sort().values
    return out
