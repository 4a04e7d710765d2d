"""The MTP layer as an oracle, composed of transformers' decoder layer (model.md 3.2).

transformers drops the layer at load. Here it is one more decoder layer with an indexer of its own
between ``eh_proj(concat(enorm(embedding), hnorm(hidden)))`` and ``shared_head.norm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import DynamicCache, GlmMoeDsaConfig
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling

from tests.support.choices import Choices, Forward, fill_padding
from tests.support.weights import with_prefix

if TYPE_CHECKING:
    from tests.support.hf import HfOracle, Tokens


@dataclass
class Draft:
    """Greedy draft ``tokens``, their ``logits`` [steps, vocab], and step 1's full pass."""

    tokens: list[int]
    logits: torch.Tensor
    first: Forward


def _mtp_config(raw: dict[str, Any]) -> Any:
    changed = raw | {
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "indexer_types": ["full"],
        "mlp_layer_types": ["sparse"],
    }
    dropped = ("quantization_config", "dtype", "index_topk_pattern")
    config = GlmMoeDsaConfig.from_dict({k: v for k, v in changed.items() if k not in dropped})
    config._attn_implementation = config._experts_implementation = "eager"
    return config


class MtpOracle:
    """MTP layer of an oracle's checkpoint; uses its embedding, head, rotary and probe.

    Layer-local ``embed_tokens`` and ``shared_head.head`` are used where the checkpoint has them.
    With ``rot.weight`` the incoming hidden state is multiplied by it at every step.
    """

    def __init__(self, oracle: HfOracle) -> None:
        self.oracle = oracle
        self.config = _mtp_config(oracle.raw_config)
        self.shares_indices = bool(oracle.raw_config.get("index_share_for_mtp_iteration"))
        main = oracle.model
        own = with_prefix(oracle.tensors, f"model.layers.{oracle.layers}.")
        if not own:
            raise ValueError(f"{oracle.directory} has no MTP layer")
        self.embedding = own.pop("embed_tokens.weight", main.model.embed_tokens.weight)
        self.head = own.pop("shared_head.head.weight", main.lm_head.weight)
        self.rotation = oracle.tensors.get("rot.weight")
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.enorm, self.hnorm, self.norm = (modeling.GlmMoeDsaRMSNorm(size, eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.block: Any = modeling.GlmMoeDsaDecoderLayer(self.config, 0).eval()
        for name, module in (
            ("enorm", self.enorm),
            ("hnorm", self.hnorm),
            ("shared_head.norm", self.norm),
            ("eh_proj", self.eh_proj),
        ):
            module.load_state_dict({"weight": own.pop(f"{name}.weight")}, assign=True)
        self.block.load_state_dict(own, strict=True, assign=True)
        oracle.prepare_layer(self.block, oracle.layers)

    @torch.no_grad()
    def step(
        self,
        next_tokens: Tokens,
        hidden: torch.Tensor,
        *,
        start: int = 0,
        cache: Any = None,
        shared: torch.Tensor | None = None,
        inject: Choices | None = None,
        zero_first: bool = True,
    ) -> Forward:
        """Run rows at positions ``start``..; row p combines the token at p + 1 with hidden at p.

        Args:
            next_tokens: [S] the token after each row's position.
            hidden: [S, hidden]: after ``model.norm`` at step 1, after ``shared_head.norm`` later.
            cache: transformers' cache of this layer, extended by the rows.
            shared: index rows [S, index_topk] of step 1, used instead of the indexer.
            zero_first: blank the embedding at position 0, as vLLM's draft does.

        Returns:
            ``hidden`` is the state after ``shared_head.norm``, which the next step recycles.
        """
        oracle = self.oracle
        ids = torch.as_tensor(next_tokens, dtype=torch.long)
        positions = torch.arange(start, start + len(ids)).unsqueeze(0)
        embedded = nn.functional.embedding(ids, self.embedding)
        if zero_first:
            embedded = embedded.masked_fill((positions[0] == 0).unsqueeze(1), 0.0)
        if self.rotation is not None:
            hidden = nn.functional.linear(hidden, self.rotation)
        oracle.probe.begin(start, inject)
        with oracle._precision():
            mixed = self.combine(self.enorm(embedded), self.hnorm(hidden)).unsqueeze(0)
            state = self._run_block(mixed, positions, cache, shared)
            normed = self.norm(state[0])
        logits = nn.functional.linear(normed, self.head)
        return Forward(logits, normed, oracle.probe.seen)

    def combine(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``eh_proj`` of the normalised embedding (first half) and hidden state."""
        mixed: torch.Tensor = self.eh_proj(torch.cat([embedded, hidden], dim=-1))
        return mixed

    def _run_block(
        self,
        mixed: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        shared: torch.Tensor | None,
    ) -> torch.Tensor:
        last = int(positions[0, -1])
        visible = torch.arange(last + 1) <= positions[0].unsqueeze(1)
        mask = torch.zeros(visible.shape, dtype=mixed.dtype)
        mask = mask.masked_fill(~visible, torch.finfo(mixed.dtype).min)[None, None]
        attention = self.block.self_attn
        indexer = attention.indexer
        if shared is not None:
            attention.indexer = None
        try:
            state, _ = self.block(
                mixed,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
                position_embeddings=self.oracle.model.model.rotary_emb(mixed, positions),
                prev_topk_indices=None if shared is None else fill_padding(shared).unsqueeze(0),
            )
        finally:
            attention.indexer = indexer
        result: torch.Tensor = state
        return result

    def recycled(self, forward: Forward) -> torch.Tensor:
        """Return the state that the next draft step takes: after ``shared_head.norm``."""
        return forward.hidden[-1:]

    def draft(
        self,
        tokens: Tokens,
        hidden: torch.Tensor,
        next_token: int,
        steps: int,
        *,
        forced: Sequence[int] = (),
        zero_first: bool = True,
    ) -> Draft:
        """Draft ``steps`` tokens after ``tokens`` + ``next_token`` for one sequence.

        Step 1 runs all positions; later steps run one row each, at the following position, with
        step 1's last index row where the configuration shares it. ``forced`` replaces drafted
        tokens as inputs of later steps (teacher forcing).
        """
        cache = DynamicCache(config=self.config)
        shifted = torch.as_tensor([*torch.as_tensor(tokens).tolist()[1:], next_token])
        first = self.step(shifted, hidden, cache=cache, zero_first=zero_first)
        logits, drafted = [first.logits[-1]], [int(first.logits[-1].argmax())]
        rows = first.choices.topk_indices[self.oracle.layers][-1:]
        last, position = first, len(shifted)
        while len(drafted) < steps:
            done = len(drafted) - 1
            token = forced[done] if done < len(forced) else drafted[-1]
            last = self.step(
                [token],
                self.recycled(last),
                start=position,
                cache=cache,
                shared=rows if self.shares_indices else None,
                zero_first=zero_first,
            )
            position += 1
            logits.append(last.logits[-1])
            drafted.append(int(last.logits[-1].argmax()))
        return Draft(drafted, torch.stack(logits), first)
