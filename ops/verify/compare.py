"""The tolerance policy of every numerical comparison.

Limits are derived from what an ideal low-precision implementation loses on the same data, never
tuned by hand, never read from the environment, and never met by rerunning. A comparison returns
its figures; whether they are asserted or printed is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Limits on :func:`difference`. Rounding a tensor to BF16 alone gives 1.3e-6 to 2.7e-6; F16 has 2^6
# smaller squared rounding errors. F32 results differ by summation order, not by final rounding.
COSINE_LIMIT = {torch.bfloat16: 7e-6, torch.float16: 1.1e-7, torch.float32: 1e-12}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a comparison found; it passed if ``problem`` is empty.

    ``max_error`` and its ``limit`` are absolute, ``cosine`` is :func:`difference` with its own
    limit, ``recall`` is the share of the oracle's positions that were chosen.
    """

    max_error: float = 0.0
    limit: float = 0.0
    cosine: float = 0.0
    recall: float | None = None
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def worst(figures: Iterable[Figures]) -> Figures:
    """One row for several comparisons: the error nearest to its limit, the worst of the others."""
    every = list(figures)
    if not every:
        return Figures()
    nearest = max(every, key=lambda f: f.max_error / f.limit if f.limit else f.max_error)
    recalls = [f.recall for f in every if f.recall is not None]
    return Figures(
        nearest.max_error,
        nearest.limit,
        max(f.cosine for f in every),
        min(recalls, default=None),
        "; ".join(f.problem for f in every if f.problem),
    )


def require(figures: Figures) -> None:
    """Raise AssertionError with the problem, if there is one."""
    if figures.problem:
        raise AssertionError(figures.problem)


def difference(actual: Tensor, oracle: Tensor) -> float:
    """Return 1 - 2·<a, o> / (<a, a> + <o, o>), which is |a - o|² / (|a|² + |o|²).

    Unlike the cosine proper it sees a common factor too.
    """
    a, o = actual.double(), oracle.double()
    norms = float((a * a).sum() + (o * o).sum())
    return 0.0 if norms == 0 else float(((a - o) ** 2).sum()) / norms


def error_limit(oracle: Tensor, low: Tensor) -> float:
    """Return 2 · (max error of ``low`` + eps(dtype of low) · max|oracle|) over finite values."""
    finite = torch.isfinite(oracle)
    if not finite.any():
        return 0.0
    wanted, reached = oracle[finite].double(), low[finite].double()
    epsilon = torch.finfo(low.dtype).eps
    return 2 * float((reached - wanted).abs().max() + epsilon * wanted.abs().max())


def close(
    actual: Tensor, oracle: Tensor, low: Tensor, *, step: float = 0.0, name: str = "result"
) -> Figures:
    """Whether ``actual`` is as close to ``oracle`` as a low-precision run may be.

    Args:
        actual: result under test, in the dtype of ``low``.
        oracle: F64 reference on the same inputs.
        low: the reference evaluated in F32 and rounded to the output dtype.
        step: what one flipped code of an inner quantisation moves a result by. It is granted on
            top of the limit, and to the cosine as if one element in a hundred had flipped.
    """
    if wrong := _wrong_form(actual, low.dtype, oracle.shape, name):
        return Figures(problem=wrong)
    if wrong := _special_values(actual, oracle, name):
        return Figures(problem=wrong)
    finite = torch.isfinite(oracle)
    if not finite.any():
        return Figures()
    limit = error_limit(oracle, low) + step
    error = torch.where(finite, (actual.double() - oracle.double()).abs(), 0.0)
    reached = difference(actual[finite], oracle[finite])
    floor = 2.5 * difference(low[finite], oracle[finite])
    granted = step**2 / 100 / max(float(oracle[finite].double().square().mean()), 1e-300)
    figures = Figures(float(error.max()), limit, reached)
    if figures.max_error > limit:
        where = _position(error)
        share = float((error > limit).double().mean())
        problem = (
            f"{name}: worst at {where}: {actual[where].item()!r}, wanted {oracle[where].item()!r}; "
            f"error {figures.max_error:.3e} > limit {limit:.3e}; {share:.2%} out of limit"
        )
        return replace(figures, problem=problem)
    cosine_limit = max(COSINE_LIMIT[low.dtype], floor) + granted
    if reached > cosine_limit:
        problem = (
            f"{name}: cosine difference {reached:.3e} > limit {cosine_limit:.3e} "
            f"(worst error {figures.max_error:.3e} at {_position(error)})"
        )
        return replace(figures, problem=problem)
    return figures


def same_size(
    actual: Tensor,
    oracle: Tensor,
    low: Tensor,
    *,
    epsilon: float | None = None,
    rows: int = 0,
    name: str = "result",
) -> Figures:
    """Whether the factor <a, o> / <o, o>, by which ``actual`` is closest to ``oracle``, is 1.

    Rounding errors of both signs cancel in it, so it shows a common factor far below the error of
    one value. Granted are 8 standard deviations of errors as large as those of ``low`` or of
    rounding, 4 units of F32 for what rows share, and one row whose scale was rounded otherwise.

    Args:
        actual: finite values.
        oracle: reference evaluated in F64.
        low: the same in F32, rounded to the output format.
        epsilon: of the output format, if it is not that of low's dtype.
        rows: how many rows have a scale of their own, taken from rounded values.
    """
    a, o = actual.double(), oracle.double()
    epsilon = epsilon or torch.finfo(low.dtype).eps
    total = float(o.square().sum())
    if total == 0:
        return Figures()
    error = torch.maximum((low.double() - o).abs(), o.abs() * epsilon / 4)
    deviation = float((o * error).square().sum().sqrt()) / total
    shared = 4 * torch.finfo(torch.float32).eps + (epsilon / rows if rows else 0.0)
    factor, limit = float((a * o).sum()) / total, 8 * deviation + shared
    if abs(factor - 1) <= limit:
        return Figures()
    problem = f"{name}: {factor:.7f} times as large as wanted, limit {limit:.1e} from 1"
    return Figures(problem=problem)


