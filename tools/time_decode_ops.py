"""Time that the operators take per decode step of a small model inside vLLM, per backend.

``python -m tools.time_decode_ops CHECKPOINT`` starts one engine in this process (CPU, eager, one
thread) and fills its cache with a text (the standard library's argparse, unless --text names
another) by the first backend. It decodes from that same cache with each backend in turn, --rounds
times, and prints the operators' median time per step, their share of the step, tokens per second
from one token to the next, and how the other backends compare with the first. Time is taken around
the public functions of ``glm5_ascend.ops``, so it holds checks, dispatch and glue, as a user has
them. ``--record`` appends rows to ``tools/results/decode_ops.jsonl`` and fills README.md.

``--clock cpu`` counts the processor time of this thread instead of wall time, for a machine that
is not idle; it leaves out what other threads do and adds half a microsecond per call.

``--gguf FILE`` times llama.cpp's ``llama-bench`` on the same model, as its converter writes it,
with as many tokens in the cache and one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from tools import decode_report

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "THP_MEM_ALLOC_ENABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


@dataclass
class Steps:
    """Nanoseconds per decode step of one backend: of operators, of the model, between tokens."""

    operators: list[dict[str, int]] = field(default_factory=list)
    models: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def operator_time(self) -> float:
        """Median of all operators together, in microseconds."""
        return median(sum(step.values()) for step in self.operators) / 1e3

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return 1e9 / median(self.tokens)

    def row(self) -> dict[str, float]:
        """What is recorded of them."""
        return {
            "operators_us": round(self.operator_time, 1),
            "tokens_per_second": round(self.rate, 2),
            "steps": len(self.operators),
        }


class Clock:
    """Times the operators of the running step, and keeps what finished steps took."""

    def __init__(self, kind: str) -> None:
        self.read = CLOCKS[kind]
        self.now: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)
        self.steps = Steps()
        self.last = 0

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its time added to ``name``."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = self.read()
            result = function(*args, **kwargs)
            self.now[name] += self.read() - start
            self.calls[name] += 1
            return result

        return wrapper

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which runs one step; only steps of one token are kept."""

        def wrapper(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self.now.clear()
            self.calls.clear()
            start = self.read()
            result = function(scheduled, *args, **kwargs)
            spent, end = self.read() - start, self.read()
            if scheduled.total_num_scheduled_tokens == 1:
                self.steps.models.append(spent)
                self.steps.operators.append(dict(self.now))
                if self.last:
                    self.steps.tokens.append(end - self.last)
                self.last = end
            return result

        return wrapper

    def count(self, steps: Steps) -> None:
        """Add what comes to ``steps``."""
        self.steps, self.last = steps, 0


def instrument(clock: Clock) -> None:
    """Replace every operator in the simulator's modules by its timed form."""
    from glm5_ascend import ops

    public = {getattr(ops, name): name for name in ops.__all__}
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("glm5_ascend.simulator."):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and value in public:
                setattr(module, attribute, clock.timed(public[value], value))


def start_engine(checkpoint: Path, context: int, steps: int, dtype: str) -> Any:
    """A ``vllm.LLM`` on ``checkpoint`` with room for the prompt and the steps."""
    from glm5_ascend.simulator.__main__ import version_or_cpu_build

    metadata.version = version_or_cpu_build
    from vllm import LLM

    return LLM(
        model=str(checkpoint),
        dtype=dtype,
        max_model_len=context + steps,
        max_num_batched_tokens=512,
        max_num_seqs=1,
        enable_prefix_caching=True,
        disable_log_stats=True,
        seed=0,
        skip_tokenizer_init=True,
    )


def read_prompt(checkpoint: Path, text: Path, count: int) -> list[int]:
    """The first ``count`` tokens of a text file."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokens: list[int] = tokenizer.encode(text.read_text(encoding="utf-8")).ids
    if len(tokens) < count:
        raise SystemExit(f"{text} has {len(tokens)} tokens; give a longer --text or less --context")
    return tokens[:count]


def decode(llm: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """``count`` greedy tokens after ``prompt``, and how far ahead of the second best each is."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=2)
    output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0].outputs[0]
    best = [sorted(step.logprob for step in row.values())[-2:] for row in output.logprobs]
    return list(output.token_ids), [first - second for second, first in best]


