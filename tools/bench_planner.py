"""How fast the planner is: evaluations a second in closed form, and a whole command from cold.

    python -m tools.bench_planner [--seconds 2]

An evaluation is the step and prefill times of one layout at one number of sequences per rank. The
command is a fresh process for four servers, with the simulation of the best layouts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from glm5_ascend.deploy.catalogue import hardware, model
from glm5_ascend.deploy.performance.parameters import fitted
from glm5_ascend.deploy.planner.analytic import times
from glm5_ascend.deploy.planner.candidates import Candidate, Choices, candidates
from glm5_ascend.deploy.planner.targets import Targets
from glm5_ascend.engine_releases import find_release

_HARDWARE, _PROMPT, _OUTPUT, _CONCURRENCY = "a3-752t:4", 65536, 1024, 128
_ROLES = ("mixed", "prefill", "decode")


def rate(seconds: float) -> tuple[float, int]:
    """Evaluations per second over at least ``seconds``, and layouts per round."""
    targets = Targets(
        model=model("glm-5.2"),
        hardware=hardware(_HARDWARE),
        quant="w8a8",
        release=find_release("0.30"),
        prompt=_PROMPT,
        output=_OUTPUT,
        prefix=0.9,
        shared=0.9,
        concurrency=_CONCURRENCY,
        rate=None,
        tpot=0.05,
        ttft=5.0,
    )
    every = candidates(targets, Choices(("bf16", "li-c8", "sfa-c8", "both"), (0, 1, 2, 3, 5)))
    by_role: dict[str, list[Candidate]] = {role: [] for role in _ROLES}
    for candidate in every:
        by_role[candidate.settings.role].append(candidate)
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for found in by_role.values():
            done += times(targets, found, fitted(), 1).evaluations
    return done / (time.perf_counter() - started), len(every)


def command() -> float:
    """Seconds of a whole ``glm5-ascend plan`` in a fresh process."""
    words = ["plan", "--model", "glm-5.2", "--hw", _HARDWARE, "--isl", str(_PROMPT)]
    words += ["--osl", str(_OUTPUT), "--prefix", "0.9", "--concurrency", str(_CONCURRENCY)]
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "glm5_ascend", *words], check=True, capture_output=True)
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of repeated evaluation")
    options = parser.parse_args(arguments)
    speed, layouts = rate(options.seconds)
    print(f"{speed:,.0f} evaluations/s in closed form ({layouts:,} roles in a round)")
    print(f"{command():.1f} s for a whole plan of {_HARDWARE} in a fresh process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
