"""Time that the operators take per decode step of a small model inside vLLM, per backend.

``python -m tools.time_decode_ops CHECKPOINT`` starts one engine in this process (CPU, eager, one
thread), fills the cache with a prompt of random tokens, then decodes with each backend from that
same cache and prints the operators' median time per step, their share of the step and the ratio
between the backends. Time is wall time inside the public functions of ``glm5_ascend.ops``, so it
holds checks, dispatch and glue, as a user has them.
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


class Clock:
    """Nanoseconds per operator of the running step, and those of all finished steps."""

    def __init__(self) -> None:
        self.now: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)
        self.steps: list[dict[str, int]] = []
        self.walls: list[int] = []

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its time added to ``name``."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            result = function(*args, **kwargs)
            self.now[name] += time.perf_counter_ns() - start
            self.calls[name] += 1
            return result

        return wrapper

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which runs one step; only steps of one token are kept."""

        def wrapper(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self.now.clear()
            self.calls.clear()
            start = time.perf_counter_ns()
            result = function(scheduled, *args, **kwargs)
            if scheduled.total_num_scheduled_tokens == 1:
                self.walls.append(time.perf_counter_ns() - start)
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


def start_engine(checkpoint: Path, context: int, steps: int) -> Any:
    """A ``vllm.LLM`` on ``checkpoint`` with room for the prompt and the steps."""
    from glm5_ascend.simulator.__main__ import version_or_cpu_build

    metadata.version = version_or_cpu_build
    from vllm import LLM

    return LLM(
        model=str(checkpoint),
        dtype="bfloat16",
        max_model_len=context + steps,
        max_num_batched_tokens=512,
        max_num_seqs=1,
        enable_prefix_caching=True,
        disable_log_stats=True,
        seed=0,
        skip_tokenizer_init=True,
    )


def decode(llm: Any, prompt: list[int], count: int) -> list[int]:
    """``count`` greedy tokens after ``prompt``."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return list(outputs[0].outputs[0].token_ids)


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
    parser.add_argument("--backend", action="append", help="repeatable [reference, cpu]")
    options = parser.parse_args()
    backends = options.backend or ["reference", "cpu"]
    os.environ.update(ENVIRONMENT)
    os.environ["GLM5_ASCEND_OP_BACKEND"] = backends[-1]

    import torch

    llm = start_engine(options.checkpoint, options.context, options.steps)
    clock = Clock()
    instrument(clock)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.execute_model = clock.step(runner.execute_model)
    torch.manual_seed(0)
    prompt = torch.randint(0, 2000, (options.context,)).tolist()
    decode(llm, prompt, 2)
    spent, tokens = [], []
    for backend in backends:
        os.environ["GLM5_ASCEND_OP_BACKEND"] = backend
        clock.reset()
        tokens.append(decode(llm, prompt, options.steps))
        spent.append(report(backend, clock))
    for backend, mine, time_of in zip(backends[1:], tokens[1:], spent[1:], strict=True):
        same = sum(a == b for a, b in zip(mine, tokens[0], strict=True))
        print(
            f"{backend} / {backends[0]} = {time_of / spent[0]:.3f}; "
            f"{same} of {len(mine)} tokens are the same"
        )


if __name__ == "__main__":
    main()
