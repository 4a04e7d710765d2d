"""Conformance of sparse flash attention: softmax over the named rows, in F64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare, formula
from glm5_ascend.ops.verify.attention_data import (
    GLM5,
    AttentionData,
    AttentionShape,
    draw,
    draw_indices,
)
from glm5_ascend.ops.verify.case import DTYPES, Call, Case, Outputs, Problem, Verdict, invoke
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.packed import pack, pack_fp8, unpack, unpack_fp8
from glm5_ascend.ops.verify.requests import PAGES, Batch, Layout, Requests, batches, gather

# Positions of a token, given the token.
Positions = Callable[[int], Tensor]


@dataclass(frozen=True, kw_only=True)
class AttentionCase(Case):
    """One call of ``sparse_flash_attention``, or of its twin over packed rows (``fp8``: e4m3 ones).

    ``kind`` as in ``attention_data``.
    """

    requests: Requests
    shape: AttentionShape = GLM5
    dtype: torch.dtype = torch.bfloat16
    count: int = 64
    block: int = 1
    layout: Layout = PAGES
    mode: int = 3
    kind: str = "selected"
    std: float = 1.0
    one_cache: bool = False
    with_rope: bool = True
    with_sums: bool = False
    packed: bool = False
    fp8: bool = False

    @property
    def operator(self) -> str:
        """The twin for packed rows."""
        return ("kv_quant_" if self.packed else "") + "sparse_flash_attention"

    def __str__(self) -> str:
        extra = [
            f"mode{self.mode}",
            *([self.kind] if self.kind != "selected" else []),
            *([f"std{self.std:g}"] if self.std != 1 else []),
            *([f"block{self.block}"] if self.block != 1 else []),
            *(name for name in ("one_cache", "with_sums", "fp8") if getattr(self, name)),
            *([] if self.with_rope else ["without_rope"]),
            *([f"seed{self.seed}"] if self.seed else []),
        ]
        name = [str(self.requests), f"{self.shape}-of{self.count}", DTYPES[self.dtype]]
        return "-".join([*name, str(self.layout), *extra])

    @property
    def scale(self) -> float:
        """GLM-5's (192 + 64)^-0.5, whatever the widths."""
        return 1 / 16

    def problem(self) -> Problem:
        """Draw the inputs and attend."""
        data = draw(self.requests, self.shape, self.dtype, self.std, self.seed)
        indices = draw_indices(
            self.requests, self.count, self.block, self.kind, self.seed, causal=self.mode == 3
        )
        data = replace(data, indices=indices)
        if not self.packed:
            return AttentionProblem(self, data)
        to, back = (pack_fp8, unpack_fp8) if self.fp8 else (pack, unpack)
        rows = [to(*parts) for parts in zip(data.latent, data.key_rope, strict=True)]
        latent, key_rope = zip(*map(back, rows), strict=True)
        return PackedProblem(self, replace(data, latent=latent, key_rope=key_rope), rows)


