"""The conformance suite catches a stage of mlapo whose scale is off, even by a thousandth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.mlapo import reference
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Static
from glm5_ascend.ops.verify import compare, mlapo
from glm5_ascend.ops.verify.case import Problem
from glm5_ascend.ops.verify.mlapo import SMALL, MlapoCase
from glm5_ascend.ops.verify.runner import public
from tests.ops.test_mlapo_faults import planted

Change = Callable[..., Inputs]
FACTORS = (1.01, 0.99, 1.001, 0.999)
# name -> (weight_quant_mode, static activations)
MODES = {"float": (0, False), "up": (1, False), "dynamic": (2, False), "static": (2, True)}


def _linear(linear: Linear, factor: float) -> Linear:
    if linear.scale is None:
        return replace(linear, weight=linear.weight * factor)
    return replace(linear, scale=linear.scale * factor)


def _static(static: Static | None, factor: float) -> Static:
    assert static is not None
    return replace(static, scale=static.scale * factor)


STAGES: dict[str, Change] = {
    "W_DQ": lambda i, factor: replace(i, down_q=_linear(i.down_q, factor)),
    "W_DKV_KR": lambda i, factor: replace(i, down_kv=_linear(i.down_kv, factor)),
    "W_UQ_QR": lambda i, factor: replace(i, up_q=_linear(i.up_q, factor)),
    "W_UK": lambda i, factor: replace(i, absorb=i.absorb * factor),
    "norm of the q latent": lambda i, factor: replace(i, gamma_q=i.gamma_q * factor),
    "norm of the latent": lambda i, factor: replace(i, gamma_kv=i.gamma_kv * factor),
    "rotation": lambda i, factor: replace(i, cos=i.cos * factor, sin=i.sin * factor),
    "quantised x": lambda i, factor: replace(i, x_static=_static(i.x_static, factor)),
    "quantised q latent": lambda i, factor: replace(
        i, latent_static=_static(i.latent_static, factor)
    ),
}


@cache
def problems(mode: str) -> tuple[Problem, Problem]:
    """Two cases of the suite; W_DQ's scale, which the norm divides out, shows in F32 alone."""
    weights, static = MODES[mode]
    small = {"sizes": SMALL, "std": 1e-2, "dtype": torch.float32}
    found = [
        case
        for case in (
            MlapoCase(tokens=9, size="quick", mode=weights, static=static),
            MlapoCase(tokens=9, mode=weights, static=static, **small),  # type: ignore[arg-type]
        )
        if case in list(mlapo.cases())
    ]
    first, second = found
    return first.problem(), second.problem()


def caught(mode: str, backend: str) -> bool:
    call = public(backend)
    return any(problem.judge(problem.run(call)).problem for problem in problems(mode))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("mode", MODES)
def test_scale_of_every_stage(mode: str, backend: str) -> None:
    assert not caught(mode, backend)
    for name, change in STAGES.items():
        if name.startswith("quantised") and mode != "static":
            continue
        for factor in FACTORS:
            with planted(partial(change, factor=factor)):
                assert caught(mode, backend), f"{name} times {factor}"


@pytest.mark.parametrize("mode", ["up", "dynamic"])
@pytest.mark.parametrize("factor", FACTORS)
def test_scale_of_dynamic_codes(mode: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    quantise = reference.dynamic_quant

    def wrong(x: Tensor) -> tuple[Tensor, Tensor]:
        codes, scale = quantise(x)
        return codes, scale * factor

    assert not caught(mode, "reference")
    monkeypatch.setattr(reference, "dynamic_quant", wrong)
    assert caught(mode, "reference")


def test_size_shows_what_rounding_hides() -> None:
    """A thousandth in BF16 values is below every value's own limit and far above their mean's."""
    exact = torch.randn(40, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    low = exact.bfloat16()
    assert compare.same_size(low, exact, low).passed
    for factor in FACTORS[2:]:
        off = (exact * factor).bfloat16()
        assert compare.close(off, exact, low).passed
        assert not compare.same_size(off, exact, low).passed
    for seed in range(50):
        noise = torch.rand(exact.shape, generator=torch.Generator().manual_seed(seed)) - 0.5
        other = (exact * (1 + noise.double() * 2**-8)).bfloat16()
        assert compare.same_size(other, exact, low).passed
