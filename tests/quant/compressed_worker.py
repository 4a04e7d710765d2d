"""vLLM's own compressed-tensors layers in one pass on this CPU, in a process of its own.

Linear layers are vLLM's, with its CPU kernel; sparse attention and router are the simulator's, for
vLLM has none on a CPU, and the int8 experts are those below, for its kernel wants another router.
Arguments: the export, a folder whose configuration names no quantisation, prompts, the result.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.simulator.__main__ import version_or_cpu_build

metadata.version = version_or_cpu_build


def quantised_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x [T, in], rounded per token to int8, times codes int8 [out, in] with scale [out, 1]."""
    steps = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    product: Tensor = (x / steps).round() @ codes.float().T
    return product * steps * scale.reshape(1, -1)


def experts_class() -> Any:
    """Experts of vLLM's interface for int8, written out in torch."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsInt8

    class Experts(CPUExpertsInt8):  # type: ignore[misc]
        def process_weights_after_loading(self, layer: Any) -> None:
            """Codes stay as they were loaded."""

        def apply(
            self,
            output: Tensor,
            hidden_states: Tensor,
            w1: Tensor,
            w2: Tensor,
            topk_weights: Tensor,
            topk_ids: Tensor,
            **unused: Any,
        ) -> None:
            output.zero_()
            for expert in range(w1.shape[0]):
                rows, slots = (topk_ids == expert).nonzero(as_tuple=True)
                both = quantised_product(hidden_states[rows], w1[expert], self.w1_scale[expert])
                gate, up = both.chunk(2, -1)
                inner = torch.nn.functional.silu(gate) * up
                out = quantised_product(inner, w2[expert], self.w2_scale[expert])
                output.index_add_(0, rows, out * topk_weights[rows, slots, None])

    return Experts


def model_class() -> Any:
    """vLLM's model and loader with the simulator's attention and router."""
    from vllm.model_executor.models.deepseek_v2 import GlmMoeDsaForCausalLM

    from glm5_ascend.simulator.causal_lm import adapt_layer
    from glm5_ascend.simulator.injection import Positions

    class Model(GlmMoeDsaForCausalLM):  # type: ignore[misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.positions = Positions()
            for layer in self.model.layers:
                adapt_layer(layer, self.config, self.positions)

        def forward(self, input_ids: Any, positions: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.positions.current = positions
            return super().forward(input_ids, positions, *args, **kwargs)

    return Model


def main(export: str, plain: str, prompts: str, result: str) -> None:
    """Write log-probabilities [all prompts' tokens but the first of each, vocab]."""
    from vllm import LLM, ModelRegistry, SamplingParams
    from vllm.model_executor.layers.fused_moe.oracle.int8 import Int8MoeBackend
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe_w8a8_int8 as int8,
    )
    from vllm.model_executor.models import registry
    from vllm.plugins import load_general_plugins

    from glm5_ascend.simulator import TARGET_ARCHITECTURE, platform

    load_general_plugins()
    ModelRegistry.register_model(TARGET_ARCHITECTURE, model_class())
    config = Glm5Config.from_dir(Path(plain))
    chosen = (Int8MoeBackend.CPU, experts_class())
    with (
        mock.patch.object(registry, "_run_in_subprocess", lambda function: function()),
        mock.patch.object(int8, "select_int8_moe_backend", return_value=chosen),
        mock.patch.object(platform, "model_config", return_value=config),
    ):
        llm = LLM(
            model=export,
            dtype="float32",
            max_model_len=512,
            max_num_batched_tokens=512,
            max_num_seqs=8,
            max_logprobs=-1,
            skip_tokenizer_init=True,
            enforce_eager=True,
        )
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1)
    inputs: Any = [{"prompt_token_ids": tokens} for tokens in json.loads(prompts)]
    outputs: Any = llm.generate(inputs, params, use_tqdm=False)
    steps = [step for output in outputs for step in output.prompt_logprobs[1:]]
    rows = torch.full((len(steps), len(steps[0])), torch.nan)
    for row, step in zip(rows, steps, strict=True):
        row[list(step)] = torch.tensor([entry.logprob for entry in step.values()])
    torch.save(rows, result)
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)  # tearing the interpreter down takes seconds and tests nothing


if __name__ == "__main__":
    main(*sys.argv[1:])