class AttentionProblem(Problem):
    """Results of all tokens in F64 and F32."""

    def __init__(self, case: AttentionCase, data: AttentionData) -> None:
        self.case = case
        self.data = data
        self.rows = case.requests.rows(causal=case.mode == 3)
        self.oracle, self.low = self.both()

    def both(self, **wrong: Any) -> tuple[Outputs, Outputs]:
        """Results in F64 and in F32.

        A kernel may add in any order. Where rounding the result does not hide the difference, the
        worst of three orders says what F32 may lose.
        """
        oracle = self.attend(np.float64, **wrong)
        orders = (0, 1, 2) if self.case.dtype == torch.float32 else (0,)
        found = [self.attend(np.float32, order=order, **wrong) for order in orders]

        def worst(name: str) -> Tensor:
            return max((low[name] for low in found), key=lambda x: _furthest(x, oracle[name]))

        return oracle, {name: worst(name) for name in oracle}

    def positions(self, token: int) -> Tensor:
        """Positions that count for a token, in the order of its indices."""
        case = self.case
        entries = self.data.indices[token].long()
        entries = entries[entries >= 0]
        every = (entries[:, None] * case.block + torch.arange(case.block)).flatten()
        return every[every < self.rows[token][1]]

    def attend(
        self,
        dtype: Any,
        *,
        order: int = 0,
        scale: float = 1.0,
        rope: bool = True,
        positions: Positions | None = None,
    ) -> Outputs:
        """``out`` [tokens, H, L], ``max`` and ``sum`` [tokens, H].

        Args:
            dtype: of the arithmetic.
            order: in which keys and widths are added, by number.
            scale, rope, positions: plant mistakes.
        """
        case, data = self.case, self.data
        width = case.shape.latent + (case.shape.rope if rope and case.with_rope else 0)
        gen = np.random.default_rng(order)
        columns = gen.permutation(width) if order else np.arange(width)
        query = torch.cat((data.query, data.query_rope), -1).double().numpy()
        query = query[..., columns].astype(dtype)
        pairs = zip(data.latent, data.key_rope, strict=True)
        rows = [torch.cat(pair, -1).double().numpy().astype(dtype) for pair in pairs]
        found = []
        for t, (b, _) in enumerate(self.rows):
            chosen = (positions or self.positions)(t).numpy()
            picked = rows[b][gen.permutation(chosen) if order else chosen]
            keys, values = picked[:, columns], picked[:, : case.shape.latent]
            found.append(formula.attention(query[t], keys, values, scale * case.scale, dtype))
        results = zip(("out", "max", "sum"), zip(*found, strict=True), strict=True)
        return {name: torch.from_numpy(np.stack(each)) for name, each in results}

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """Of the public function, for the batch's order of requests."""
        case, data = self.case, self.data
        keys, where = batch.keys(key=data.latent, rope=data.key_rope)
        if case.one_cache:
            whole = torch.cat((keys["key"], keys["rope"]), -1)
            keys["key"], keys["rope"] = whole.tensor_split((case.shape.latent,), -1)
        return {
            "query": batch.queries(data.query),
            "key": keys["key"],
            "value": None,
            "sparse_indices": batch.queries(data.indices[:, None], empty=-1),
            "scale_value": case.scale,
            "sparse_block_size": case.block,
            "block_table": where.get("block_table"),
            "actual_seq_lengths_query": batch.query_lengths(),
            "actual_seq_lengths_kv": where["lengths"],
            "query_rope": batch.queries(data.query_rope) if case.with_rope else None,
            "key_rope": keys["rope"] if case.with_rope else None,
            "layout_query": case.layout.query,
            "layout_kv": case.layout.key,
            "sparse_mode": case.mode,
            "attention_mode": 2,
            "return_softmax_lse": case.with_sums,
        }

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """``out``, ``clean`` (rows of no request are) and, if asked for, ``max`` and ``sum``."""
        case, requests = self.case, self.case.requests
        parts: dict[str, list[tuple[Batch, Tensor]]] = {"out": [], "max": [], "sum": []}
        for batch in batches(requests, case.layout, shuffled=shuffled):
            results = invoke(call, case.operator, self.arguments(batch))
            results = results if isinstance(results, tuple) else (results, None, None)
            for name, x in zip(parts, results, strict=True):
                if name == "out" or case.with_sums:
                    width = x.shape[-1:] if name == "out" else ()
                    parts[name].append((batch, x.reshape(batch.rows, case.shape.heads, *width)))
        outputs = {name: gather(requests, each) for name, each in parts.items() if each}
        rest = torch.cat([batch.rest(rows) for batch, rows in parts["out"]])
        return outputs | {"clean": rest.eq(0).all()}

    def judge(self, outputs: Outputs) -> Figures:
        """Result, and row maxima and sums if there are any."""
        return self._against(outputs, self.oracle, self.low)

    def _against(self, outputs: Outputs, oracle: Outputs, low: Outputs) -> Figures:
        rounded = low | {"out": low["out"].to(self.case.dtype)}
        found = [
            compare.close(outputs[name], oracle[name], rounded[name], name=name)
            for name in ("out", "max", "sum")
            if name in outputs
        ]
        if not outputs["clean"]:
            found.append(Figures(problem="rows of no request are not zero"))
        return compare.worst(found)

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Each attends the wrong way."""

        def attends(**change: Any) -> Verdict:
            def verdict(outputs: Outputs) -> Figures:
                return self._against(outputs, *self.both(**change))

            return verdict

        lengths = [self.case.requests.lengths[b][1] for b, _ in self.rows]
        indices = self.data.indices.long()

        def until_first_gap(token: int) -> Tensor:
            stop = int((indices[token] < 0).int().cumsum(0).eq(0).sum())
            return indices[token, :stop][indices[token, :stop] < self.rows[token][1]]

        def with_invalid(token: int) -> Tensor:
            return indices[token].clamp(min=0)

        yield "rotated part forgotten", attends(rope=False)
        yield "scale 2 % too large", attends(scale=1.02)
        yield "scale forgotten", attends(scale=1 / self.case.scale)
        yield "last chosen key dropped", attends(positions=lambda t: self.positions(t)[:-1])
        yield "first chosen key dropped", attends(positions=lambda t: self.positions(t)[1:])
        if self.case.block == 1:
            yield "stops at the first -1", attends(positions=until_first_gap)
            yield "invalid index used", attends(positions=with_invalid)
            yield (
                "no causal mask",
                attends(
                    positions=lambda t: indices[t][(indices[t] >= 0) & (indices[t] < lengths[t])]
                ),
            )


def _furthest(low: Tensor, oracle: Tensor) -> float:
    return float((low.double() - oracle).abs().nan_to_num(0).max())


class PackedProblem(AttentionProblem):
    """The same over packed rows [k_len, 656] of each request, whose values ``data`` holds."""

    def __init__(self, case: AttentionCase, data: AttentionData, rows: list[Tensor]) -> None:
        self.packed = rows
        super().__init__(case, data)

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """Of the public function, for the batch's requests."""
        arguments = super().arguments(batch)
        for name in ("query_rope", "key_rope", "return_softmax_lse"):
            del arguments[name]
        query = torch.cat((self.data.query, self.data.query_rope), -1)
        key = batch.keys(key=self.packed)[0]["key"]
        modes = {"key_quant_mode": 2, "value_quant_mode": 2}
        return arguments | modes | {"query": batch.queries(query), "key": key, "value": key}
