"""Steady-state times of many candidates at once, for every number of sequences tried.

Closed forms in place of the simulation: a decode step's time is that at mid output, prefills of a
mixed instance stop the decodes of all its ranks, and a queue in front of prefill follows M/D/1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glm5_ascend.deploy.performance.parameters import Parameters
from glm5_ascend.deploy.performance.step import StepModel
from glm5_ascend.deploy.performance.work import stack, work_of
from glm5_ascend.deploy.planner.candidates import SEQUENCES, Candidate
from glm5_ascend.deploy.planner.targets import Targets

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Arrays over (candidate, number of sequences).

    Attributes:
        step: seconds of a decode step.
        fill: seconds of computing one prompt's fresh tokens, alone in its rank.
        tpot: seconds per token without any prefill in between.
        sequences: per rank.
        evaluations: steps that were evaluated.
    """

    step: Array
    fill: Array
    tpot: Array
    sequences: Array
    evaluations: int


def times(
    targets: Targets, found: Sequence[Candidate], parameters: Parameters, index_every: int
) -> Times:
    """Times of candidates of one role."""
    role = found[0].settings.role
    works = [work_of(candidate.settings, index_every) for candidate in found]
    repeat = len(SEQUENCES)
    work = stack([work for work in works for _ in range(repeat)])
    seqs = np.tile(np.array(SEQUENCES, dtype=float), len(found))
    model = StepModel(work, parameters, graph=role != "prefill")
    none = np.zeros_like(seqs)
    context = np.full_like(seqs, targets.prompt + targets.output / 2)
    shape = (len(found), repeat)
    step = sum(model.uniform(seqs, context, none, none).values()) if role != "prefill" else none
    batch = np.array([c.settings.max_num_batched_tokens for c in found], dtype=float)
    batch = np.repeat(batch, repeat)
    room = batch if role == "prefill" else np.maximum(batch - seqs * (1 + work.drafts), 1)
    fill = none
    if role != "decode":
        # A prompt's last chunk is partly empty; other prompts share it under load.
        chunk = np.minimum(room, targets.fresh)
        cached = targets.prompt - targets.fresh
        keys = np.full_like(seqs, cached + targets.fresh / 2)
        beside = none if role == "prefill" else seqs
        full = sum(model.uniform(beside, context, chunk, keys).values())
        fill = full * np.maximum(targets.fresh / chunk, 1)
    accepted = np.array([targets.accepted_with(c.settings.draft_tokens) for c in found])
    step_array = np.asarray(step, dtype=float).reshape(shape)
    return Times(
        step=step_array,
        fill=np.asarray(fill, dtype=float).reshape(shape),
        tpot=step_array / accepted[:, None],
        sequences=seqs.reshape(shape),
        evaluations=seqs.size,
    )
