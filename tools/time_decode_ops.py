"""Time that the operators take per decode step of a small model inside vLLM, per backend.

``python -m tools.time_decode_ops CHECKPOINT`` starts one engine in this process (CPU, eager, one
thread) and fills its cache with a text (the standard library's argparse, unless --text names
another) by the first backend. It decodes with each backend from that same cache and prints the
operators' median time per step, their share of the step, and how the other backends compare with
the first in time and tokens. Time is taken around the public functions of ``glm5_ascend.ops``, so
it holds checks, dispatch and glue, as a user has them.

``--clock cpu`` counts the processor time of this thread instead of wall time, for a machine that
is not idle; it leaves out what other threads do and adds half a microsecond per call.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


class Clock:
    """Nanoseconds per operator of the running step, and those of all finished steps."""

    def __init__(self, kind: str) -> None:
        self.read = CLOCKS[kind]
        self.now: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)
        self.steps: list[dict[str, int]] = []
        self.walls: list[int] = []

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
            if scheduled.total_num_scheduled_tokens == 1:
                self.walls.append(self.read() - start)
                self.steps.append(dict(self.now))
            return result

        return wrapper

    def reset(self) -> None:
        """Forget the finished steps."""
        self.steps.clear()
        self.walls.clear()


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


def report(backend: str, clock: Clock) -> float:
    """Print one backend's table; the operators' median time per step in microseconds."""
    totals = [sum(step.values()) / 1e3 for step in clock.steps]
    wall = median(clock.walls) / 1e3
    each = {
        name: median(step.get(name, 0) / 1e3 for step in clock.steps) for name in clock.steps[-1]
    }
    print(f"{backend}: {len(totals)} steps, load {os.getloadavg()[0]:.2f}")
    for name, spent in sorted(each.items(), key=lambda item: -item[1]):
        print(f"  {name:28}{clock.calls[name]:4} calls{spent:10.1f} us")
    print(f"  operators {median(totals):.1f} us of a model step of {wall:.1f} us")
    return median(totals)


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
    options = parser.parse_args()
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
    spent, outputs = [], []
    for backend in backends:
        os.environ["GLM5_ASCEND_OP_BACKEND"] = backend
        clock.reset()
        outputs.append(decode(llm, prompt, options.steps))
        spent.append(report(backend, clock))
    for backend, (tokens, _), time_of in zip(backends[1:], outputs[1:], spent[1:], strict=True):
        print(f"{backend} / {backends[0]} = {time_of / spent[0]:.3f}")
        print(compare(backend, tokens, *outputs[0]))


if __name__ == "__main__":
    main()
