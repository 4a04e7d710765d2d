"""Stages of the training run and the learning-rate schedule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A run of equal steps. ``kind``: dense, warmup (indexers only), sparse, joint or adapt.

    Joint steps alternate: dense attention with the indexer loss reaching the trunk, so that the
    layers below an indexer learn what it needs, then sparse attention. Adapt steps do both at
    once: sparse attention, and the indexers follow what the attention would be without the mask,
    which a loss on the selected keys alone cannot teach.
    """

    kind: str
    steps: int
    rows: int
    length: int
    mtp: bool
    indexers: tuple[int, ...] = (0, 1, 2, 6, 7)  # indexers trained (warmup and sparse only)
    lr: float | None = None  # rate factor at the start of the phase; None: global schedule
    lr_end: float = 0.0  # rate factor at its end, reached linearly
    last_weight: float = 1.0  # weight of the last sharing layer in the indexer target


PHASES: tuple[Phase, ...] = (
    Phase("dense", 1700, 16, 256, False),
    Phase("dense", 400, 16, 256, True),
    Phase("dense", 300, 8, 512, True),
    Phase("dense", 100, 4, 1024, True),
    Phase("warmup", 120, 8, 512, True),
    Phase("sparse", 57, 8, 512, True),
    Phase("warmup", 392, 8, 512, False, (2,)),
    Phase("warmup", 200, 8, 512, False, (2,), last_weight=4.0),
    Phase("sparse", 100, 8, 512, True, (), lr=0.15),
    Phase("warmup", 140, 8, 512, False, (2,), lr=0.5, last_weight=4.0),
    Phase("sparse", 110, 8, 512, True, (), lr=0.12),
    Phase("joint", 720, 8, 512, True, lr=0.4, lr_end=0.194, last_weight=3.0),
    Phase("adapt", 850, 8, 512, True, lr=0.3, last_weight=2.0),
)
HORIZON = 2770  # main steps over which the global rate decays
SMOKE: tuple[Phase, ...] = (
    Phase("dense", 3, 4, 128, False),
    Phase("dense", 2, 2, 256, True),
    Phase("warmup", 3, 2, 256, True),
    Phase("sparse", 3, 2, 256, True),
    Phase("joint", 4, 2, 256, True, (2,), lr=0.3, last_weight=2.0),
    Phase("adapt", 2, 2, 256, True, lr=0.3),
)


def locate(phases: tuple[Phase, ...], step: int) -> tuple[Phase, float, float]:
    """Return (phase, progress of the global schedule, progress within the phase)."""
    main = 0
    for p in phases:
        if step < p.steps:
            done = main + (step if p.kind != "warmup" else 0)
            return p, done / HORIZON, step / p.steps
        step -= p.steps
        main += p.steps if p.kind != "warmup" else 0
    raise IndexError("step beyond the last phase")


def rate(progress: float) -> float:
    """Learning-rate factor: short warm-up, plateau, linear decay to zero."""
    warm = min(1.0, (progress * HORIZON + 1) / 60)
    return warm * min(1.0, max(0.0, 1.0 - (progress - 0.3) / 0.7))
