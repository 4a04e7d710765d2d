"""Effects published as a ratio of two runs, and the model's ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from glm5_ascend.deploy.catalogue import model, skus
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory import Settings
from glm5_ascend.deploy.performance.engine import Traffic
from glm5_ascend.deploy.performance.measured import measurements
from glm5_ascend.deploy.performance.parameters import Parameters
from glm5_ascend.deploy.performance.scenario import Deployment, pool_seconds, run
from glm5_ascend.deploy.performance.simulate import Load, Run
from glm5_ascend.deploy.performance.step import StepModel
from glm5_ascend.deploy.performance.work import work_of

Ratio = Callable[[Parameters], float]


@dataclass(frozen=True, slots=True)
class Effect:
    """A published ratio (after over before) and a function that gives the model's."""

    name: str
    published: float
    source: str
    ratio: Ratio


# Published as well, and not modelled.
NOT_MODELLED = {
    "balance scheduling, +18 %": "a scheduler's choice of ranks; the model queues at the shortest",
    "MLAPO, +19 %": "before it the run was short of memory, which no step time describes",
    "shared expert on a second stream, EPLB, mix placement, DyntraLB": "1 to 7 %, below the model's"
    " own error",
    "sharded context parallel, compact KV gather": "the code before the change is not described",
}


def _index_cache(concurrency: int, pick: Callable[[Run], float]) -> Ratio:
    """GLM-5 W8A8 on 16 dies, 20480 in and 100 out, selecting in one of four layers over in all."""

    def ratio(parameters: Parameters) -> float:
        settings = Settings(
            model("glm-5"),
            skus()["a3-752t"],
            Group(1, 16),
            draft_tokens=0,
            max_num_seqs=8,
            utilisation=0.95,
        )
        traffic = Traffic(20480, 100, 0, 0, 1.0)
        load = Load(8 * concurrency, concurrency)
        after = run(Deployment(settings, None, 4), traffic, load, parameters)
        before = run(Deployment(settings, None, 1), traffic, load, parameters)
        if after is None or before is None:
            raise ValueError("GLM-5 W8A8 fits on 16 dies")
        return pick(after) / pick(before)

    return ratio


def _drafts(parameters: Parameters) -> float:
    """V3.2 decode node DP8 TP4 at 64K: TPOT with three drafts at 2.4 tokens a step over none."""
    settings = Settings(model("deepseek-v3.2"), skus()["a3-752t"], Group(8, 4), role="decode")
    ranks = settings.group.dp
    seqs, context, none = np.full(ranks, 2.0), np.full(ranks, 65536.0), np.zeros(ranks)
    steps = [
        StepModel(work_of(replace(settings, draft_tokens=count)), parameters).seconds(
            seqs, context, none, none
        )
        for count in (3, 0)
    ]
    return steps[0] / 2.4 / steps[1]


def _prefix(share: float) -> Ratio:
    """R1 prefill on 32 dies, two prompts of 4096 a die: prompts per second, cached over fresh.

    A service: routing is uneven and layers are launched one by one. Attention is split over heads
    on all 32 dies (SP-TP-SP of 32), so each reads the latents of every cached token from the pool.
    """

    def ratio(parameters: Parameters) -> float:
        settings = Settings(model("deepseek-r1"), skus()["cm384"], Group(32, 1), draft_tokens=0)
        service = StepModel(work_of(settings), parameters, graph=False, overlap=True)
        none = np.zeros(32)

        def seconds(cached: float) -> float:
            fresh = 4096 * (1 - cached)
            chunk, keys = np.full(32, 2 * fresh), np.full(32, 4096 - fresh / 2)
            read = pool_seconds(settings, 32 * 2 * 4096 * cached, parameters)
            return service.seconds(none, none, chunk, keys) + read

        return seconds(0.0) / seconds(share)

    return ratio


def _offload(hits: float) -> Ratio:
    """GLM-5.2 decode at 64K on 32 dies: a step of four sequences a die, latents on the host, over
    one of two, latents on the die."""

    def ratio(parameters: Parameters) -> float:
        settings = Settings(model("glm-5.2"), skus()["a3-752t"], Group(32, 1), role="decode")
        none, context = np.zeros(32), np.full(32, 65536.0)
        steps = [
            StepModel(work_of(settings), parameters, kernels=True, hits=found).seconds(
                np.full(32, seqs), context, none, none
            )
            for seqs, found in ((4.0, hits), (2.0, 1.0))
        ]
        return steps[0] / steps[1]

    return ratio


def _cached(parameters: Parameters) -> float:
    """R1 on 16 dies under vLLM: rows X04 and X03, prompts per second with a prefix and without."""
    rates = [measurements()[name].predict(parameters)["tokens_per_s"] for name in ("X04", "X03")]
    return rates[0] / rates[1]


def _overlap(parameters: Parameters) -> float:
    """R1 prefill of 64 prompts of 4096 over 32 dies: time with two micro-batches over without."""
    settings = Settings(model("deepseek-r1"), skus()["a3-752t"], Group(32, 1), draft_tokens=0)
    none, chunk, keys = np.zeros(32), np.full(32, 8192.0), np.full(32, 2048.0)
    times = [
        StepModel(work_of(settings), parameters, kernels=True, overlap=overlap).seconds(
            none, none, chunk, keys
        )
        for overlap in (True, False)
    ]
    return times[0] / times[1]


_OFFLOAD = "cann-recipes-infer, GLM-5.2 offload guide"
_CI = "vllm-ascend CI, Prefix-Cache-DeepSeek-R1"
EFFECTS = (
    Effect(
        "IndexCache, TTFT of one request",
        8923 / 10757,
        "vllm-ascend PR #8398",
        _index_cache(1, lambda found: found.ttft),
    ),
    Effect(
        "IndexCache, TPOT of one request",
        52.9 / 57.5,
        "vllm-ascend PR #8398",
        _index_cache(1, lambda found: found.tpot),
    ),
    Effect(
        "IndexCache, TTFT of three at once",
        11149 / 13092,
        "vllm-ascend PR #8398",
        _index_cache(3, lambda found: found.ttft),
    ),
    Effect(
        "IndexCache, TPOT of three at once",
        210.5 / 247.6,
        "vllm-ascend PR #8398",
        _index_cache(3, lambda found: found.tpot),
    ),
    Effect("three drafts, TPOT", 23.36 / 41.67, "vllm-ascend PR #4805", _drafts),
    Effect("two micro-batches, prefill time", 2512 / 3128, "cann-recipes-infer", _overlap),
    Effect("prefix of 50 % in a pool, prompts/s", 1.42, "arXiv 2506.12708", _prefix(0.5)),
    Effect("prefix of 90 % in a pool, prompts/s", 2.28, "arXiv 2506.12708", _prefix(0.9)),
    Effect("KV offload, 8K tokens on the die: step", 100.55 / 71.21, _OFFLOAD, _offload(0.85)),
    Effect("KV offload, 16K tokens on the die: step", 92.03 / 71.21, _OFFLOAD, _offload(0.9)),
    Effect("prefix of 75 % on the die, prompts/s", 8.6154 / 3.4877, _CI, _cached),
)