def selection(
    actual: Tensor,
    scores: Tensor,
    limit: float,
    *,
    visible: Tensor | None = None,
    order: str = "position",
    name: str = "selection",
) -> Figures:
    """Whether every row of ``actual`` is a best-k set of ``scores`` up to near-ties.

    Args:
        actual: int [T, K]: chosen positions, then -1 for unused slots.
        scores: F64 oracle scores [T, S] without NaN.
        limit: how far below the k-th best score a chosen position may be, and how far above it a
            position that was left out.
        visible: int [T], how many leading positions may be chosen; without it, -inf marks those
            that must not be.
        order: "position" demands ascending positions, "score" descending scores up to ``limit``,
            "any" nothing.
    """
    width, total = actual.shape[1], scores.shape[1]
    seen = (scores > -torch.inf) if visible is None else torch.arange(total) < visible[:, None]
    found, wanted, gap = 0, 0, 0.0
    for row, chosen in enumerate(actual.tolist()):
        values = torch.where(seen[row], scores[row], -torch.inf)
        allowed = seen[row].nonzero()[:, 0]
        count = min(width, len(allowed))
        if wrong := _wrong_row(chosen, set(allowed.tolist()), count):
            return Figures(recall=0.0, problem=f"{name}: row {row} {wrong}: {chosen}")
        if count == 0:
            continue
        kept = torch.tensor(chosen[:count])
        best = values[allowed].sort(descending=True, stable=True)
        bound = float(best.values[count - 1])
        lost = values.clone()
        lost[kept] = -torch.inf
        low, high = float(values[kept].min()), float(lost.max())
        found += len(set(kept.tolist()) & set(allowed[best.indices[:count]].tolist()))
        wanted += count
        gap = max(gap, _distance(bound, low), _distance(high, bound))
        if low < bound - limit or high > bound + limit:
            problem = (
                f"{name}: row {row}: chosen down to {low:.6g}, left out {high:.6g}, "
                f"k-th best {bound:.6g}, limit {limit:.3g}"
            )
            return Figures(gap, limit, recall=found / wanted, problem=problem)
        if wrong := _wrong_order(kept, values, limit, order):
            return Figures(gap, limit, recall=found / wanted, problem=f"{name}: row {row} {wrong}")
    return Figures(gap, limit, recall=found / wanted if wanted else None)


def identical(actual: Tensor, expected: Tensor, *, name: str = "result") -> Figures:
    """Whether dtype, shape and every bit are equal (codes, layouts, second runs)."""
    if wrong := _wrong_form(actual, expected.dtype, expected.shape, name):
        return Figures(problem=wrong)
    if not expected.numel():
        return Figures()
    ours, theirs = (x.flatten().contiguous() for x in (actual, expected))
    same = (ours.view(torch.uint8) == theirs.view(torch.uint8)).view(ours.numel(), -1).all(1)
    if bool(same.all()):
        return Figures()
    error = (ours.double() - theirs.double()).abs().nan_to_num(0.0, posinf=torch.inf)
    first = int(same.int().argmin())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), expected.shape))
    problem = (
        f"{name}: {int((~same).sum())} of {same.numel()} values differ, first at {where}: "
        f"{ours[first].item()!r}, wanted {theirs[first].item()!r}"
    )
    return Figures(float(error.max()), problem=problem)


def _wrong_form(actual: Tensor, dtype: torch.dtype, shape: torch.Size, name: str) -> str:
    if actual.dtype == dtype and actual.shape == shape:
        return ""
    return f"{name}: {actual.dtype} {tuple(actual.shape)}, wanted {dtype} {tuple(shape)}"


def _position(error: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))


def _special_values(actual: Tensor, oracle: Tensor, name: str) -> str:
    checks: dict[str, Callable[[Tensor], Tensor]] = {
        "NaN": torch.isnan,
        "+inf": torch.isposinf,
        "-inf": torch.isneginf,
    }
    for kind, test in checks.items():
        differs = test(actual) != test(oracle)
        if differs.any():
            where = _position(differs.int())
            return (
                f"{name}: {kind} at other positions, first at {where}: "
                f"{actual[where].item()!r}, wanted {oracle[where].item()!r}"
            )
    return ""


def _wrong_row(chosen: list[int], allowed: set[int], count: int) -> str:
    kept, padding = chosen[:count], chosen[count:]
    if any(i >= 0 for i in padding) or any(i not in allowed for i in kept):
        return f"is not {count} visible positions, then -1"
    return "has duplicates" if len(set(kept)) != count else ""


def _wrong_order(kept: Tensor, values: Tensor, limit: float, order: str) -> str:
    if order == "position" and bool((kept.diff() <= 0).any()):
        return f"is not ascending: {kept.tolist()}"
    if order == "score" and bool((values[kept][1:] > values[kept][:-1] + limit).any()):
        return f"is not by descending score: {kept.tolist()}"
    return ""


def _distance(higher: float, lower: float) -> float:
    return 0.0 if higher <= lower else higher - lower
