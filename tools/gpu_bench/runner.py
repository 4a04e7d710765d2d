"""Checks everyone who takes part in one problem, then times those who are right, in turns."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from glm5_ascend.errors import Glm5Error
from glm5_ascend.ops.verify.compare import Figures, worst
from tools.bench.timing import quantile
from tools.gpu_bench.device import Device, Prepared
from tools.gpu_bench.entry import Absent, Contestant
from tools.gpu_bench.shapes import Shape

Row = dict[str, Any]
# Tells who is at work: (contestant, stage); stages are "set up", "capture" and "time".
Tell = Callable[[Contestant, str], None]
LEAST, MOST = 7, 200


class _Made(NamedTuple):
    contestant: Contestant
    version: str
    prepared: Prepared
    figures: Figures


def measure(
    shape: Shape,
    contestants: Iterable[Contestant],
    device: Device,
    seconds: float,
    *,
    tell: Tell = lambda one, stage: None,
    omit: Collection[str] = (),
    streams: Collection[str] = (),
) -> Iterator[Row]:
    """One row per contestant; those of who is not timed come first.

    Args:
        shape: the problem.
        contestants: in the order in which they are set up.
        device: what runs them.
        seconds: that the race takes at most, once everyone has ``LEAST`` samples.
        tell: called before each stage.
        omit: names that have their rows already.
        streams: names that must not be captured into a graph.
    """
    ready: dict[str, _Made] = {}
    for one in contestants:
        if one.name in omit:
            continue
        made = _set_up(shape, one, device, tell, one.name not in streams)
        if isinstance(made, _Made):
            ready[one.name] = made
        else:
            yield made
    samples = _race(ready, device, seconds, tell)
    for name, made in ready.items():
        yield _timed(shape, made, samples[name], device)


def _set_up(shape: Shape, one: Contestant, device: Device, tell: Tell, graph: bool) -> Row | _Made:
    """The row of one who is not timed, or what is to be timed."""
    tell(one, "set up")
    try:
        made = one.make()
        tell(one, "capture")
        with torch.inference_mode():
            prepared = device.prepare(made.calls, graph=graph)
            prepared.run()
            # What is timed is what is judged: the first and the last input set.
            chosen = sorted({0, len(made.calls) - 1})
            figures = worst(made.check(i, prepared.results[i]) for i in chosen)
    except Absent as error:
        return not_timed(shape, one, "absent", str(error))
    except Glm5Error as error:
        return not_timed(shape, one, "failed", f"refused: {error.message}")
    except Exception as error:  # another project's code may raise anything; its row says so
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        text = " ".join(str(error).split())[:300]
        reason = f"{type(error).__name__} at {where}: {text}"
        return not_timed(shape, one, "failed", reason)
    if not figures.passed:
        return not_timed(shape, one, "wrong", figures.problem) | _figures(figures)
    return _Made(one, made.version, prepared, figures)


def _race(
    ready: Mapping[str, _Made], device: Device, seconds: float, tell: Tell
) -> dict[str, list[float]]:
    """Samples in microseconds; each round has a new order."""
    samples: dict[str, list[float]] = {name: [] for name in ready}
    order, shuffle = list(ready), random.Random(0).shuffle
    end = device.clock() + seconds
    rounds = 0
    with torch.inference_mode():
        while order and rounds < MOST and (rounds < LEAST or device.clock() < end):
            shuffle(order)
            for name in order:
                tell(ready[name].contestant, "time")
                samples[name].append(device.sample(ready[name].prepared))
            rounds += 1
    return samples


def _timed(shape: Shape, made: _Made, samples: Sequence[float], device: Device) -> Row:
    low, middle, high = (quantile(samples, share) for share in (0.2, 0.5, 0.8))
    prepared = made.prepared
    row = not_timed(shape, made.contestant, "timed", "") | _figures(made.figures) | {
        "package": made.version, "unit": "us", "median": middle, "p20": low, "p80": high,
        "least": min(samples), "n": len(samples), "sets": prepared.calls, "mode": prepared.mode,
        "no_graph": prepared.reason, "over_floor": middle / shape.cost.floor_us,
    }  # fmt: skip
    if prepared.mode == "stream":
        with torch.inference_mode():
            row["kernels_us"] = device.kernels_us(prepared)
    return row


def not_timed(shape: Shape, one: Contestant, status: str, reason: str) -> Row:
    """Row of somebody who is "absent", "wrong" or "failed", or did "not run" for want of time."""
    return _problem(shape) | {
        "contestant": one.name,
        "kind": one.kind,
        "dtype": one.dtype,
        "heads_computed": one.heads,
        "status": status,
        "reason": reason,
    }


def _problem(shape: Shape) -> Row:
    cost = shape.cost
    goal = None if shape.goal is None else asdict(shape.goal)
    sizes = {
        name: getattr(shape, name)
        for name in ("requests", "queries", "context", "heads", "chosen", "sets")
    }
    return {
        "case": shape.name, "kernel": shape.kernel, "title": shape.title, "shape": sizes,
        "case_dtype": shape.dtype, "bytes": cost.nbytes, "flops": dict(cost.flops),
        "floor_us": cost.floor_us, "bound": cost.bound, "goal": goal,
    }  # fmt: skip


def _figures(figures: Figures) -> Row:
    return {
        "error": figures.max_error,
        "error_limit": figures.limit,
        "difference": figures.cosine,
        "recall": figures.recall,
    }
