"""The MTP draft: vLLM's ``DeepSeekMTP`` with our layers, and ``rot.weight`` as vllm-ascend has it.

A rotated checkpoint (``is_rot_used`` in its description) folds the final norm's weight into the
head, so the main model hands over hidden states without it and in the rotated basis. At every
draft step ``rot.weight`` multiplies the incoming hidden states before ``hnorm``, also from step 2
on, where they come from ``shared_head.norm``. That is exact in step 1; later it is exact only if
the weights of ``model.norm`` and ``shared_head.norm`` are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.model_executor.models.deepseek_mtp import DeepSeekMTP

from glm5_ascend.simulator import dense, kernels
from glm5_ascend.simulator.causal_lm import adapt_layer
from glm5_ascend.simulator.injection import Positions
from glm5_ascend.simulator.loading import ROTATION, Checkpoint


class DraftLayer(nn.Module):
    """Takes the place of one of vLLM's predictor layers and uses its sub-modules."""

    def __init__(self, stock: Any, hidden: int, rotated: bool) -> None:
        super().__init__()
        self.enorm = stock.enorm
        self.hnorm = stock.hnorm
        self.eh_proj = stock.eh_proj
        self.shared_head = stock.shared_head
        self.mtp_block = stock.mtp_block
        if rotated:
            self.rot = nn.Linear(hidden, hidden, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        previous_hidden_states: Tensor,
        inputs_embeds: Tensor,
        *unused: Any,
    ) -> tuple[Tensor, Tensor]:
        """(state for the logits, state for the next step), both [tokens, hidden].

        Args:
            positions: int64 [tokens]; position 0 has no previous token, its embedding is dropped.
            previous_hidden_states: [tokens, hidden] after ``model.norm`` or, from step 2 on, after
                ``shared_head.norm``.
            inputs_embeds: [tokens, hidden] of the next tokens.
        """
        embedded = torch.where(positions.unsqueeze(-1) == 0, 0, inputs_embeds)
        previous = previous_hidden_states
        if hasattr(self, "rot"):
            previous = dense.linear(previous, self.rot.weight)
        joined = torch.cat([self.enorm(embedded), self.hnorm(previous)], -1)
        hidden = dense.linear(joined, self.eh_proj.weight)
        hidden, residual = self.mtp_block(positions=positions, hidden_states=hidden, residual=None)
        hidden = hidden + residual
        if self.mtp_block.use_sequence_parallel_moe:
            hidden = tensor_model_parallel_all_gather(hidden, 0)[: positions.shape[0]]
        return hidden, self.shared_head(hidden)


class Glm5AscendMtpModel(DeepSeekMTP):  # type: ignore[misc]
    """Draft model; shares embedding and head with the main model unless it has copies."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.positions = Positions()
        rotated = bool(getattr(self.quant_config, "is_rotated", False))
        for name, stock in list(self.model.layers.items()):
            adapt_layer(stock.mtp_block, self.config, self.positions)
            self.model.layers[name] = DraftLayer(stock, self.config.hidden_size, rotated)
        if kernels.on_cpu():
            dense.install(self)

    def forward(self, input_ids: Any, positions: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.positions.current = positions
        return super().forward(input_ids, positions, *args, **kwargs)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        first = next(iter(self.model.layers))
        head = f"model.layers.{first}.shared_head.head.weight"
        rotation = f"model.layers.{first}.{ROTATION}"
        embedding = "model.embed_tokens.weight"
        checkpoint = Checkpoint(
            self, self.config, self.quant_config, draft=True, optional=(head, embedding)
        )
        load = super().load_weights

        def renamed(stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in stream:
                yield rotation if name == ROTATION else name, tensor

        loaded = checkpoint.load(weights, lambda stream: load(renamed(stream)))
        # vLLM's proposer reads these two: without a copy of its own, the draft gets the main
        # model's module; a copy that equals it is dropped.
        self.has_own_embed_tokens = embedding in loaded
        self.has_own_lm_head = head in loaded
        self.lm_head = self.model.layers[first].shared_head.head
        return loaded

    def _rewrite_spec_layer_name(self, spec_layer: int, name: str) -> str:
        if name == f"model.layers.{spec_layer}.{ROTATION}":
            return name
        rewritten: str = super()._rewrite_spec_layer_name(spec_layer, name)
        return rewritten
