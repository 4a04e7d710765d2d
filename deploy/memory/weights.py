"""Bytes of weights on one die, by part.

Routed experts are split by EP only, attention by TP only, and the low-rank projections by nothing.
README.md has the formula, the logs that it was checked on, and the size of the remainder of W4A8.
"""

from __future__ import annotations

from fractions import Fraction

from glm5_ascend.deploy.memory.settings import Settings

PARTS = {
    "experts": "routed experts",
    "experts_remainder": "W4A8 remainder (unexplained)",
    "attention": "attention",
    "dsa_cp": "un-sharded by DSA-CP",
    "mlapo": "unfused copies for MLAPO",
    "indexer": "indexers",
    "shared_dense": "shared experts, dense MLP",
    "router": "routers",
    "embed_head": "embedding and head",
    "mtp": "MTP projection",
}
_BF16, _F32 = 2, 4
# Per parameter: packed codes, and the F32 scales and scale_bias of a channel (9.4 GB for 725 G).
_W4A8_FORMAT = 0.513
# Two start-up logs (vllm-ascend #10700, #12779) need 0.574 B; nothing in the format explains it.
_W4A8_REMAINDER = 0.061
_BYTES = {"bf16": 2.0, "w8a8": 1.0, "w4a8": 1.0}
# Until this series FlashComm's context parallel held o_proj in full everywhere.
_FULL_OUTPUT_BEFORE = (0, 21)


def weight_bytes(settings: Settings) -> dict[str, float]:
    """Bytes on a die for every key of :data:`PARTS`; parts that are absent have 0."""
    model, group = settings.model, settings.group
    linear, tp = _BYTES[settings.quant], group.tp
    stages = group.pp
    layers = Fraction(settings.layers, stages)
    moe = Fraction(settings.layers - model.dense_layers, stages)
    expert = float(moe * Fraction(model.experts + settings.redundant, group.ep))
    expert *= model.expert_params
    heads = model.query_params * linear + model.absorbed_params * _BF16
    output = model.output_params * linear
    down = model.down_params * linear
    shared = float(moe) * model.shared_experts * model.expert_params
    dense = model.dense_layers / stages * model.dense_params
    packed = settings.quant == "w4a8"
    drafts = settings.layers - model.layers
    return {
        "experts": expert * (_W4A8_FORMAT if packed else linear),
        "experts_remainder": expert * (_W4A8_REMAINDER if packed else 0.0),
        "attention": float(layers) * (down + (heads + output) / tp),
        "dsa_cp": float(layers) * (1 - 1 / tp) * _unsharded(settings, heads, output),
        "mlapo": float(layers) * _unfused(settings, linear),
        "indexer": _indexers(settings) / stages * model.indexer_params * _BF16,
        "shared_dense": (shared + dense) * linear / tp,
        "router": float(moe) * model.hidden * model.experts * _F32,
        "embed_head": 2 * model.vocab * model.hidden * _BF16 / tp / stages,
        "mtp": drafts * 2 * model.hidden**2 * _BF16 / stages,
    }


def _unsharded(settings: Settings, heads: float, output: float) -> float:
    """Bytes per layer that DSA-CP holds in full: all heads' projections, and the output's unless
    it is gathered layer by layer (producers and nodes without KV transfer)."""
    if not settings.dsa_cp:
        return 0.0
    consumer = settings.role == "decode" or settings.kv_both
    full = consumer or settings.release.series < _FULL_OUTPUT_BEFORE
    return heads + (output if full else 0.0)


def _unfused(settings: Settings, linear: float) -> float:
    if not settings.keep_unfused:
        return 0.0
    model = settings.model
    return (model.down_params + model.query_params / settings.group.tp) * linear


def _indexers(settings: Settings) -> int:
    model = settings.model
    drafts = settings.layers - model.layers
    return model.index_layers + (drafts if model.index_heads else 0)
