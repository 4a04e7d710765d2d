"""Cases of the lightning indexer: one query token of GLM-5 over 32k and 128k keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import lightning_indexer, lightning_indexer_quant
from glm5_ascend.ops.lightning_indexer import cpu
from glm5_ascend.ops.verify.compare import Figures, error_limit, selection
from tools.bench import indexer_peers as peers
from tools.bench.case import Absent, Case, Check, Contestant, near
from tools.bench.indexer_data import CHOSEN, DIM, HEADS, Data, draw
from tools.bench.peers import torch_pair, vllm
from tools.bench.twins import twins

Entries = Iterator[Contestant | Absent]


def project(data: Data, dtype: str, count: int) -> Callable[[], Tensor]:
    """The public function on paged keys; int32 [1, 1, count]."""
    arguments, where = _arguments(data, dtype), _where(data, count)
    if dtype == "bf16":
        return lambda: lightning_indexer(*arguments, **where, backend="cpu")[0]
    query, key, weights, *scales = arguments
    return lambda: lightning_indexer_quant(query, key, weights, *scales, **where, backend="cpu")


def kernel(data: Data, dtype: str, count: int) -> Callable[[], Tensor]:
    """What the public function calls once its arguments are checked; int32 [1, 1, count]."""
    arguments, where = _arguments(data, dtype), _where(data, count)
    run = (cpu.plan if dtype == "bf16" else cpu.plan_quant)(*arguments, **where)
    assert run is not None
    return partial(run, *arguments, **where)


def _where(data: Data, count: int) -> dict[str, Any]:
    lengths = _lengths(data)
    return {
        "actual_seq_lengths_query": lengths[0],
        "actual_seq_lengths_key": lengths[1],
        "block_table": data.table,
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": count,
    }


def _lengths(data: Data) -> tuple[Tensor, Tensor]:
    return torch.tensor([1], dtype=torch.int32), torch.tensor([data.count], dtype=torch.int32)


def _arguments(data: Data, dtype: str) -> tuple[Tensor, ...]:
    """query [1, 32, 128], key [blocks, 128, 1, 128], weights [1, 32] and, if int8, both scales."""
    weights = data.weights[None]
    if dtype == "bf16":
        return data.query[None], data.paged(data.keys), weights
    (query, query_scale), (keys, key_scale) = data.query_codes, data.key_codes
    scale = data.paged(key_scale[:, None]).squeeze(-1)
    return query[None], data.paged(keys), weights, query_scale[None], scale


def _torch_scores(data: Data, dtype: str, check: Check, *, compiled: bool) -> Entries:
    """Keys dense and in order, as torch wants them; no gather is counted."""
    if dtype == "bf16":
        narrow = data.query, data.keys, data.weights.bfloat16()
        wide = tuple(each.float() for each in narrow)
        yield from torch_pair("bf16 mm [S, H]", peers.keys_first, narrow, check, compiled=compiled)
        yield from torch_pair("bf16 mm [H, S]", peers.query_first, narrow, check, compiled=compiled)
        yield from torch_pair("f32 mm [S, H]", peers.keys_first, wide, check, compiled=False)
        yield from torch_pair("f32 mm [H, S]", peers.query_first, wide, check, compiled=False)
        return
    (query, query_scale), (keys, key_scale) = data.query_codes, data.key_codes
    codes = query, keys, data.weights * query_scale, key_scale
    yield from torch_pair("_int_mm [S, H]", peers.int_keys_first, codes, check, compiled=compiled)
    yield from torch_pair("_int_mm [H, S]", peers.int_query_first, codes, check, compiled=compiled)


def scores(dtype: str, length: str, count: int, *, compiled: bool) -> Case:
    """Scores alone, one thread.

    The project's function has no form without a selection: it chooses the best key here, which
    costs one pass over the scores more than the peers do.
    """

    def enter() -> Entries:
        data = draw(count)
        oracle = data.scores(torch.float64, quantised=dtype == "int8")
        chosen = _chosen(data, dtype, "position")
        yield Contestant("project, best 1", "project", project(data, dtype, 1), chosen)
        yield Contestant("kernel, best 1", "kernel", kernel(data, dtype, 1), chosen)
        yield from _torch_scores(data, dtype, near(oracle), compiled=compiled)
        fp8 = peers.Fp8(data)
        yield vllm("vllm fp8_paged_mqa_logits", fp8.scores, near(fp8.oracle))

    return _case(f"indexer-scores-{dtype}-{length}", dtype, count, "scores", enter)


def operator(dtype: str, length: str, count: int, *, compiled: bool) -> Case:
    """Everything on paged keys, one thread."""

    def enter() -> Entries:
        data = draw(count)
        run = project(data, dtype, CHOSEN)
        yield Contestant("project", "project", run, _chosen(data, dtype, "position"))
        check = _chosen(data, dtype, "any")
        yield from _torch_operator(data, dtype, check, compiled=compiled)
        fp8 = peers.Fp8(data)
        check = partial(_select, fp8.oracle, error_limit(fp8.oracle, fp8.oracle.float()), "any")
        yield vllm("vllm fp8, best 512", fp8.operator, check)

    return _case(f"indexer-{dtype}-{length}", dtype, count, f"best {CHOSEN}", enter)


def _torch_operator(
    data: Data, dtype: str, check: Check, *, compiled: bool
) -> Iterator[Contestant]:
    blocks = data.table[0].long()
    if dtype == "bf16":
        narrow = data.query, data.paged(data.keys), data.weights.bfloat16(), blocks
        yield from torch_pair("bf16 gather+mm+topk", peers.paged, narrow, check, compiled=compiled)
        return
    (query, query_scale), (keys, key_scale) = data.query_codes, data.key_codes
    codes = (
        query, data.paged(keys), data.weights * query_scale, data.paged(key_scale[:, None]), blocks
    )  # fmt: skip
    name = "gather+_int_mm+topk"
    yield from torch_pair(name, peers.int_paged, codes, check, compiled=compiled)


def scaling(dtype: str, length: str, count: int) -> Case:
    """The whole operator, one thread against two."""

    def enter() -> Entries:
        data = draw(count)
        run, check = project(data, dtype, CHOSEN), _chosen(data, dtype, "position")
        for threads in (1, 2):
            yield Contestant("project", "project", run, check, threads)
            for entry in _torch_operator(data, dtype, _chosen(data, dtype, "any"), compiled=False):
                yield entry.on(threads)
        yield twins(run, project(draw(count), dtype, CHOSEN), check)

    name = f"threads-indexer-{dtype}-{length}"
    return _case(name, dtype, count, f"best {CHOSEN}", enter, scaling=True)


def _chosen(data: Data, dtype: str, order: str) -> Check:
    """Whether positions are a best set; peers ("any" order) may round their scores to bf16."""
    quantised = dtype == "int8"
    exact = data.scores(torch.float64, quantised=quantised)
    low = exact.bfloat16() if order == "any" else data.scores(torch.float32, quantised=quantised)
    return partial(_select, exact, error_limit(exact, low), order)


def _select(exact: Tensor, limit: float, order: str, found: Tensor) -> Figures:
    found = found.view(1, -1)
    if order == "any":
        found = found.sort().values
    return selection(found, exact[None], limit, order=order)


def _case(
    name: str,
    dtype: str,
    count: int,
    what: str,
    enter: Callable[[], Entries],
    *,
    scaling: bool = False,
) -> Case:
    title = f"1 query, 32 heads x 128, {count >> 10}k keys, {dtype}, {what}"
    flops = {dtype: 2.0 * HEADS * DIM * count}
    # Keys (with a F32 scale if int8), scores once written and once read.
    nbytes = count * (DIM * 2 if dtype == "bf16" else DIM + 4) + 8 * count
    return Case(name, "lightning_indexer", title, flops, nbytes, enter, scaling)
