"""Gating, experts in every scheme and int4 packing, against NumPy and plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import moe_experts, moe_gating, pack_int4, unpack_int4
from glm5_ascend.ops.moe import reference
from glm5_ascend.ops.verify.experts import Experts, gate
from tests.support.compare import assert_close, assert_identical


@pytest.fixture(autouse=True, params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test of this file runs with each backend as the one that ``auto`` takes."""
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", request.param)
    return str(request.param)


@pytest.mark.parametrize("experts", [16, 256])
@pytest.mark.parametrize("normalise", [True, False])
def test_gating_equals_numpy(experts: int, normalise: bool) -> None:
    torch.manual_seed(0)
    logits, bias = torch.randn(213, experts, dtype=torch.float64), torch.randn(experts) * 0.3
    weights, ids = moe_gating(logits, bias, 8, 2.5, normalise)
    wanted = gate(logits.numpy(), bias.double().numpy(), 8, 2.5, normalise)
    assert ids.dtype == torch.int32
    assert ids.tolist() == wanted[1].tolist()
    torch.testing.assert_close(weights, torch.from_numpy(wanted[0]), rtol=1e-13, atol=0)
    single = moe_gating(logits.float(), bias, 8, 2.5, normalise)
    assert single[0].dtype == torch.float32
    assert (single[1] == ids).float().mean() > 0.99
    half = moe_gating(logits.bfloat16(), bias, 8, 2.5, normalise)
    assert_identical(half[0], moe_gating(logits.bfloat16().float(), bias, 8, 2.5, normalise)[0])


def test_bias_steers_the_choice_but_not_the_weight() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    weights, ids = moe_gating(logits, torch.tensor([0.0, 0.0, 0.0, 9.0]), 2, 2.5)
    assert ids.tolist() == [[3, 0]]
    chosen = torch.tensor([[-1.0, 2.0]]).sigmoid()
    torch.testing.assert_close(weights, 2.5 * chosen / chosen.sum())


def test_equal_scores_take_the_lowest_experts() -> None:
    logits = torch.zeros(3, 64)
    logits[1, 40:] = 1
    logits[2] = -200  # sigmoid 0: no division by zero
    weights, ids = moe_gating(logits, torch.zeros(64), 8, 2.5)
    assert ids.tolist() == [[*range(8)], [*range(40, 48)], [*range(8)]]
    torch.testing.assert_close(weights, torch.tensor([[2.5 / 8]] * 2 + [[0.0]]).expand(3, 8))


@pytest.mark.usefixtures("poison_empty")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 62, 213])
def test_float_experts_equal_numpy(tokens: int, dtype: torch.dtype) -> None:
    case = Experts(tokens, dtype=dtype)
    oracle = case.oracle(np.float64)
    out = moe_experts(case.x, case.weights, case.ids, case.w13, case.w2)
    if dtype == torch.float64:
        torch.testing.assert_close(out, oracle, rtol=1e-12, atol=1e-12)
    else:
        assert_close(out, oracle, case.oracle(np.float32).to(dtype))


@pytest.mark.usefixtures("poison_empty")
@pytest.mark.parametrize("gathered", [0, 1 << 40], ids=["loop", "gathered"])
@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
@pytest.mark.parametrize("tokens", [0, 1, 62, 213])
def test_quantised_experts_equal_numpy(
    monkeypatch: pytest.MonkeyPatch, tokens: int, scheme: str, gathered: int
) -> None:
    monkeypatch.setattr(reference, "_GATHERED_WEIGHTS", gathered)
    case = Experts(tokens)
    case.check(moe_experts(**case.quantised(scheme)), scheme)


@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_both_ways_of_multiplying_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    case = Experts(40)
    results = []
    for limit in (0, 1 << 40):
        monkeypatch.setattr(reference, "_GATHERED_WEIGHTS", limit)
        results.append(moe_experts(**case.quantised(scheme)))
    assert_identical(*results)


def test_bf16_activations_are_quantised_from_bf16() -> None:
    case = Experts(62)
    case.x = case.x.bfloat16()
    out = moe_experts(**case.quantised("w4a8"))
    assert out.dtype == torch.bfloat16
    case.x = case.x.float()
    assert_identical(out, moe_experts(**case.quantised("w4a8")).bfloat16())


def test_scale_bias_is_used_as_given() -> None:
    """The offset arithmetic of the NPU: a wrong scale_bias must show, whole columns count."""
    case = Experts(9)
    arguments = case.quantised("w4a8")
    good = moe_experts(**arguments)
    split = arguments["w2_scale_bias"].clone()
    split[..., 3] += 7
    split[..., 11] -= 7
    moved = moe_experts(**{**arguments, "w2_scale_bias": split})
    torch.testing.assert_close(moved, good, rtol=1e-4, atol=1e-4)
    for name in ("w13_scale_bias", "w2_scale_bias"):
        zero = torch.zeros_like(arguments[name])
        assert (moe_experts(**{**arguments, name: zero}) - good).abs().max() > 0.1


