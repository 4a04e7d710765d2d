"""The checks of test_mlapo catch each of these mistakes, in whichever backend it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.mlapo import reference
from glm5_ascend.ops.mlapo.arguments import Inputs
from tests.ops.mistakes import half_split_rope
from tests.ops.mlapo_cases import SMALL, Case
from tests.ops.test_mlapo import BACKENDS, check, near_ties, run


def _rotated_rows(weight: Tensor, heads: int, rope: int) -> Tensor:
    """Rows of every head's rotated part as even | odd: what a kernel with half-split RoPE wants."""
    rows = weight.reshape(heads, -1, weight.shape[1]).clone()
    rows[:, -rope:] = torch.cat((rows[:, -rope::2], rows[:, -rope + 1 :: 2]), 1)
    return rows.flatten(0, 1)


def _permuted(inputs: Inputs) -> Inputs:
    down, up = (
        replace(linear, weight=_rotated_rows(linear.weight, heads, inputs.sizes.rope))
        for linear, heads in ((inputs.down_kv, 1), (inputs.up_q, inputs.sizes.heads))
    )
    return replace(inputs, down_kv=down, up_q=up)


def _bias(change: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    def changed(inputs: Inputs) -> Inputs:
        assert inputs.up_q.bias is not None
        return replace(inputs, up_q=replace(inputs.up_q, bias=change(inputs.up_q.bias)))

    return changed


def _scales(change: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    def changed(inputs: Inputs) -> Inputs:
        assert inputs.up_q.scale is not None
        return replace(inputs, up_q=replace(inputs.up_q, scale=change(inputs.up_q.scale)))

    return changed


def _next_offset(inputs: Inputs) -> Inputs:
    assert inputs.latent_static is not None
    static = replace(inputs.latent_static, offset=inputs.latent_static.offset + 1)
    return replace(inputs, latent_static=static)


# name -> (scheme, mistake in what a backend is given)
FAULTS: dict[str, tuple[str, Callable[[Inputs], Inputs]]] = {
    "weights permuted for another rope": ("float", _permuted),
    "sine and cosine swapped": ("float", lambda i: replace(i, cos=i.sin, sin=i.cos)),
    "rotated backwards": ("float", lambda i: replace(i, sin=-i.sin)),
    "eps of the other norm": ("float", lambda i: replace(i, eps_q=i.eps_kv, eps_kv=i.eps_q)),
    "eps of transformers": ("float", lambda i: replace(i, eps_q=1e-6, eps_kv=1e-6)),
    "no gamma": ("float", lambda i: replace(i, gamma_q=torch.ones_like(i.gamma_q))),
    "heads of W_UK reversed": ("float", lambda i: replace(i, absorb=i.absorb.flip(0))),
    "padding written": ("float", lambda i: replace(i, slots=i.slots.clamp(min=0))),
    "next slot": ("float", lambda i: replace(i, slots=i.slots.where(i.slots < 0, i.slots ^ 1))),
    "one scale for all channels": (
        "dynamic",
        _scales(lambda scale: scale.mean().expand_as(scale).contiguous()),
    ),
    "scale 1 % off": ("dynamic", _scales(lambda scale: scale * 1.01)),
    "offset one off": ("static", _next_offset),
    "no offset correction": ("static", _bias(torch.zeros_like)),
    "correction of the wrong sign": ("static", _bias(torch.neg)),
}


@contextmanager
def planted(change: Callable[[Inputs], Inputs]) -> Iterator[None]:
    """Every backend of mlapo computes from changed inputs."""
    load = dispatch.load

    def wrapped(operator: str, backend: str, tensor: Tensor) -> Any:
        module = load(operator, backend, tensor)
        if operator != "mlapo":
            return module
        return mock.Mock(forward=lambda inputs: module.forward(change(inputs)))

    with mock.patch.object(dispatch, "load", wrapped):
        yield


def verdict(scheme: str, backend: str, dtype: torch.dtype = torch.float32) -> None:
    """What test_mlapo asserts of one case."""
    case = Case(SMALL, 33, scheme, dtype)
    got = run(case, backend)
    codes = None
    if scheme != "float":
        near_ties(case, got["latent"])
        codes = got["latent"], None if scheme == "static" else got["latent_scale"]
    check(case, got, codes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_the_inputs_is_caught(name: str, backend: str) -> None:
    scheme, change = FAULTS[name]
    verdict(scheme, backend)
    with planted(change), pytest.raises(AssertionError):
        verdict(scheme, backend)


def _without_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * weight


def _rounded_absorb(nope: Tensor, weight: Tensor) -> Tensor:
    """A BF16 accumulator."""
    total = torch.zeros(*nope.shape[:2], weight.shape[2], dtype=torch.bfloat16)
    for k in range(nope.shape[2]):
        total += (nope[:, :, k, None].float() * weight[:, k].float()).bfloat16()
    return total.to(nope.dtype)


def _truncated(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() / scale).trunc().to(torch.int8), scale


MISTAKES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "half-split rope": ("float", "rotary_interleaved", half_split_rope),
    "un-normalised latent": ("float", "rms_norm", _without_norm),
    "bf16 accumulator": ("float", "absorb", _rounded_absorb),
    "codes truncated": ("dynamic", "dynamic_quant", _truncated),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_in_the_code_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, attribute, wrong = MISTAKES[name]
    verdict(scheme, "reference", torch.bfloat16)
    monkeypatch.setattr(reference, attribute, wrong)
    with pytest.raises(AssertionError):
        verdict(scheme, "reference", torch.bfloat16)
