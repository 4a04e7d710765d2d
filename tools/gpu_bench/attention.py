"""Sparse attention over a paged latent cache: inputs, F64, and the project's contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from glm5_ascend.ops import kv_quant_sparse_flash_attention, sparse_flash_attention
from glm5_ascend.ops.verify.compare import Figures, close
from tools.gpu_bench import draw
from tools.gpu_bench.costs import LATENT, ROPE
from tools.gpu_bench.draw import PAGE
from tools.gpu_bench.entry import Contestant, Ready, own
from tools.gpu_bench.shapes import Shape

WIDTH, TILE, PACKED = LATENT + ROPE, 128, 656
SCALE = 256**-0.5
# Share of its rows that a token of overlapping sets does not have in common with the one before.
RENEWED = 0.1


@dataclass(frozen=True)
class Set:
    """Query [tokens, heads, 576], chosen positions and their cache rows int32 [tokens, chosen],
    -1 where a token sees fewer."""

    query: Tensor
    positions: Tensor
    slots: Tensor


class Problem:
    """Everything that the contestants of one shape see.

    ``cache`` is BF16 [rows, 576], or int8 [rows, 656] of ``packed`` rows, in the pages that
    ``table`` int32 [requests, pages] names.
    """

    def __init__(self, shape: Shape, device: str, seed: int, backend: str = "triton") -> None:
        self.shape, self.backend = shape, backend
        gen = draw.generator(device, seed)
        self.table = draw.pages(gen, shape.requests, shape.context)
        rows = self.table.numel() * PAGE
        self.cache = torch.empty(
            rows, WIDTH if shape.dtype == "bf16" else PACKED, device=device,
            dtype=torch.bfloat16 if shape.dtype == "bf16" else torch.int8,
        )  # fmt: skip
        for begin in range(0, rows, 1 << 16):
            part = self.cache[begin : begin + (1 << 16)]
            drawn = draw.normal(gen, len(part), WIDTH)
            part.copy_(drawn if shape.dtype == "bf16" else packed(drawn, shape.dtype))
        count = draw.input_sets(shape.cost.floor_us)
        self.sets = [self._draw(gen) for _ in range(count)]

    def _draw(self, gen: torch.Generator) -> Set:
        shape = self.shape
        query = draw.normal(gen, shape.tokens, shape.heads, WIDTH)
        positions = self._positions(gen)
        owner = torch.arange(shape.tokens, device=positions.device) // shape.queries
        page = self.table[owner[:, None], positions.clamp(min=0) // PAGE]
        slots = page * PAGE + (positions % PAGE).int()
        return Set(query, positions.int(), slots.masked_fill_(positions < 0, -1))

    def _positions(self, gen: torch.Generator) -> Tensor:
        """int64 [tokens, chosen] ascending, then -1: one row out of each of ``chosen`` equal
        strides; where a token sees hardly more than that, random ones of all."""
        shape = self.shape
        if shape.context < shape.queries + shape.chosen:
            return self._few(gen)
        stride = (shape.context - shape.queries + 1) // shape.chosen
        size, where = (shape.tokens, shape.chosen), gen.device
        place = torch.randint(0, stride, size, generator=gen, device=where)
        if shape.sets == "overlapping":
            new = torch.rand(size, generator=gen, device=where) < RENEWED
            new[:: shape.queries] = True
            number = torch.arange(shape.tokens, device=where)[:, None]
            place = place.gather(0, torch.where(new, number, 0).cummax(0).values)
        return place + torch.arange(shape.chosen, device=where) * stride

    def _few(self, gen: torch.Generator) -> Tensor:
        shape, where = self.shape, gen.device
        first = shape.context - shape.queries + 1
        seen = (torch.arange(shape.tokens, device=where) % shape.queries + first)[:, None]
        rank = torch.rand(shape.tokens, shape.context, generator=gen, device=where)
        rank.masked_fill_(torch.arange(shape.context, device=where) >= seen, -1)
        found = rank.topk(min(shape.chosen, shape.context), -1)
        none = shape.context  # sorts last
        chosen = found.indices.masked_fill(found.values < 0, none).sort(-1).values
        chosen = functional.pad(chosen, (0, shape.chosen - chosen.shape[1]), value=none)
        return chosen.masked_fill(chosen == none, -1)

    @cached_property
    def exact(self) -> list[tuple[Tensor, Tensor]]:
        """(F64, the same from BF16 weights and rows) of the judged tokens of every set."""
        return [self._exact(each) for each in self.sets]

    def _exact(self, each: Set) -> tuple[Tensor, Tensor]:
        wide, low = [], []
        for token in draw.judged(self.shape.tokens).tolist():
            slots = each.slots[token]
            rows = self.cache[slots[slots >= 0].long()]
            keys = rows.double() if self.shape.dtype == "bf16" else unpacked(rows, self.shape.dtype)
            query = each.query[token].double()
            weight = torch.softmax(query @ keys.T * SCALE, -1)
            wide.append(weight @ keys[:, :LATENT])
            rounded = keys.bfloat16().double()
            scores = query @ rounded.T * SCALE
            share = (scores - scores.amax(-1, keepdim=True)).exp()
            product = share.bfloat16().double() @ rounded[:, :LATENT]
            low.append((product / share.sum(-1, keepdim=True)).bfloat16())
        return torch.stack(wide), torch.stack(low)

    def strict(self, number: int, result: Any) -> Figures:
        """Whether a result of the project is as exact as BF16 products allow."""
        wide, low = self.exact[number]
        return close(self.judged(result), wide, low)

    def loose(self, number: int, result: Tensor) -> Figures:
        """Whether a peer's result [tokens, heads, 512] is right."""
        return draw.near(self.judged(result), self.exact[number][0], "out")

    def judged(self, result: Any) -> Tensor:
        """The judged tokens [n, heads, 512] of a result; some kernels return more than one."""
        out = result[0] if isinstance(result, tuple) else result
        out = out.reshape(self.shape.tokens, -1, LATENT)[:, : self.shape.heads]
        return out[draw.judged(self.shape.tokens).to(out.device)]  # type: ignore[no-any-return]

    def contestants(self) -> Iterator[Contestant]:
        """The project's."""
        shape = self.shape
        lengths = torch.arange(1, shape.requests + 1, dtype=torch.int32) * shape.queries
        common = {
            "block_table": self.table, "actual_seq_lengths_query": lengths,
            "actual_seq_lengths_kv": torch.full((shape.requests,), shape.context).int(),
            "layout_query": "TND", "layout_kv": "PA_BSND", "backend": self.backend,
        }  # fmt: skip

        def public(each: Set) -> Callable[[], Any]:
            chosen = each.positions[:, None]
            rows = self.cache.view(-1, PAGE, 1, self.cache.shape[1])
            if shape.dtype == "bf16":
                latent, rope = rows[..., :LATENT], rows[..., LATENT:]
                query, query_rope = each.query[..., :LATENT], each.query[..., LATENT:]
                return lambda: sparse_flash_attention(
                    query, latent, None, chosen, SCALE, query_rope=query_rope, key_rope=rope,
                    **common,
                )  # fmt: skip
            rows = rows if shape.dtype == "int8" else rows.view(torch.float8_e4m3fn)
            return lambda: kv_quant_sparse_flash_attention(
                each.query, rows, rows, chosen, SCALE, **common
            )

        def make() -> tuple[list[Callable[[], Any]], Any]:
            return [public(each) for each in self.sets], self.strict

        yield from own(make, shape.dtype, shape.heads)
        yield Contestant("torch chain, bf16", "torch", shape.dtype, shape.heads, self._torch)

    def _torch(self) -> Ready:
        """index_select, bmm, softmax, bmm; packed rows are dequantised beforehand, for nothing."""
        cache = self.cache
        if self.shape.dtype != "bf16":
            cache = torch.cat(
                [unpacked(part, self.shape.dtype).bfloat16() for part in cache.split(1 << 16)]
            )

        def run(each: Set) -> Tensor:
            out = []
            for query, slots in zip(each.query.split(512), each.slots.split(512), strict=True):
                rows = cache.index_select(0, slots.clamp(min=0).flatten())
                rows = rows.view(*slots.shape, WIDTH)
                scores = torch.bmm(query * SCALE, rows.mT)
                weight = torch.softmax(scores.masked_fill_(slots[:, None] < 0, -torch.inf), -1)
                out.append(torch.bmm(weight, rows[..., :LATENT]))
            return torch.cat(out)

        calls = [lambda each=each: run(each) for each in self.sets]
        return Ready(calls, self.loose, torch.__version__)