def compare(backend: str, tokens: list[int], wanted: list[int], leads: list[float]) -> str:
    """Where ``tokens`` leave ``wanted``; ``leads`` are those of the wanted tokens."""
    for i, (mine, theirs) in enumerate(zip(tokens, wanted, strict=True)):
        if mine != theirs:
            return (
                f"{backend}: token {i} is the first to differ; the best two are "
                f"{leads[i]:.3f} nats apart there"
            )
    return f"{backend}: all {len(wanted)} tokens are the same"


def report(backend: str, clock: Clock) -> None:
    """Print one backend's table."""
    steps = clock.steps
    each = {
        name: median(step.get(name, 0) for step in steps.operators) / 1e3
        for name in steps.operators[-1]
    }
    print(f"{backend}: {len(steps.operators)} steps, load {os.getloadavg()[0]:.2f}")
    for name, spent in sorted(each.items(), key=lambda item: -item[1]):
        print(f"  {name:28}{clock.calls[name]:4} calls{spent:10.1f} us")
    print(
        f"  operators {steps.operator_time:.1f} us of a model step of "
        f"{median(steps.models) / 1e3:.1f} us; {steps.rate:.1f} tokens/s end to end"
    )


def llama_rate(gguf: Path | None, context: int, steps: int) -> float | str:
    """Tokens per second of llama.cpp on one thread, or why there are none."""
    tool = shutil.which("llama-bench")
    if tool is None:
        return "llama-bench is not on PATH"
    if gguf is None:
        return "--gguf names no file for it"
    command = [tool, "-m", str(gguf), "-t", "1", "-p", "0", "-n", str(steps), "-d", str(context)]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        return f"llama-bench cannot run {gguf.name}: {' '.join(lines[:1]) or done.returncode}"
    return float(json.loads(done.stdout)[0]["avg_ts"])


def main() -> None:
    """Parse the command line, time every backend, compare tokens and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--context", type=int, default=4000, help="prompt tokens [4000]")
    parser.add_argument("--steps", type=int, default=33, help="decoded tokens [33]")
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="prompt")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what is counted [wall]")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--backend", action="append", help="repeatable [reference, cpu]")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each backend [3]")
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp's llama-bench")
    parser.add_argument("--record", action="store_true", help="keep the rows, fill README.md")
    options = parser.parse_args()
    if not (options.checkpoint / "config.json").is_file():
        parser.error(f"{options.checkpoint} is no checkpoint: it has no config.json")
    backends = options.backend or ["reference", "cpu"]
    os.environ.update(ENVIRONMENT)
    os.environ["GLM5_ASCEND_OP_BACKEND"] = backends[0]

    llm = start_engine(options.checkpoint, options.context, options.steps, options.dtype)
    clock = Clock(options.clock)
    instrument(clock)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.execute_model = clock.step(runner.execute_model)
    prompt = read_prompt(options.checkpoint, options.text, options.context)
    decode(llm, prompt, 2)
    spent = {backend: Steps() for backend in backends}
    outputs = {}
    for turn in range(options.rounds):
        for backend, steps in spent.items():
            os.environ["GLM5_ASCEND_OP_BACKEND"] = backend
            clock.count(steps)
            outputs[backend] = decode(llm, prompt, options.steps)
            if turn == options.rounds - 1:
                report(backend, clock)
    first = backends[0]
    same = {name: compare(name, tokens, *outputs[first]) for name, (tokens, _) in outputs.items()}
    for backend in backends[1:]:
        time_of, gain = (
            spent[backend].operator_time / spent[first].operator_time,
            spent[backend].rate / spent[first].rate,
        )
        print(f"{backend} / {first}: operators {time_of:.3f} of the time, {gain:.2f}x the tokens/s")
        print(same[backend])
    llama = llama_rate(options.gguf, options.context, options.steps)
    print(f"llama.cpp: {llama if isinstance(llama, str) else f'{llama:.1f} tokens/s'}")
    if options.record:
        common = {
            "checkpoint": options.checkpoint.name,
            "context": options.context,
            "dtype": options.dtype,
            "clock": options.clock,
            "llama_cpp": llama,
        }
        rows = [
            {**common, "backend": backend, "same": same[backend], **steps.row()}
            for backend, steps in spent.items()
        ]
        words = [Path(word).name if Path(word).exists() else word for word in sys.argv[1:]]
        decode_report.record(["python", "-m", "tools.time_decode_ops", *words], rows)


if __name__ == "__main__":
    main()
