"""Sizes and constants of the exported operators, from a model or those of GLM-5."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.config import Glm5Config


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is fixed in an exported operator; the defaults are GLM-5, 5.1, 5.2 and 5.3."""

    hidden: int = 6144
    heads: int = 64
    q_lora: int = 2048
    kv_lora: int = 512
    nope: int = 192
    rope: int = 64
    index_heads: int = 32
    index_dim: int = 128
    index_topk: int = 2048
    eps: float = 1e-5

    @classmethod
    def of(cls, config: Glm5Config) -> Sizes:
        """The sizes of a checkpoint."""
        return cls(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            q_lora=config.q_lora_rank,
            kv_lora=config.kv_lora_rank,
            nope=config.qk_nope_head_dim,
            rope=config.qk_rope_head_dim,
            index_heads=config.index_n_heads,
            index_dim=config.index_head_dim,
            index_topk=config.index_topk,
            eps=config.rms_norm_eps,
        )

    @property
    def scale(self) -> float:
        """Softmax scale, one over the root of a head's width before absorption."""
        return float((self.nope + self.rope) ** -0.5)
