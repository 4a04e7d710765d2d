"""Client of an engine process; the engine lives as long as the test session needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

_ROOT = Path(__file__).parents[2]
# One process, one thread, no network, and no log of what vLLM does.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 32,  # less than a prompt: prefill in chunks
    "max_num_seqs": 8,
    "enable_prefix_caching": True,
    "disable_log_stats": True,
    "max_logprobs": -1,
    "seed": 0,
    "skip_tokenizer_init": True,
}


@dataclass
class Output:
    """Greedy ``tokens`` with their ``logprobs``; ``cached`` counts reused prompt tokens."""

    tokens: list[int]
    logprobs: list[float]
    cached: int | None


class Engine:
    """One engine process serving ``checkpoint``; ``options`` are those of ``vllm.LLM``."""

    def __init__(
        self, checkpoint: Path, log: Path, *, env: dict[str, str] | None = None, **options: Any
    ) -> None:
        self.log = log
        chosen = _DEFAULTS | {"model": str(checkpoint)} | options
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.simulator.engine_worker", json.dumps(chosen)],
                cwd=_ROOT,
                env=os.environ | _ENVIRONMENT | (env or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._started = False

    def ask(self, name: str, **arguments: Any) -> Any:
        """Call a method of the worker's session."""
        if not self._started:
            self._answer()
            self._started = True
        requests: IO[str] = self._pipe(self.process.stdin)
        requests.write(json.dumps([name, arguments]) + "\n")
        requests.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._pipe(self.process.stdout).readline()
        if not line:
            tail = self.log.read_text()[-4000:]
            raise AssertionError(f"the engine ended with {self.process.wait()}:\n{tail}")
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def generate(
        self,
        prompts: list[list[int]],
        count: int = 16,
        *,
        together: bool = False,
        transfer: list[dict[str, str]] | None = None,
    ) -> list[Output]:
        """Greedy continuations, one request after the other or all at once.

        ``transfer``: ``kv_transfer_params`` of each prompt.
        """
        answers = self.ask(
            "generate", prompts=prompts, count=count, together=together, transfer=transfer or []
        )
        return [Output(**answer) for answer in answers]

    def score(self, tokens: list[int], path: Path, codes: Path | None = None) -> torch.Tensor:
        """Log-probabilities [len(tokens) - 1, vocab] of a teacher-forced pass.

        ``codes`` is where to write the activation codes of the pass.
        """
        self.ask("score", tokens=tokens, path=str(path), codes=str(codes or ""))
        rows: torch.Tensor = torch.load(path)
        return rows

    def close(self) -> None:
        """End the process."""
        self._pipe(self.process.stdin).close()
        self._pipe(self.process.stdout).close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
