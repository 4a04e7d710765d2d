"""The oracle for float checkpoints: GlmMoeDsa of transformers, loaded without glm5_ascend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling

from tests.support.choices import Choices, Forward
from tests.support.double import F32Angles, double_precision
from tests.support.mtp import MtpOracle
from tests.support.probe import Probe
from tests.support.ties import Ties
from tests.support.weights import dequantise_fp8, fuse_experts, read_config, read_tensors

Tokens = Sequence[int] | torch.Tensor
ENGINE_LATENT_EPS = 1e-5
HF_LATENT_EPS = 1e-6


class HfOracle:
    """Plain, FP8 or rotated float checkpoint run by transformers with eager attention and experts.

    Args:
        directory: the checkpoint.
        dtype: torch.float32, or torch.float64 for F64 throughout (norms, softmax and scores too).
        latent_eps: epsilon of q_a_layernorm and kv_a_layernorm: engines use the configuration's
            1e-5, transformers its class default 1e-6.
    """

    def __init__(
        self,
        directory: Path,
        *,
        dtype: torch.dtype = torch.float32,
        latent_eps: float = ENGINE_LATENT_EPS,
    ) -> None:
        self.directory, self.dtype, self.latent_eps = directory, dtype, latent_eps
        self.raw_config = read_config(directory)
        self.layers = int(self.raw_config["num_hidden_layers"])
        self.config = hf_config(self.raw_config)
        self.tensors = self._float_tensors()
        self.probe = Probe(int(self.config.index_topk))
        with self._precision():
            self.model = self._build()
        for index, layer in enumerate(self.model.model.layers):
            self.prepare_layer(layer, index)

    def _float_tensors(self) -> dict[str, torch.Tensor]:
        tensors = dequantise_fp8(read_tensors(self.directory))
        return {n: t.to(self.dtype) for n, t in fuse_experts(tensors).items()}

    def _precision(self) -> AbstractContextManager[None]:
        return double_precision() if self.dtype == torch.float64 else nullcontext()

    def _build(self) -> Any:
        build: Any = GlmMoeDsaForCausalLM._from_config
        model = build(self.config, attn_implementation="eager", experts_implementation="eager")
        beyond = f"model.layers.{self.layers}."
        state = {n: t for n, t in self.tensors.items() if not n.startswith((beyond, "rot."))}
        model.load_state_dict(state, strict=True, assign=True)
        if self.dtype == torch.float64:
            theta = self.config.rope_parameters["rope_theta"]
            model.model.rotary_emb = F32Angles(theta, self.config.qk_rope_head_dim)
        return model.eval()

    def prepare_layer(self, layer: nn.Module, index: int) -> None:
        """Set the latent epsilon of a loaded decoder layer and hook its choices."""
        set_latent_eps(layer, self.latent_eps)
        self.probe.attach(layer, index)

    @cached_property
    def mtp(self) -> MtpOracle:
        """The MTP layer, built on first use."""
        with self._precision():
            return MtpOracle(self)

    @torch.no_grad()
    def forward(
        self, tokens: Tokens, inject: Choices | None = None, ties: Ties | None = None
    ) -> Forward:
        """Run all tokens of one sequence at once (no cache).

        With ``ties``, injected choices are followed only where these find a tie.
        """
        return self._run(tokens, 0, inject, None, ties)

    @torch.no_grad()
    def forward_cached(self, chunks: Sequence[Tokens], inject: Choices | None = None) -> Forward:
        """Run one sequence chunk by chunk through transformers' cache."""
        cache = DynamicCache(config=self.config)
        parts, start = [], 0
        for chunk in chunks:
            parts.append(self._run(chunk, start, inject, cache))
            start += len(chunk)
        return Forward(
            torch.cat([p.logits for p in parts]),
            torch.cat([p.hidden for p in parts]),
            joined([p.choices for p in parts]),
        )

    def _run(
        self,
        tokens: Tokens,
        start: int,
        inject: Choices | None,
        cache: Any,
        ties: Ties | None = None,
    ) -> Forward:
        ids = torch.as_tensor(tokens, dtype=torch.long).unsqueeze(0)
        self.probe.begin(start, inject, ties)
        with self._precision():
            output = self.model.model(
                input_ids=ids, past_key_values=cache, use_cache=cache is not None
            )
            hidden = output.last_hidden_state[0]
            logits = self.model.lm_head(hidden)
        return Forward(logits, hidden, self.probe.seen)

    @torch.no_grad()
    def greedy(self, prompt: Tokens, count: int, stop: Sequence[int] = ()) -> list[int]:
        """Return up to ``count`` greedy tokens after ``prompt``; a stop token ends and is kept."""
        cache = DynamicCache(config=self.config)
        tokens: list[int] = []
        step, start = torch.as_tensor(prompt, dtype=torch.long), 0
        while len(tokens) < count:
            logits = self._run(step, start, None, cache).logits[-1]
            start += len(step)
            tokens.append(int(logits.argmax()))
            if tokens[-1] in stop:
                break
            step = torch.tensor(tokens[-1:])
        return tokens

    def margins(self, tokens: Tokens) -> torch.Tensor:
        """Return [T]: distance of the two best logits after each token."""
        best = self.forward(tokens).logits.topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]


def hf_config(raw: dict[str, Any]) -> Any:
    """Return transformers' configuration of ``config.json`` without quantisation and MTP."""
    kept = {k: v for k, v in raw.items() if k not in ("quantization_config", "dtype")}
    return GlmMoeDsaConfig.from_dict(kept)


def set_latent_eps(module: nn.Module, eps: float) -> None:
    """Set the epsilon of every q_a_layernorm and kv_a_layernorm below ``module``."""
    for name, part in module.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            if not isinstance(part, modeling.GlmMoeDsaRMSNorm):
                raise TypeError(f"{name} is a {type(part).__name__}")
            part.variance_epsilon = eps


def chunks_of(tokens: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Cut [T] into pieces of ``size`` tokens (the last may be shorter)."""
    return [tokens[i : i + size] for i in range(0, len(tokens), size)]


def joined(parts: Sequence[Choices]) -> Choices:
    """Concatenate the rows of consecutive chunks."""
    first = parts[0]
    return Choices(
        {i: torch.cat([p.topk_indices[i] for p in parts]) for i in first.topk_indices},
        {i: torch.cat([p.expert_ids[i] for p in parts]) for i in first.expert_ids},
        {n: torch.cat([p.codes[n] for p in parts]) for n in first.codes},
    )
