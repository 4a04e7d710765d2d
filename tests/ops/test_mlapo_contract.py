"""mlapo as torch sees it: schema, fake kernel, compilation, refused arguments."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.mlapo import mlapo
from tests.ops.mlapo_cases import SCHEMES, SMALL, WIDE, Case
from tests.support.compare import assert_identical

# What stock torch_npu declares for npu_mla_prolog_v3.
TORCH_NPU = (
    "mlapo(Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, "
    "Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, "
    "Tensor rope_cos, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *, Tensor? cache_index=None, "
    "Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None, "
    "Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None, "
    "Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None, "
    "Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None, "
    "float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05, "
    'str cache_mode="PA_BSND", bool query_norm_flag=False, int weight_quant_mode=0, '
    "int kv_cache_quant_mode=0, int query_quant_mode=0, int ckvkr_repo_mode=0, "
    "int quant_scale_repo_mode=0, int tile_size=128, float qc_qr_scale=1., float kc_scale=1.) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
OVERLOAD = torch.ops.glm5_ascend.mlapo.default
PACKED = {"kv_cache_quant_mode": 3, "ckvkr_repo_mode": 1, "quant_scale_repo_mode": 1}


def test_schema_extends_that_of_torch_npu() -> None:
    theirs, ours = torch._C.parse_schema(TORCH_NPU), OVERLOAD._schema
    for a, b in zip(theirs.arguments, ours.arguments, strict=False):
        assert (a.name, str(a.type), a.default_value, a.kwarg_only) == (
            b.name,
            str(b.type),
            b.default_value,
            b.kwarg_only,
        )
    assert len(ours.returns) == len(theirs.returns) == 5
    written = [a.name for a in ours.arguments if a.alias_info and a.alias_info.is_write]
    assert written == ["kv_cache", "kr_cache"]


def call(scheme: str, kind: str) -> dict[str, Any]:
    """Arguments with one of the options that change the results' shapes."""
    case = Case(WIDE, 5, scheme, torch.bfloat16)
    if kind == "packed":
        packed = torch.zeros(3, 16, 1, 656, dtype=torch.int8)
        return case.fresh(kv_cache=packed, kr_cache=torch.empty(0), **PACKED)
    changes: dict[str, Any] = {
        "plain": {"query_norm_flag": False},
        "latent": {},
        "float_latent": {"query_norm_quantised": False},
        "int8_query": {"query_quant_mode": 1},
    }[kind]
    arguments = case.fresh(**changes)
    return {
        k: v.nan_to_num(0) if "cache" in k and k != "cache_index" else v
        for k, v in arguments.items()
    }


KINDS = ["plain", "latent", "float_latent", "int8_query", "packed"]


@pytest.mark.parametrize("scheme", ["float", "static"])
def test_opcheck(scheme: str) -> None:
    arguments = call(scheme, "latent")
    names = [a.name for a in OVERLOAD._schema.arguments if not a.kwarg_only]
    args = tuple(arguments.pop(name) for name in names)
    torch.library.opcheck(OVERLOAD, args, arguments)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_fake_results_look_like_real_ones(scheme: str, kind: str) -> None:
    real = mlapo(**call(scheme, kind), backend="reference")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = mlapo(**call(scheme, kind), backend="reference")
    assert [(x.shape, x.dtype, x.stride()) for x in fake] == [
        (x.shape, x.dtype, x.stride()) for x in real
    ]


@pytest.mark.parametrize("tracer", ["eager", "aot_eager"])
@pytest.mark.parametrize("scheme", ["float", "static"])
def test_compiled_equals_eager(scheme: str, tracer: str) -> None:
    """In one graph, with the two caches as columns of one buffer, as vLLM has them."""
    torch._dynamo.reset()

    def step(both: Tensor, rest: dict[str, Any]) -> tuple[Any, ...]:
        kv_cache, kr_cache = both[..., :512], both[..., 512:]
        results = mlapo(**rest, kv_cache=kv_cache, kr_cache=kr_cache)
        return *results, both.sum()

    rest = call(scheme, "latent")
    for name in ("kv_cache", "kr_cache"):
        del rest[name]
    ours, theirs = torch.zeros(3, 16, 1, 576).bfloat16(), torch.zeros(3, 16, 1, 576).bfloat16()
    got = torch.compile(step, fullgraph=True, backend=tracer)(ours, rest)
    for a, b in zip(got, step(theirs, rest), strict=True):
        assert_identical(a, b)
    assert_identical(ours, theirs)
    assert bool(ours.any())


def bad(label: str, message: str, scheme: str = "dynamic", **change: Any) -> Any:
    return pytest.param(scheme, change, message, id=label)


