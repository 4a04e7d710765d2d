"""Offline model: eager forward of a ``glm_moe_dsa`` checkpoint over whole sequences, no cache.

Reads plain and ``ascend`` checkpoints (rotated or not), computes with :mod:`glm5_ascend.ops`, and
can record or replay the discrete choices of a run: which positions each layer attends to and which
experts each token uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError
from glm5_ascend.simulator.offline_layers import DecoderLayer, Norm
from glm5_ascend.simulator.offline_load import MtpGlue, load_layer, load_mtp_glue, load_norm
from glm5_ascend.simulator.offline_weights import WeightStore

LatentEps = Literal["config", "hf"]
HF_LATENT_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Choices:
    """Discrete choices of one forward, per layer index (the MTP layer has its own index).

    Attributes:
        topk_indices: int32 [T, index_topk], ascending, −1 padded; layers that own an indexer.
        expert_ids: integer [T, num_experts_per_tok]; MoE layers.
    """

    topk_indices: dict[int, Tensor] = field(default_factory=dict)
    expert_ids: dict[int, Tensor] = field(default_factory=dict)

    def merged(self, other: Choices) -> Choices:
        """Return the choices of both; ``other`` wins where both have a layer."""
        return Choices(self.topk_indices | other.topk_indices, self.expert_ids | other.expert_ids)

    def save(self, path: Path) -> None:
        """Write the injection file that the engine reads: ``layers.{i}.topk_indices`` and
        ``layers.{i}.expert_ids``, int32, rows are absolute positions."""
        from safetensors.torch import save_file

        tensors = {f"layers.{i}.topk_indices": t for i, t in self.topk_indices.items()}
        tensors |= {f"layers.{i}.expert_ids": t for i, t in self.expert_ids.items()}
        save_file({k: t.to(torch.int32).contiguous() for k, t in tensors.items()}, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by :meth:`save`; recorded activation codes in it are left out."""
        from safetensors.torch import load_file

        parts: dict[str, dict[int, Tensor]] = {"topk_indices": {}, "expert_ids": {}}
        for key, tensor in load_file(path).items():
            owner, _, kind = key.rpartition(".")
            if kind != "codes":
                parts[kind][int(owner.removeprefix("layers."))] = tensor
        return cls(**parts)


@dataclass(frozen=True, slots=True)
class Forward:
    """Result of one pass: ``logits`` [T, vocabulary] in F32, ``hidden`` [T, H] after the final
    norm (what the next MTP step takes), and the choices made or injected."""

    logits: Tensor
    hidden: Tensor
    choices: Choices


@dataclass(frozen=True, slots=True)
class OfflineModel:
    """All layers of one checkpoint in memory; build it with :meth:`load`."""

    config: Glm5Config
    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Tensor
    mtp_layer: DecoderLayer | None
    mtp_glue: MtpGlue | None

    @classmethod
    def load(
        cls,
        directory: Path,
        dtype: torch.dtype = torch.float32,
        latent_eps: LatentEps = "config",
    ) -> Self:
        """Read a checkpoint directory.

        Args:
            directory: plain or ``ascend`` checkpoint.
            dtype: compute dtype of everything that is not quantised.
            latent_eps: epsilon of the q and kv latent norms: the configuration's, as the engines
                do, or the 1e-6 of transformers.

        Raises:
            ConfigError, CheckpointError: the checkpoint is not readable or not complete.
        """
        with WeightStore(directory, dtype) as store:
            config = store.config
            eps = config.rms_norm_eps if latent_eps == "config" else HF_LATENT_EPS
            embedding = store.float("model.embed_tokens.weight")
            head = store.float("lm_head.weight")
            mtp = config.num_nextn_predict_layers > 0
            return cls(
                config,
                embedding,
                tuple(load_layer(store, i, eps) for i in range(config.num_hidden_layers)),
                load_norm(store, "model.norm"),
                head,
                load_layer(store, config.num_hidden_layers, eps) if mtp else None,
                load_mtp_glue(store, embedding, head) if mtp else None,
            )

    @torch.inference_mode()
    def forward(self, tokens: Tensor, inject: Choices | None = None) -> Forward:
        """Run the main model on one sequence ``tokens`` int64 [T] at positions 0…T−1."""
        inject = inject or Choices()
        choices = Choices()
        positions = torch.arange(tokens.shape[0])
        hidden = self.embedding[tokens]
        shared: Tensor | None = None
        for index, layer in enumerate(self.layers):
            hidden, shared, ids = layer(
                hidden,
                positions,
                shared,
                inject.topk_indices.get(index),
                inject.expert_ids.get(index),
            )
            if self.config.has_indexer(index):
                choices.topk_indices[index] = shared
            if ids is not None:
                choices.expert_ids[index] = ids
        hidden = self.norm(hidden)
        return Forward(_logits(hidden, self.head), hidden, choices)

    @torch.inference_mode()
    def mtp(
        self,
        next_tokens: Tensor,
        hidden: Tensor,
        *,
        topk: Tensor | None = None,
        inject: Choices | None = None,
        mask_first: bool = True,
    ) -> Forward:
        """Run one MTP step: row t joins ``hidden[t]`` with the embedding of ``next_tokens[t]``.

        Step 1 takes the tokens after the main model's positions and its hidden states; step k + 1
        takes the hidden states that step k returned. ``rot.weight`` is applied at every step.

        Args:
            next_tokens: int64 [S].
            hidden: [S, H] after the final norm of the previous step.
            topk: positions attended to, int32 [S, index_topk], when step 1's choice is reused
                (``index_share_for_mtp_iteration``); None lets the layer's own indexer choose.
            inject: choices under the MTP layer's index; ``topk`` wins over it.
            mask_first: zero the embedding of row 0, as vLLM's MTP module does at position 0.

        Raises:
            CheckpointError: the checkpoint has no MTP layer.
        """
        if self.mtp_layer is None or self.mtp_glue is None:
            raise CheckpointError("this checkpoint has no MTP layer", "use one exported with it")
        glue, index = self.mtp_glue, self.config.num_hidden_layers
        inject = inject or Choices()
        embedded = glue.embedding[next_tokens]
        if mask_first:
            embedded[0] = 0
        if glue.rot is not None:
            hidden = torch.nn.functional.linear(hidden, glue.rot)
        joined = glue.eh_proj(torch.cat((glue.enorm(embedded), glue.hnorm(hidden)), dim=-1))
        out, chosen, ids = self.mtp_layer(
            joined,
            torch.arange(next_tokens.shape[0]),
            None,
            inject.topk_indices.get(index) if topk is None else topk,
            inject.expert_ids.get(index),
        )
        out = glue.norm(out)
        experts = {} if ids is None else {index: ids}
        return Forward(_logits(out, glue.head), out, Choices({index: chosen}, experts))


def _logits(hidden: Tensor, head: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(hidden, head)
    return logits.to(torch.promote_types(torch.float32, hidden.dtype))
