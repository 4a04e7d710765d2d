"""What the user wants served, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from glm5_ascend.deploy.catalogue import Hardware, Model
from glm5_ascend.engine_releases import Release

# Drafts for which an acceptance length is given; others follow from one chance per draft.
REFERENCE_DRAFTS = 3
DEFAULT_ACCEPTED = 2.8


@dataclass(frozen=True, slots=True)
class Targets:
    """A workload and its limits.

    Attributes:
        prompt, output: tokens per request.
        prefix: share of a prompt that the prefilling rank has in its cache.
        shared: share of a prompt whose blocks a decoding rank's requests share.
        concurrency: requests at once; None where ``rate`` is given.
        rate: requests per second; None where ``concurrency`` is given.
        tpot, ttft: limits on the means, seconds.
        accepted: tokens per step with three drafts.
    """

    model: Model
    hardware: Hardware
    quant: str
    release: Release
    prompt: int
    output: int
    prefix: float
    shared: float
    concurrency: int | None
    rate: float | None
    tpot: float
    ttft: float
    accepted: float = DEFAULT_ACCEPTED

    @property
    def length(self) -> int:
        """Tokens of the longest request, in whole kibi."""
        tokens = -(-(self.prompt + self.output) // 1024) * 1024
        return min(tokens, self.model.positions)

    @property
    def fresh(self) -> int:
        """Prompt tokens that are computed."""
        return max(self.prompt - round(self.prompt * self.prefix), 1)

    def accepted_with(self, drafts: int) -> float:
        """Tokens per step: each draft is accepted with one chance until the first miss."""
        chance = _chance(self.accepted)
        return sum(chance**i for i in range(drafts + 1))


@cache
def _chance(accepted: float) -> float:
    """Chance of one draft that gives ``accepted`` tokens per step with three."""
    low, high = 0.0, 1.0
    for _ in range(40):
        chance = (low + high) / 2
        mean = sum(chance**i for i in range(REFERENCE_DRAFTS + 1))
        low, high = (chance, high) if mean < accepted else (low, chance)
    return low
