"""From settings of a deployment and a workload to a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.deploy.memory import Settings, bill
from glm5_ascend.deploy.memory.cache import token_bytes
from glm5_ascend.deploy.performance.engine import Engine, Limits, Traffic
from glm5_ascend.deploy.performance.parameters import HOST_GBS, Parameters
from glm5_ascend.deploy.performance.simulate import Load, Run, simulate
from glm5_ascend.deploy.performance.step import StepModel
from glm5_ascend.deploy.performance.work import work_of


@dataclass(frozen=True, slots=True)
class Deployment:
    """One group of instances, or prefill and decode groups.

    Attributes:
        first: mixed or prefill settings.
        second: decode settings, or None.
        index_every: IndexCache's period; 1 where each indexer computes.
    """

    first: Settings
    second: Settings | None = None
    index_every: int = 1

    def models(self, parameters: Parameters) -> list[StepModel]:
        """The step model of each group."""
        groups = [self.first] if self.second is None else [self.first, self.second]
        return [
            StepModel(
                work_of(group, self.index_every),
                parameters,
                group.graph,
                group.captured,
            )
            for group in groups
        ]

    @property
    def dies(self) -> int:
        """Dies of all groups."""
        return self.first.group.dies + (self.second.group.dies if self.second else 0)


def transfer_seconds(deployment: Deployment, prompt: int, parameters: Parameters) -> float:
    """Seconds to move a prompt's cache: each decode rank pulls a copy over its own link."""
    if deployment.second is None:
        return 0.0
    moved = prompt * float(token_bytes(deployment.second))
    return moved / (deployment.second.sku.inter.gbs * 1e9 * parameters.link)


def pool_seconds(settings: Settings, tokens: float, parameters: Parameters) -> float:
    """Seconds in which every die reads ``tokens`` cached tokens from a pool in the hosts' memory.

    Latents are not split over TP: a die reads those of every prompt whose heads it computes.
    """
    host = HOST_GBS[settings.sku.chip]
    return tokens * float(token_bytes(settings)) / (host * 1e9 * parameters.link)


def run(deployment: Deployment, traffic: Traffic, load: Load, parameters: Parameters) -> Run | None:
    """Simulate ``load``; None where an instance holds no request."""
    models = deployment.models(parameters)
    groups = [deployment.first, deployment.second]
    made: list[list[Engine]] = [[], []]
    for number, model in enumerate(models):
        settings = groups[number]
        if settings is None:
            continue
        cache = float(bill(settings).blocks * settings.block)
        limits = Limits(settings.max_num_seqs, settings.max_num_batched_tokens, cache)
        made[number] = [
            Engine(model, limits, traffic, settings.role) for _ in range(settings.group.copies)
        ]
    seconds = transfer_seconds(deployment, traffic.prompt, parameters)
    return simulate(made[0], made[1], load, seconds)