def packed(rows: Tensor, dtype: str) -> Tensor:
    """int8 [n, 656] of rows [n, 576]: 512 codes, then F32 scales of 128 codes each and the rotated
    part in BF16, which with int8 codes comes before the scales."""
    made, scale = draw.codes(rows[:, :LATENT].view(len(rows), -1, TILE), dtype)
    codes, rotated = made.flatten(1), rows[:, LATENT:].bfloat16().contiguous()
    rest = (rotated, scale.contiguous()) if dtype == "int8" else (scale.contiguous(), rotated)
    return torch.cat([part.view(torch.int8) for part in (codes, *rest)], 1)


def unpacked(rows: Tensor, dtype: str) -> Tensor:
    """F64 [n, 576] of packed rows, without rounding."""
    codes, rest = rows[:, :LATENT], rows[:, LATENT:]
    if dtype == "int8":
        rotated, scale = rest.split([2 * ROPE, PACKED - LATENT - 2 * ROPE], 1)
    else:
        codes = codes.view(torch.float8_e4m3fn)
        scale, rotated = rest.split([PACKED - LATENT - 2 * ROPE, 2 * ROPE], 1)
    scale = scale.contiguous().view(torch.float32).double()
    latent = (codes.float().double().view(len(rows), -1, TILE) * scale[..., None]).flatten(1)
    return torch.cat([latent, rotated.contiguous().view(torch.bfloat16).double()], 1)