def test_expert_parallel_ranks_add_up() -> None:
    case = Experts(62, dtype=torch.float64)
    whole = moe_experts(case.x, case.weights, case.ids, case.w13, case.w2)
    total = torch.zeros_like(whole)
    for rank in range(4):
        local = slice(4 * rank, 4 * rank + 4)
        mapping = torch.full((16,), -1)
        mapping[local] = torch.arange(4)
        total += moe_experts(
            case.x, case.weights, case.ids, case.w13[local], case.w2[local], expert_map=mapping
        )
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)


def test_missing_experts_contribute_nothing() -> None:
    case = Experts(5, dtype=torch.float64)
    ids = case.ids.clone()
    ids[0] = -1
    ids[1, 2] = -1
    weights = torch.where(ids < 0, 0, case.weights)
    out = moe_experts(case.x, case.weights, ids, case.w13, case.w2)
    wanted = moe_experts(case.x, weights, case.ids, case.w13, case.w2)
    torch.testing.assert_close(out, wanted)
    assert not out[0].any()


def test_router_weight_on_input() -> None:
    case = Experts(5, dtype=torch.float64)
    ids, weights = case.ids[:, :1], case.weights[:, :1]
    out = moe_experts(case.x, weights, ids, case.w13, case.w2, apply_router_weight_on_input=True)
    wanted = moe_experts(case.x * weights, torch.ones_like(weights), ids, case.w13, case.w2)
    torch.testing.assert_close(out, wanted)


def test_strided_inputs() -> None:
    case = Experts(62)
    plain = moe_experts(**case.quantised("w4a8"))
    arguments = case.quantised("w4a8")
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            arguments[name] = torch.stack((value, value), -1)[..., 0]
    assert_identical(moe_experts(**arguments), plain)


def test_packing_puts_even_rows_low_and_keeps_every_code() -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8)
    pairs = torch.cartesian_prod(codes, codes).T.contiguous()  # rows: even, odd
    packed = pack_int4(pairs)
    assert packed.shape == (1, 256)
    for k, byte in enumerate(packed[0].tolist()):
        low, high = byte & 0xF, (byte >> 4) & 0xF
        assert (low ^ 8) - 8 == pairs[0, k]
        assert (high ^ 8) - 8 == pairs[1, k]
    assert_identical(unpack_int4(packed), pairs)
    many = torch.randint(-8, 8, (3, 96, 50), dtype=torch.int8)
    assert_identical(unpack_int4(pack_int4(many)), many)
    assert_identical(pack_int4(many)[1, 7], pack_int4(many[1, 14:16])[0])


@pytest.mark.parametrize(
    "codes",
    [
        torch.zeros(3, 4, dtype=torch.int8),
        torch.zeros(2, 4, dtype=torch.int32),
        torch.full((2, 4), 8, dtype=torch.int8),
        torch.full((2, 4), -9, dtype=torch.int8),
    ],
    ids=["odd", "int32", "too_large", "too_small"],
)
def test_what_is_no_int4_cannot_be_packed(codes: Tensor) -> None:
    with pytest.raises(ValueError, match="int"):
        pack_int4(codes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "w4a16"}, "scheme must be"),
        ({"w13_scale": None}, "needs w13_scale"),
        ({"w2_scale_bias": None}, "needs w2_scale_bias"),
        ({"scheme": "w8a8"}, "do not fit"),
        ({"w2_scale": torch.zeros(16, 192)}, "w2_scale"),
        ({"w2_scale": torch.zeros(16, 192, 16)}, "w2_scale"),
        ({"w13_scale_bias": torch.zeros(16, 48, 1)}, "w13_scale_bias"),
        ({"topk_ids": torch.zeros(4, 4, dtype=torch.int32)}, "ids"),
        ({"x": torch.zeros(5, 190)}, "hidden"),
        ({"topk_ids": torch.full((5, 4), 16)}, "topk_ids"),
        ({"apply_router_weight_on_input": True}, "top_k"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moe_experts(**{**Experts(5).quantised("w4a8"), **change})


def test_float_weights_take_no_scales() -> None:
    case = Experts(5)
    with pytest.raises(ValueError, match="takes no w13_scale"):
        moe_experts(
            case.x, case.weights, case.ids, case.w13, case.w2, w13_scale=torch.ones(16, 96, 1)
        )
    with pytest.raises(ValueError, match="cannot take"):
        moe_experts(case.x, case.weights, case.ids, case.w13.to(torch.int8), case.w2)
