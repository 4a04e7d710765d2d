"""Planted faults of the model's semantics, each once a real defect of some implementation.

A fault is a context manager that breaks one :class:`HfOracle` while it is open (model.md 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support import fault_attention as attention
from tests.support import fault_experts as experts
from tests.support import fault_mtp as draft
from tests.support.fault_tools import Break


@dataclass(frozen=True)
class Fault:
    """``where`` says which run shows it: "main", "cached" (chunks), "mtp1" or "mtp2" (step).

    ``sparse_only`` faults leave every sequence of at most ``index_topk`` tokens untouched.
    """

    name: str
    apply: Break
    where: str = "main"
    sparse_only: bool = False


FAULTS = [
    Fault("indexer-rope-half-split", attention.half_split_rope(indexer=True), sparse_only=True),
    Fault("mla-rope-half-split", attention.half_split_rope(indexer=False)),
    Fault("indexer-relu-missing", attention.relu_missing, sparse_only=True),
    Fault("k-norm-as-rms", attention.key_norm(centred=False), sparse_only=True),
    Fault("k-norm-bias-dropped", attention.key_norm(bias=False), sparse_only=True),
    Fault("k-norm-eps-1e-5", attention.key_norm(eps=1e-5), sparse_only=True),
    Fault("indexer-query-unnormalised", attention.unnormalised_query_latent, sparse_only=True),
    Fault("index-share-ignored", attention.index_share_ignored, sparse_only=True),
    Fault("index-offset-2", attention.default_offset, sparse_only=True),
    Fault("rope-theta-1e6", attention.rotary_frequencies(1e6, 64)),
    Fault("rope-width-head-dim", attention.rotary_frequencies(8e6, 80)),
    Fault("latent-eps-1e-6", attention.latent_eps),
    Fault("softmax-scale", attention.softmax_scale),
    Fault("router-bias-in-weights", experts.router(experts.bias_in_weights)),
    Fault("router-softmax", experts.router(experts.softmax_scores)),
    Fault("router-not-normalised", experts.router(experts.not_normalised)),
    Fault("router-scaling-missing", experts.scaling_missing),
    Fault("router-bias-dropped", experts.bias_dropped),
    Fault("router-bf16", experts.bf16_router),
    Fault("expert-gate-up-swapped", experts.swapped_gate_up),
    Fault("shared-expert-missing", experts.shared_expert_missing),
    Fault("index-cache-reset", attention.index_cache_reset, where="cached", sparse_only=True),
    Fault("mtp-concat-swapped", draft.concat_swapped, where="mtp1"),
    Fault("mtp-first-embedding-kept", draft.embedding_kept, where="mtp1"),
    Fault("mtp-final-norm-skipped", draft.final_norm_skipped, where="mtp1"),
    Fault("mtp-pre-norm-recycled", draft.pre_norm_recycled, where="mtp2"),
    Fault("mtp-indices-not-shared", draft.indices_not_shared, where="mtp2"),
]