_INT8 = torch.zeros(5, 192, dtype=torch.int8)
BAD = [
    bad("mode", "weight_quant_mode must be 0 or 1 or 2, not 3", weight_quant_mode=3),
    bad("cache_mode", "cache_mode must be 'PA_BSND', not 'PA_NZ'", cache_mode="PA_NZ"),
    bad("cache_quant", "kv_cache_quant_mode must be 0 or 3, not 1", kv_cache_quant_mode=1),
    bad("repo_mode", "ckvkr_repo_mode must be 0 with kv_cache_quant_mode 0", ckvkr_repo_mode=1),
    bad("smooth", "smooth_scales_cq is not supported", smooth_scales_cq=torch.ones(1)),
    bad("alpha", "qc_qr_scale is not supported: it must be 1.0", qc_qr_scale=2.0),
    bad("float_weight", "weight_dq must be int8, not float32", weight_dq=torch.randn(192, 96)),
    bad("weight_shape", "weight_uq_qr must have shape", weight_uq_qr=torch.zeros(96, 5).char()),
    bad("odd_rope", "an even number of rotated", weight_dkv_kr=torch.zeros(192, 257).char()),
    bad("rank", "weight_uk must have 3 axes", weight_uk=torch.zeros(4, 64)),
    bad("gamma", "rmsnorm_gamma_ckv must be float32", rmsnorm_gamma_ckv=torch.ones(256).half()),
    bad("x_dtype", "token_x must be float32 or int8", token_x=torch.randn(5, 192).half()),
    bad("no_x_scale", "dequant_scale_x goes with an int8 token_x", token_x=_INT8),
    bad("x_scales", "one scale per token, 5", token_x=_INT8, dequant_scale_x=torch.ones(4)),
    bad("no_scale", "dequant_scale_w_dq goes with an int8", dequant_scale_w_dq=None),
    bad("scales", "dequant_scale_w_dq must be [1, 96]", dequant_scale_w_dq=torch.ones(95)),
    bad("no_bias", "quant_bias_dq goes with statically", "static", quant_bias_dq=None),
    bad("bias_dtype", "quant_bias_dq must be int32", "static", quant_bias_dq=torch.zeros(96)),
    bad("lone_scale", "quant_scale_cq and quant_offset_cq go", "static", quant_offset_cq=None),
    bad("two_scales", "quant_scale_x must have one element", "static", quant_scale_x=torch.ones(2)),
    bad("static_float", "with int8 weights and float activations", "float",
        quant_scale_x=torch.ones(1), quant_offset_x=torch.zeros(1)),
    bad("angles", "rope_cos must have shape [5, 32] or [5, 64]", rope_cos=torch.zeros(5, 31)),
    bad("angles_2", "rope_sin must have shape [5, 32]", rope_sin=torch.zeros(5, 64)),
    bad("no_slots", "cache_index must name the slot of every token", cache_index=None),
    bad("slots", "one slot per token, 5", cache_index=torch.zeros(4).long()),
    bad("slot_dtype", "cache_index must be int32 or int64", cache_index=torch.zeros(5)),
    bad("cache_dtype", "kv_cache must be float32", kv_cache=torch.zeros(3, 16, 1, 256).half()),
    bad("cache_width", "kr_cache must be [blocks, block_size, 1, 64]",
        kr_cache=torch.zeros(3, 16, 1, 63)),
    bad("blocks", "kv_cache and kr_cache must have the same blocks",
        kr_cache=torch.zeros(4, 16, 1, 64)),
    bad("gaps", "the last axis of kv_cache must be dense",
        kv_cache=torch.zeros(3, 16, 1, 512)[..., ::2]),
    bad("packed", "packed cache rows hold 512 + 64 dims, not 256 + 64", **PACKED),
    bad("device", "weight_uk must be on the device of token_x",
        weight_uk=torch.zeros(4, 64, 256, device="meta")),
]  # fmt: skip
BAD_VALUES = [
    bad("slot", "one of the 48 slots of the caches; 48 does neither",
        cache_index=torch.tensor([0, 1, 48, 2, 3])),
    bad("negative", "-2 does neither", cache_index=torch.tensor([0, 1, -2, 2, 3])),
    bad("interleaved_table", "rope_cos of width 64 must hold the angles of its 32 pairs twice",
        rope_cos=torch.rand(5, 64), rope_sin=torch.rand(5, 64)),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "change", "message"), [*BAD, *BAD_VALUES])
def test_refused(scheme: str, change: dict[str, Any], message: str) -> None:
    arguments = Case(SMALL, 5, scheme, torch.float32).fresh()
    arguments = {**arguments, **change}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        mlapo(**arguments)
    for name in ("kv_cache", "kr_cache"):
        if name not in change:
            assert arguments[name].isnan().all()


@pytest.mark.parametrize(("scheme", "change", "message"), BAD[6:8])
def test_refused_while_compiling(scheme: str, change: dict[str, Any], message: str) -> None:
    torch._dynamo.reset()
    arguments = Case(SMALL, 5, scheme, torch.float32).fresh(**change)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        torch.compile(mlapo, fullgraph=True, backend="eager")(**arguments)


def test_int8_weights_refuse_f64() -> None:
    arguments = Case(SMALL, 5, "dynamic", torch.float64).fresh()
    with pytest.raises(ArgumentError, match="at most 32 bits, not float64"):
        mlapo(**arguments)
