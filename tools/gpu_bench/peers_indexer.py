"""DeepGEMM's logits with a top-k of torch or FlashInfer beside the project's indexer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.verify.compare import Figures
from tools.gpu_bench.costs import INDEX_DIM, INDEX_HEADS
from tools.gpu_bench.draw import PAGE
from tools.gpu_bench.entry import Absent, Contestant, Ready
from tools.gpu_bench.indexer import Problem, Set, recall
from tools.gpu_bench.peers import Peers, compiler_for_deep_gemm

TopK = Callable[[Tensor], Tensor]


def contestants(problem: Problem, peers: Peers, *, jit: bool) -> Iterator[Contestant]:
    """Two pairs; DeepGEMM takes e4m3 codes only, so it is named there only.

    Args:
        problem: queries and keys.
        peers: wheels.
        jit: let FlashInfer compile its top-k if that is not there: minutes.
    """
    if problem.shape.dtype != "fp8":
        return

    def with_torch() -> Ready:
        return _pair(problem, peers, _torch_top_k(problem), torch.__version__)

    def with_flashinfer() -> Ready:
        module, version = peers.load("flashinfer")
        if not (peers.has_top_k or jit):
            raise Absent("no topk.so in the folder of the wheels, and --jit was not given")
        return _pair(problem, peers, _flashinfer_top_k(problem, module), version)

    for name, make in (("FlashInfer", with_flashinfer), ("torch", with_torch)):
        yield Contestant(f"DeepGEMM + {name} top-k", "peer", "fp8", INDEX_HEADS, make)


def _torch_top_k(problem: Problem) -> TopK:
    count = problem.shape.chosen
    return lambda logits: torch.topk(logits, count, -1, sorted=False).indices


def _flashinfer_top_k(problem: Problem, module: Any) -> TopK:
    count, device = problem.shape.chosen, problem.sets[0].query.device
    lengths = problem.seen.int().to(device)
    offsets = torch.zeros_like(lengths)
    return lambda logits: module.top_k_ragged_transform(logits, offsets, lengths, count)


def _pair(problem: Problem, peers: Peers, top_k: TopK, version: str) -> Ready:
    compiler_for_deep_gemm()
    module, own = peers.load("deep_gemm")
    logits = _paged if problem.shape.queries == 1 else _ragged
    made = [logits(problem, each, module) for each in problem.sets]
    calls = [lambda one=one: top_k(one()) for one in made]

    def check(number: int, result: Tensor) -> Figures:
        return recall(problem.check(number, result))

    return Ready(calls, check, f"{own}, {version}")


def _paged(problem: Problem, each: Set, module: Any) -> Callable[[], Tensor]:
    """Decode: pages of 64 codes followed by their scales."""
    device, context = each.query.device, problem.shape.context
    query = each.query[:, None]
    cache = peer_pages(each)
    lengths = torch.full((len(query), 1), context, dtype=torch.int32, device=device)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    plan = module.get_paged_mqa_logits_metadata(lengths, PAGE, processors)
    weights = _folded(each)
    return lambda: module.fp8_paged_mqa_logits(
        query, cache, weights, lengths, each.table, plan, context, False
    )


def _ragged(problem: Problem, each: Set, module: Any) -> Callable[[], Tensor]:
    """Prefill: dense keys; what a token does not see comes out as minus infinity."""
    ends = problem.seen.int().to(each.query.device)
    starts, weights = torch.zeros_like(ends), _folded(each)
    keys = each.keys, each.key_scale
    return lambda: module.fp8_mqa_logits(each.query, keys, weights, starts, ends, True)


def _folded(each: Set) -> Tensor:
    """F32 [tokens, 32]: the queries' scales belong into the weights."""
    assert each.query_scale is not None
    return each.weights * each.query_scale


def peer_pages(each: Set) -> Tensor:
    """uint8 [pages, 64, 1, 132] whose bytes are 64 x 128 codes, then 64 F32 scales."""
    assert each.key_scale is not None
    codes = each.paged(each.keys).flatten(1).view(torch.uint8)
    scales = each.paged(each.key_scale).view(torch.uint8)
    return torch.cat([codes, scales], 1).view(-1, PAGE, 1, INDEX_DIM + 4)
