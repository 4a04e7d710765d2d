"""The tolerance policy of every numerical test (style.md 5d).

Limits are derived from what an ideal low-precision implementation loses on the same data, never
tuned by hand, never read from the environment, and never met by rerunning.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Limits on :func:`difference`. Rounding a tensor to BF16 alone gives 1.3e-6 to 2.7e-6; F16 has 2^6
# smaller squared rounding errors. F32 results differ by summation order, not by final rounding.
COSINE_LIMIT = {torch.bfloat16: 7e-6, torch.float16: 1.1e-7, torch.float32: 1e-12}


def difference(actual: torch.Tensor, oracle: torch.Tensor) -> float:
    """Return 1 - 2·<a, o> / (<a, a> + <o, o>), which is |a - o|² / (|a|² + |o|²).

    Unlike the cosine proper it sees a common factor too.
    """
    a, o = actual.double(), oracle.double()
    norms = float((a * a).sum() + (o * o).sum())
    return 0.0 if norms == 0 else float(((a - o) ** 2).sum()) / norms


def error_limit(oracle: torch.Tensor, low: torch.Tensor) -> float:
    """Return 2 · (max error of ``low`` + eps(dtype of low) · max|oracle|) over finite values."""
    finite = torch.isfinite(oracle)
    if not finite.any():
        return 0.0
    wanted, reached = oracle[finite].double(), low[finite].double()
    epsilon = torch.finfo(low.dtype).eps
    return 2 * float((reached - wanted).abs().max() + epsilon * wanted.abs().max())


def assert_close(
    actual: torch.Tensor, oracle: torch.Tensor, low: torch.Tensor, *, name: str = "result"
) -> None:
    """Fail unless ``actual`` is as close to ``oracle`` as a low-precision run may be.

    Args:
        actual: result under test, in the dtype of ``low``.
        oracle: F64 reference on the same inputs.
        low: the reference evaluated in F32 and rounded to the output dtype.
    """
    if actual.dtype != low.dtype or actual.shape != oracle.shape:
        raise AssertionError(
            f"{name}: {actual.dtype} {tuple(actual.shape)}, "
            f"wanted {low.dtype} {tuple(oracle.shape)}"
        )
    _same_special_values(actual, oracle, name)
    finite = torch.isfinite(oracle)
    limit = error_limit(oracle, low)
    error = torch.where(finite, (actual.double() - oracle.double()).abs(), 0.0)
    if error.numel() and float(error.max()) > limit:
        worst = _position(error)
        share = float((error > limit).double().mean())
        raise AssertionError(
            f"{name}: worst at {worst}: {actual[worst].item()!r}, wanted {oracle[worst].item()!r}; "
            f"error {error[worst].item():.3e} > limit {limit:.3e}; {share:.2%} out of limit"
        )
    reached = difference(actual[finite], oracle[finite])
    cosine_limit = max(COSINE_LIMIT[low.dtype], 2.5 * difference(low[finite], oracle[finite]))
    if reached > cosine_limit:
        raise AssertionError(
            f"{name}: cosine difference {reached:.3e} > limit {cosine_limit:.3e} "
            f"(worst error {float(error.max()):.3e} at {_position(error)})"
        )


def _position(error: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))


def _same_special_values(actual: torch.Tensor, oracle: torch.Tensor, name: str) -> None:
    checks: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "NaN": torch.isnan,
        "+inf": torch.isposinf,
        "-inf": torch.isneginf,
    }
    for kind, test in checks.items():
        differs = test(actual) != test(oracle)
        if differs.any():
            where = _position(differs.int())
            raise AssertionError(
                f"{name}: {kind} at other positions, first at {where}: "
                f"{actual[where].item()!r}, wanted {oracle[where].item()!r}"
            )


def assert_same_selection(
    actual: torch.Tensor,
    scores: torch.Tensor,
    limit: float,
    *,
    ascending: bool = True,
    name: str = "selection",
) -> None:
    """Fail unless every row of ``actual`` is a best-k set of ``scores`` up to near-ties.

    Args:
        actual: int [T, K]: chosen positions, then -1 for unused slots.
        scores: F64 oracle scores [T, S]; -inf marks positions that must not be chosen.
        limit: how far below the k-th best score a chosen position may be, and how far above it a
            position that was left out.
        ascending: also demand ascending positions.
    """
    width = actual.shape[1]
    for row, (chosen, values) in enumerate(zip(actual.tolist(), scores, strict=True)):
        visible = int((values > -torch.inf).sum())
        count = min(width, visible)
        kept, padding = chosen[:count], chosen[count:]
        if any(i >= 0 for i in padding) or any(not 0 <= i < len(values) for i in kept):
            raise AssertionError(f"{name}: row {row} is not {count} positions, then -1: {chosen}")
        if len(set(kept)) != count:
            raise AssertionError(f"{name}: row {row} has duplicates: {chosen}")
        if ascending and kept != sorted(kept):
            raise AssertionError(f"{name}: row {row} is not ascending: {chosen}")
        if count == 0:
            continue
        bound = float(values.topk(count).values[-1])
        lost = values.clone()
        lost[kept] = -torch.inf
        worst = float(values[kept].min())
        if worst < bound - limit or float(lost.max()) > bound + limit:
            raise AssertionError(
                f"{name}: row {row}: chosen down to {worst:.6g}, left out {float(lost.max()):.6g}, "
                f"k-th best {bound:.6g}, limit {limit:.3g}"
            )


def assert_identical(actual: torch.Tensor, expected: torch.Tensor, *, name: str = "result") -> None:
    """Fail unless dtype, shape and every bit are equal (codes, layouts, second runs)."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(
            f"{name}: {actual.dtype} {tuple(actual.shape)}, "
            f"wanted {expected.dtype} {tuple(expected.shape)}"
        )
    same = actual.contiguous().view(torch.uint8) == expected.contiguous().view(torch.uint8)
    if not bool(same.all()):
        raise AssertionError(f"{name}: {int((~same).sum())} of {same.numel()} bytes differ")
