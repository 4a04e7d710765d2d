"""Cases of sparse attention: absorbed MLA of GLM-5 over 2048 chosen rows of a long latent cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from glm5_ascend.ops import sparse_flash_attention
from glm5_ascend.ops.sparse_flash_attention import cpu
from glm5_ascend.ops.verify.compare import Figures, close
from tools.bench.case import Absent, Case, Check, Contestant, near
from tools.bench.peers import torch_pair, vllm
from tools.bench.twins import twins

HEADS, LATENT, ROPE, CHOSEN = 64, 512, 64, 2048
WIDTH = LATENT + ROPE
CONTEXT, BLOCK = 32768, 128
SCALE = 256**-0.5
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Data:
    """Queries of ``rows`` tokens, each with its own choice, over one paged cache.

    query [rows, 64, 576], cache [blocks, 128, 1, 576], table int32 [1, blocks], chosen int32
    [rows, 2048] ascending positions, flat int64 [rows, 2048] rows of the flattened cache.
    """

    query: Tensor
    cache: Tensor
    table: Tensor
    chosen: Tensor
    flat: Tensor

    @cached_property
    def exact(self) -> tuple[Tensor, Tensor]:
        """The result [rows, 64, 512] in F64, and the same from F32 arithmetic in the dtype."""
        picked = self.cache.view(-1, WIDTH)[self.flat]
        low = _attend(self.query.float(), picked.float(), SCALE).to(self.query.dtype)
        return _attend(self.query.double(), picked.double(), SCALE), low


def draw(rows: int, dtype: torch.dtype) -> Data:
    """Random data; scores have a spread of about 1.5, so the softmax is neither flat nor one."""
    generator = torch.Generator().manual_seed(rows)
    blocks = CONTEXT // BLOCK
    query = torch.randn(rows, HEADS, WIDTH, generator=generator).to(dtype)
    cache = torch.randn(blocks, BLOCK, 1, WIDTH, generator=generator).to(dtype)
    table = torch.randperm(blocks, generator=generator).int()[None]
    order = torch.rand(rows, CONTEXT - rows, generator=generator).argsort(1)[:, :CHOSEN]
    chosen = order.sort(1).values
    flat = table[0, chosen // BLOCK].long() * BLOCK + chosen % BLOCK
    return Data(query, cache, table, chosen.int(), flat)


def _attend(query: Tensor, picked: Tensor, scale: float) -> Tensor:
    weight = torch.softmax(query @ picked.mT * scale, -1)
    return weight @ picked[..., :LATENT]


def gather_mm(query: Tensor, cache: Tensor, flat: Tensor, scale: float) -> Tensor:
    """index_select, matmul, softmax, matmul, all in the dtype of ``query``."""
    picked = cache.index_select(0, flat.view(-1)).view(*flat.shape, WIDTH)
    weight = torch.softmax(torch.bmm(query * scale, picked.mT), -1)
    return torch.bmm(weight, picked[..., :LATENT])


def gather_sdpa(query: Tensor, cache: Tensor, flat: Tensor, scale: float) -> Tensor:
    """index_select, then scaled_dot_product_attention with the heads as its rows."""
    picked = cache.index_select(0, flat.view(-1)).view(*flat.shape, WIDTH)
    value = picked[..., :LATENT]
    return scaled_dot_product_attention(
        query[:, None], picked[:, None], value[:, None], scale=scale
    )


def project(data: Data) -> Callable[[], Tensor]:
    """The public function, paged keys."""
    (query, query_rope), (latent, rope) = _parts(data.query), _parts(data.cache)
    where = _where(data)

    def run() -> Tensor:
        return sparse_flash_attention(
            query, latent, latent, data.chosen[:, None], SCALE,
            query_rope=query_rope, key_rope=rope, **where, backend="cpu",
        )[0]  # fmt: skip

    return run


def kernel(data: Data) -> Callable[[], Tensor]:
    """What the public function calls once its arguments are checked."""
    (query, query_rope), (latent, rope) = _parts(data.query), _parts(data.cache)
    indices, where = data.chosen[:, None], _where(data)
    run = cpu.plan(query, latent, indices, SCALE, query_rope, rope, **where)
    assert run is not None
    return partial(run, query, latent, indices, query_rope, rope, **where)


def _where(data: Data) -> dict[str, Any]:
    lengths = _lengths(data)
    return {
        "block_table": data.table,
        "actual_seq_lengths_query": lengths[0],
        "actual_seq_lengths_kv": lengths[1],
        "layout_query": "TND",
        "layout_kv": "PA_BSND",
        "attention_mode": 2,
    }


def _parts(rows: Tensor) -> list[Tensor]:
    return [rows[..., :LATENT], rows[..., LATENT:]]


def _lengths(data: Data) -> tuple[Tensor, Tensor]:
    rows = torch.tensor([len(data.query)], dtype=torch.int32)
    return rows, torch.tensor([CONTEXT], dtype=torch.int32)


def _strict(data: Data) -> Check:
    def check(actual: Tensor) -> Figures:
        return close(actual, *data.exact)

    return check


def _dense_vllm(data: Data, check: Check) -> Contestant | Absent:
    """vLLM has no sparse form: it gets the chosen rows, gathered and dense, for nothing."""
    block = 16
    picked = data.cache.view(-1, WIDTH)[data.flat[0]].view(-1, block, WIDTH).contiguous()
    table = torch.arange(len(picked), dtype=torch.int32)[None]
    length = torch.tensor([CHOSEN], dtype=torch.int32)
    out = data.query.new_zeros(1, HEADS, LATENT)

    def make(kernels: Any) -> Any:
        def run() -> Tensor:
            kernels.mla_decode_kvcache(out, data.query, picked, SCALE, table, length)
            return out

        return run

    return vllm("vllm mla_decode_kvcache, dense", make, check)


def case(dtype: str, rows: int, *, compiled: bool) -> Case:
    """One thread, every peer."""

    def enter() -> Iterator[Contestant | Absent]:
        data = draw(rows, _DTYPES[dtype])
        yield Contestant("project", "project", project(data), _strict(data))
        yield Contestant("kernel", "kernel", kernel(data), _strict(data))
        check = near(data.exact[0])
        flat_cache = data.cache.view(-1, WIDTH)
        arguments = data.query, flat_cache, data.flat, SCALE
        yield from torch_pair("gather+mm", gather_mm, arguments, check, compiled=compiled)
        yield from torch_pair("gather+sdpa", gather_sdpa, arguments, check, compiled=False)
        if rows == 1:
            yield _dense_vllm(data, check)

    return _case(f"attention-{dtype}-{rows}q", dtype, rows, enter)


def scaling(dtype: str, rows: int) -> Case:
    """One thread against two."""

    def enter() -> Iterator[Contestant | Absent]:
        data = draw(rows, _DTYPES[dtype])
        arguments = data.query, data.cache.view(-1, WIDTH), data.flat, SCALE
        check = near(data.exact[0])
        for threads in (1, 2):
            yield Contestant("project", "project", project(data), _strict(data), threads)
            for entry in torch_pair("gather+mm", gather_mm, arguments, check, compiled=False):
                yield entry.on(threads)
        again = project(draw(rows, _DTYPES[dtype]))
        yield twins(project(data), again, _strict(data))

    return _case(f"threads-attention-{dtype}-{rows}q", dtype, rows, enter, scaling=True)


def _case(name: str, dtype: str, rows: int, enter: Any, *, scaling: bool = False) -> Case:
    size = 4 if dtype == "f32" else 2
    title = f"{rows} query, 64 heads x 2048 of 32k keys x (512 + 64), {dtype}"
    flops = 2.0 * rows * HEADS * CHOSEN * (WIDTH + LATENT)
    nbytes = size * rows * (CHOSEN * WIDTH + HEADS * (WIDTH + LATENT)) + 4 * rows * CHOSEN
    return Case(name, "sparse_flash_attention", title, {dtype: flops}, nbytes, enter, scaling)
