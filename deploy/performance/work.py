"""What one step of an instance has to do: bytes and operations per die, as coefficients.

Everything that does not depend on the step is worked out once per layout, so that a step's time is
a few dozen multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from glm5_ascend.deploy.memory.cache import index_bytes, latent_bytes
from glm5_ascend.deploy.memory.settings import Settings
from glm5_ascend.deploy.memory.weights import weight_bytes
from glm5_ascend.deploy.performance.parameters import (
    CUBE_FLOPS,
    HOST_GBS,
    OUT_BYTES,
    SORT_CYCLES,
)

_BF16 = 2
_EXPERT_BYTES = {"bf16": 2.0, "w8a8": 1.0, "w4a8": 0.513}
# A token goes out in int8 (with BF16 weights in BF16) and comes back in BF16.
_DISPATCH_BYTES = {"bf16": 2, "w8a8": 1, "w4a8": 1}


# A number, or an array with one entry per layout.
Number = Any


@dataclass(frozen=True, slots=True)
class Work:
    """Coefficients of one instance; a "token" is one of a DP rank unless said otherwise.

    Attributes:
        peak, bf16, hbm, link, host: of the SKU, 1/s and B/s; ``host`` is 0 where unpublished, and
            ``off`` slows the link for the share of traffic that leaves a server.
        tp, dp, ep: sizes.
        layers, moe_layers, index_layers: decoder layers of each kind that run per step.
        linear_flops, linear_bytes: products outside of experts, all decoder layers, per token and
            in all.
        expert_flops, expert_bytes: of one token's routed experts, and of one layer's local experts.
        head_flops, head_bytes: of the vocabulary's projection.
        latent, key: cache bytes of a token in one layer, and in one indexer.
        query_flops: of one query token and one key, all heads of a die.
        index_flops: of an indexer's projections, per token.
        score_flops, score_seconds: of one query token and one key in an indexer: work of the cube
            at the BF16 rate, and the least time of what is around it.
        topk: tokens that sparse attention selects; 0 for dense attention.
        collectives: latencies over TP ranks per layer; DCP adds its own.
        tp_bytes, moe_bytes: bytes that a token moves per layer.
        share: DSA-CP splits a prefill's tokens over so many ranks; 1 where heads are split.
        untouched: share of experts that one token does not touch.
        drafts: tokens of MTP.
    """

    peak: Number
    bf16: Number
    hbm: Number
    link: Number
    host: Number
    off: Number
    tp: Number
    dp: Number
    ep: Number
    layers: Number
    moe_layers: Number
    index_layers: Number
    linear_flops: Number
    linear_bytes: Number
    expert_flops: Number
    expert_bytes: Number
    head_flops: Number
    head_bytes: Number
    latent: Number
    key: Number
    query_flops: Number
    prefill_flops: Number
    index_flops: Number
    score_flops: Number
    score_seconds: Number
    topk: int
    collectives: Number
    tp_bytes: Number
    moe_bytes: Number
    share: Number
    untouched: Number
    drafts: Number


def work_of(settings: Settings, index_every: int | None = None) -> Work:
    """The coefficients of ``settings``.

    Args:
        index_every: one in so many of the layers with an indexer computes its selection
            (IndexCache); by default each does.
    """
    model, group, sku = settings.model, settings.group, settings.sku
    tp, stages = group.tp, group.pp
    split = settings.dsa_cp and tp > 1
    down = model.down_params / (tp if split else 1)
    heads = (model.query_params + model.absorbed_params + model.output_params) / tp
    moe_layers = model.layers - model.dense_layers
    shared = moe_layers * model.shared_experts * model.expert_params / tp
    dense = model.dense_layers * model.dense_params / tp
    bytes_of = weight_bytes(settings)
    parts = ("attention", "dsa_cp", "indexer", "shared_dense", "router")
    width = model.hidden * _BF16
    packed = settings.quant != "bf16"
    out = _DISPATCH_BYTES[settings.quant] * model.hidden + width
    inside = min(sku.dies_per_server / group.ep, 1.0)
    ratio = sku.intra.gbs / sku.inter.gbs
    indexers = model.index_layers if model.index_heads else 0
    narrow = settings.kv in ("li-c8", "both")
    return Work(
        peak=(sku.int8_tops if packed else sku.bf16_tflops) * 1e12,
        bf16=sku.bf16_tflops * 1e12,
        hbm=sku.hbm_gbs * 1e9,
        link=sku.intra.gbs * 1e9,
        host=HOST_GBS.get(sku.chip, 0.0) * 1e9,
        off=inside + (1 - inside) * ratio,
        tp=tp,
        dp=group.dp,
        ep=group.ep,
        layers=model.layers / stages,
        moe_layers=moe_layers / stages,
        index_layers=indexers / (index_every or 1) / stages,
        linear_flops=2 * (model.layers * (down + heads) + shared + dense) / stages,
        linear_bytes=sum(bytes_of[part] for part in parts),
        expert_flops=2 * model.experts_per_token * model.expert_params,
        expert_bytes=model.experts / group.ep * model.expert_params * _EXPERT_BYTES[settings.quant],
        head_flops=2 * model.vocab * model.hidden / tp,
        head_bytes=model.vocab * model.hidden * _BF16 / tp,
        latent=latent_bytes(settings) / group.dcp,
        key=index_bytes(settings),
        query_flops=2 * model.heads / tp * (2 * model.kv_rank + model.rope) / group.dcp,
        prefill_flops=2 * model.heads / tp * (model.nope + model.rope + model.value),
        index_flops=2 * model.indexer_params,
        score_flops=2 * model.index_heads * model.index_dim / (2 if narrow else 1),
        score_seconds=_score_seconds(settings, narrow),
        topk=model.index_topk,
        collectives=2.0 * (tp > 1) + 2.0 * (group.dcp > 1),
        tp_bytes=4 * (tp - 1) / tp * width,
        moe_bytes=model.experts_per_token * out * (1 - 1 / group.ep) / tp,
        share=float(tp if split else 1),
        untouched=1 - model.experts_per_token / model.experts,
        drafts=settings.draft_tokens,
    )


def _score_seconds(settings: Settings, narrow: bool) -> float:
    """Least seconds of one query token and one key in an indexer, beside the cube's products.

    With BF16 keys the scores of all heads leave the cube in F32, are weighted by the vector cores
    (two operations each, 64 a cycle) and sorted; with int8 keys the cube sums the heads, and the
    sort is left.
    """
    heads, cycles = settings.model.index_heads, settings.sku.bf16_tflops * 1e12 / CUBE_FLOPS
    if not heads or not cycles:
        return 0.0
    vector = SORT_CYCLES + (0 if narrow else heads * 2 / 64)
    out = 0.0 if narrow else heads * 4 / OUT_BYTES
    return max(out, vector / 2) / cycles


def stack(works: Sequence[Work]) -> Work:
    """Many instances of one model as one, with arrays in place of numbers."""
    columns = {
        item.name: np.array([getattr(work, item.name) for work in works], dtype=float)
        for item in fields(Work)
        if item.name != "topk"
    }
    return Work(topk=works[0].topk, **columns)
