"""A vLLM engine in a process of its own, driven by JSON lines on stdin (see engine.py)."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

from glm5_ascend.simulator.__main__ import version_or_cpu_build

# Spawned workers of vLLM import this file again, as __mp_main__.
if __name__ in ("__main__", "__mp_main__"):
    metadata.version = version_or_cpu_build


class Session:
    """One engine and what the tests may ask of it; results are JSON or files of tensors."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**options)

    @property
    def runner(self) -> Any:
        """vLLM's model runner; in this process unless the engine is parallel."""
        return self.llm.llm_engine.model_executor.driver_worker.worker.model_runner

    def generate(
        self,
        prompts: list[list[int]],
        count: int,
        together: bool,
        transfer: list[dict[str, str]],
    ) -> list[Any]:
        """Greedy tokens, their log-probabilities, and how many prompt tokens were cached.

        ``transfer`` has the ``kv_transfer_params`` of each prompt, or is empty.
        """
        from vllm import SamplingParams

        extra = [{"kv_transfer_params": one} for one in transfer] or [None] * len(prompts)
        inputs: list[tuple[Any, SamplingParams]] = [
            (
                {"prompt_token_ids": prompt},
                SamplingParams(
                    temperature=0, max_tokens=count, ignore_eos=True, logprobs=0, extra_args=more
                ),
            )
            for prompt, more in zip(prompts, extra, strict=True)
        ]
        outputs = [
            output
            for batch in ([inputs] if together else [[one] for one in inputs])
            for output in self.llm.generate(
                [prompt for prompt, _ in batch], [params for _, params in batch], use_tqdm=False
            )
        ]
        return [
            {
                "tokens": list(o.outputs[0].token_ids),
                "logprobs": [next(iter(step.values())).logprob for step in o.outputs[0].logprobs],
                "cached": o.num_cached_tokens,
            }
            for o in outputs
        ]

    def score(self, tokens: list[int], path: str, codes: str) -> None:
        """Write log-probabilities [len(tokens) - 1, vocab] that each position gives the next.

        ``codes``, if not empty, is another file, for the activation codes of the pass.
        """
        import torch
        from safetensors.torch import save_file
        from vllm import SamplingParams

        from tests.simulator.activation_codes import recording

        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1)
        prompt: Any = {"prompt_token_ids": tokens}
        recorder: AbstractContextManager[Any] = nullcontext()
        if codes:
            recorder = recording(self.runner.model, len(tokens))
        with recorder as seen:
            output = self.llm.generate([prompt], params, use_tqdm=False)[0]
        if codes:
            save_file({f"{name}.codes": rows for name, rows in seen.codes.items()}, codes)
        steps = output.prompt_logprobs[1:]
        rows = torch.full((len(steps), len(steps[0])), torch.nan)
        for row, step in zip(rows, steps, strict=True):
            row[list(step)] = torch.tensor([entry.logprob for entry in step.values()])
        torch.save(rows, path)

    def drafts(self, tokens: list[int], path: str, codes: str = "") -> list[int]:
        """Write the draft's logits [steps, vocab] after ``tokens`` and the first sampled one.

        ``codes`` is another file, for the activation codes of the passes that lead there; the
        prompt is one chunk then.
        """
        import torch
        from safetensors.torch import save_file
        from vllm import SamplingParams

        from tests.simulator.activation_codes import recording

        model = self.runner.drafter.model
        steps = self.runner.speculative_config.num_speculative_tokens
        seen: list[Any] = []
        stock = model.compute_logits
        recorder: AbstractContextManager[Any] = nullcontext()
        if codes:
            recorder = recording(self.runner.model, len(tokens) + steps, model)

        def recorded(hidden: Any, *args: Any) -> Any:
            seen.append(stock(hidden, *args))
            if codes:
                noted.done = len(seen) >= steps
            return seen[-1]

        model.compute_logits = recorded
        try:
            params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
            prompt: Any = {"prompt_token_ids": tokens}
            with recorder as noted:
                output = self.llm.generate([prompt], params, use_tqdm=False)[0]
        finally:
            model.compute_logits = stock
        if codes:
            save_file({f"{name}.codes": rows for name, rows in noted.codes.items()}, codes)
        # The passes over chunks of the prompt draft too; the last one has seen all of it.
        computed = len(tokens) - output.num_cached_tokens
        chunks = -(-computed // self.runner.scheduler_config.max_num_batched_tokens)
        last = seen[(chunks - 1) * steps : chunks * steps]
        torch.save(torch.cat([logits[:1] for logits in last]), path)
        return list(output.outputs[0].token_ids)

    def inject(self, path: str) -> None:
        """Follow the choices in this file from now on; an empty path ends it."""
        os.environ["GLM5_ASCEND_INJECT"] = path

    def reload(self, directory: str, draft: bool) -> str:
        """Load another checkpoint's tensors into the running model; the error's text or ''."""
        from safetensors.torch import load_file

        from glm5_ascend.errors import Glm5Error

        files = sorted(Path(directory).glob("*.safetensors"))
        weights = ((name, t) for file in files for name, t in load_file(file).items())
        model = self.runner.drafter.model if draft else self.runner.model
        try:
            model.load_weights(weights)
        except Glm5Error as error:
            return error.message
        return ""

    def facts(self) -> dict[str, Any]:
        """Which of our parts the engine runs on."""
        from vllm.platforms import current_platform

        cache = self.llm.llm_engine.vllm_config.cache_config
        quantisation = self.llm.llm_engine.vllm_config.model_config.quantization
        return {
            "platform": type(current_platform).__name__,
            "block_size": cache.block_size,
            "kv_bytes": cache.kv_cache_memory_bytes,
            "quantization": quantisation,
        }


def main() -> None:
    """Answer one JSON line per request; vLLM's own output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(json.loads(sys.argv[1]))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(session, name)(**arguments)), file=answers, flush=True)
    session.llm.llm_engine.engine_core.shutdown()
    os._exit(0)  # tearing the interpreter down takes seconds and tests nothing


if __name__ == "__main__":
    main()
