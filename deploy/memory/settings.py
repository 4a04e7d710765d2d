"""What the memory of one die depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

from glm5_ascend.deploy.catalogue import Model, Sku
from glm5_ascend.deploy.layout import Group
from glm5_ascend.engine_releases import RELEASES, Release

QUANTS = ("bf16", "w8a8", "w4a8")
CACHES = ("bf16", "li-c8", "sfa-c8", "both")
NEWEST = max(RELEASES)


@dataclass(frozen=True, slots=True)
class Settings:
    """One role of a deployment as its command sets it.

    Attributes:
        role: ``mixed``, ``prefill`` (KV producer) or ``decode`` (KV consumer).
        quant, kv: formats of weights and caches, of ``QUANTS`` and ``CACHES``.
        max_model_len, max_num_seqs, max_num_batched_tokens: vLLM's flags; the last two per DP rank.
        utilisation: ``--gpu-memory-utilization``.
        draft_tokens: of MTP; 0 leaves the MTP layer out.
        dsa_cp: DSA context parallel, which un-shards projections of attention.
        sequence_parallel: FlashComm1 or DSA-CP: activations are split over TP.
        kv_both: the command has a ``--kv-transfer-config`` of role ``kv_both``.
        keep_unfused: ``mlapo_keep_prefill_weights``.
        buffsize: ``HCCL_BUFFSIZE``, MiB.
        graph: graphs are captured (no ``--enforce-eager``).
        captured: tokens of the largest captured step of a rank; 0 where every decode step is.
        block: tokens of a cache block.
        redundant: additional experts of EPLB, all dies together.
        release: of vllm-ascend.
    """

    model: Model
    sku: Sku
    group: Group
    quant: str = "w8a8"
    kv: str = "bf16"
    role: str = "mixed"
    max_model_len: int = 32768
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 4096
    utilisation: float = 0.92
    draft_tokens: int = 3
    dsa_cp: bool = False
    sequence_parallel: bool = False
    kv_both: bool = False
    keep_unfused: bool = False
    buffsize: int = 200
    graph: bool = True
    captured: int = 0
    block: int = 128
    redundant: int = 0
    release: Release = field(default=NEWEST)

    @property
    def layers(self) -> int:
        """Layers in memory: MTP's only where drafts are made."""
        return self.model.layers + (self.model.mtp_layers if self.draft_tokens else 0)

    @property
    def rows(self) -> int:
        """Tokens of one decode step of a DP rank, drafts included."""
        return self.max_num_seqs * (1 + self.draft_tokens)
