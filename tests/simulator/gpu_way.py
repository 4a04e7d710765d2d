"""An engine that takes the way of a GPU on this CPU: vLLM's own layers, int4 experts as int8.

``python -m tests.simulator.gpu_way CHECKPOINT PROMPTS OUT`` reads token lists from a JSON file and
saves, for the CPU's way and then a GPU's, ``rows`` (log-probabilities [tokens - 1, vocab] of every
prompt) and ``kinds`` (classes that compute linear layers and experts).
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from glm5_ascend.simulator.__main__ import version_or_cpu_build
from tests.simulator.engine import _DEFAULTS


def take_the_way_of_a_gpu() -> None:
    """Switch what the device decides, all but the Triton kernels and cuBLASLt."""
    from glm5_ascend.simulator import kernels
    from glm5_ascend.simulator.quant_moe import QuantisedExperts

    loaded = QuantisedExperts.process_weights_after_loading

    def unpacked(self: Any, layer: Any) -> None:
        loaded(self, layer)
        if self.scheme == "w4a8":
            self.unpack(layer)

    kernels.on_cpu = lambda: False
    QuantisedExperts.process_weights_after_loading = unpacked  # type: ignore[method-assign]


def asked(checkpoint: str, prompts: list[list[int]]) -> dict[str, Any]:
    """What one engine says; it is gone afterwards."""
    import torch
    from vllm import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1)
    llm = LLM(model=checkpoint, quantization="ascend", **_DEFAULTS)
    every = []
    for prompt in prompts:
        given: Any = {"prompt_token_ids": prompt}
        steps = llm.generate([given], params, use_tqdm=False)[0].prompt_logprobs[1:]
        rows = torch.full((len(steps), len(steps[0])), torch.nan)
        for row, step in zip(rows, steps, strict=True):
            row[list(step)] = torch.tensor([entry.logprob for entry in step.values()])
        every.append(rows)
    model: Any = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    methods = [m.quant_method for m in model.modules() if hasattr(m, "quant_method")]
    return {"rows": every, "kinds": sorted({type(method).__name__ for method in methods})}


def main(checkpoint: str, prompts: list[list[int]], out: str) -> None:
    """See above."""
    import torch

    found = [asked(checkpoint, prompts)]
    gc.collect()  # the first engine's groups of processes must not outlive it
    take_the_way_of_a_gpu()
    torch.save([*found, asked(checkpoint, prompts)], out)


if __name__ in ("__main__", "__mp_main__"):
    metadata.version = version_or_cpu_build

if __name__ == "__main__":
    os.dup2(2, 1)
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3])
