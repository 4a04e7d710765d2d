"""mlapo, reference and CPU backend, against NumPy and transformers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import int_matmul, read_kv_rows, rotary_table, write_kv_rows
from glm5_ascend.ops.mlapo import mlapo
from tests.ops.mlapo_cases import AWKWARD, SCHEMES, SMALL, WIDE, Case, Formula, Shape
from tests.ops.test_transformers import THETA, TOKENS, make_attention, modeling
from tests.support.compare import assert_close, assert_identical
from tests.support.double import F32Angles, double_precision

BACKENDS = ["reference", "cpu"]
NAMES = ("query", "query_rope", "query_scale", "latent", "latent_scale")


def run(case: Case, backend: str, **changes: Any) -> dict[str, Tensor]:
    """Results and caches by name."""
    arguments = case.fresh(**changes)
    results = dict(zip(NAMES, mlapo(**arguments, backend=backend), strict=True))
    return results | {name: arguments[name] for name in ("kv_cache", "kr_cache")}


def check(case: Case, got: dict[str, Tensor], codes: Any = None) -> None:
    """Everything in floating point against the formulas in F64, with the policy's limits."""
    oracle, low = (Formula(case, kind, codes) for kind in (np.float64, np.float32))
    for name in ("query", "query_rope", "kv_cache", "kr_cache"):
        wanted, reached = (
            torch.from_numpy(f.written(name) if "cache" in name else getattr(f, name))
            for f in (oracle, low)
        )
        if case.dtype == torch.float64:
            torch.testing.assert_close(got[name], wanted, rtol=1e-12, atol=1e-12, equal_nan=True)
        else:
            assert_close(got[name], wanted, reached.to(case.dtype), name=name)


def near_ties(case: Case, codes: Tensor) -> None:
    """Codes are the formula's but where the latent lies between two of them."""
    oracle = Formula(case, np.float64)
    steps = oracle.latent / (0.03125 if oracle.scale is None else oracle.scale)
    distance = np.abs(np.abs(steps - np.floor(steps)) - 0.5)
    differs = codes.numpy() != oracle.codes
    # A BF16 latent may be one unit of its format off, which is up to half a step.
    limit = 1e-3 if case.dtype == torch.float32 else 1.0
    assert not (differs & (distance > limit)).any()
    assert differs.mean() < 2e-3
    assert np.abs(codes.numpy() - oracle.codes).max() <= 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [SMALL, AWKWARD, WIDE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("poison_empty")
def test_float_weights(shape: Shape, dtype: torch.dtype, backend: str) -> None:
    for tokens in (1, 9, 33):
        case = Case(shape, tokens, "float", dtype)
        got = run(case, backend)
        check(case, got)
        latent = torch.from_numpy(Formula(case, np.float64).latent)
        low = torch.from_numpy(Formula(case, np.float32).latent).to(dtype)
        if dtype != torch.float64:
            assert_close(got["latent"], latent, low, name="latent")
        assert got["query_scale"].shape == got["latent_scale"].shape == (0,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", ["up", "dynamic", "static"])
@pytest.mark.parametrize("shape", [SMALL, AWKWARD, WIDE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("poison_empty")
def test_int8_weights(shape: Shape, dtype: torch.dtype, scheme: str, backend: str) -> None:
    for tokens in (1, 8, 33):
        case = Case(shape, tokens, scheme, dtype)
        got = run(case, backend)
        assert got["latent"].dtype == torch.int8
        near_ties(case, got["latent"])
        scale = None if scheme == "static" else got["latent_scale"]
        check(case, got, (got["latent"], scale))
        if scheme == "static":
            assert got["latent_scale"].shape == (0,)
            continue
        plain = run(case, backend, query_norm_quantised=False)["latent"].float()
        wanted = plain.abs().amax(1, keepdim=True) / 127
        assert_identical(got["latent_scale"], wanted)
        assert_identical(got["latent"], (plain / wanted).round().to(torch.int8))


def test_static_saturates() -> None:
    """The planted offsets and scales reach both ends, or nothing above would test them."""
    codes = run(Case(SMALL, 33, "static", torch.float32), "cpu")["latent"]
    assert int(codes.max()) == 127
    assert Formula(Case(SMALL, 33, "static", torch.float32), np.float64)._quantise(
        np.array([[-100.0, 100.0]]), "x"
    )[0].tolist() == [[-128, 127]]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backends_agree_in_exact_integers(dtype: torch.dtype, scheme: str) -> None:
    """The first codes are exact, so everything up to the first norm is the same in both."""
    case = Case(SMALL, 33, scheme, dtype)
    a, b = (run(case, backend) for backend in BACKENDS)
    if SCHEMES[scheme][0] == 2:
        assert_identical(a["kr_cache"], b["kr_cache"])
    assert a["latent"].dtype == b["latent"].dtype
    differs = (a["latent"].float() - b["latent"].float()).abs()
    assert float((differs > 0).float().mean()) < (5e-3 if scheme != "float" else 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_codes_of_the_caller_are_what_float_activations_give(backend: str) -> None:
    case = Case(SMALL, 9, "dynamic", torch.bfloat16)
    wanted = run(case, backend)
    x = case.arguments["token_x"].float()
    scale = x.abs().amax(1, keepdim=True) / 127
    codes = (x / scale).round().to(torch.int8)
    got = run(case, backend, token_x=codes, dequant_scale_x=scale)
    for name, tensor in wanted.items():
        assert_identical(got[name], tensor, name=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_beyond_the_integers_of_f32(backend: str) -> None:
    """A bias of the opposite sign shows whether sums above 2^24 were rounded before it."""
    case = Case(Shape("long", 2048, 64, 2, 32, 16, 128), 16, "static", torch.float32)
    weight = torch.full((2048, 64), 127, dtype=torch.int8)
    weight[0] -= torch.arange(64, dtype=torch.int8)
    x = torch.full((16, 2048), 10.0)  # saturates: all codes 127
    total = int_matmul(torch.full((1, 2048), 127, dtype=torch.int8), weight.T)[0]
    assert int(total.min()) > 1 << 24
    bias = 3 - total + torch.arange(64, dtype=torch.int32) % 7
    got = run(
        case,
        backend,
        token_x=x,
        weight_dq=weight,
        quant_bias_dq=bias.int(),
        rmsnorm_gamma_cq=torch.ones(64),
        dequant_scale_w_dq=torch.ones(64),
        query_norm_quantised=False,
    )["latent"]
    exact = (3 + torch.arange(64) % 7).double()
    wanted = exact / (exact.square().mean() + 1e-5).sqrt()
    torch.testing.assert_close(got, wanted.float().expand(16, -1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_quantised_query(backend: str) -> None:
    case = Case(SMALL, 9, "dynamic", torch.bfloat16)
    plain, got = run(case, backend), run(case, backend, query_quant_mode=1)
    wide = plain["query"].float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    assert_identical(got["query_scale"], scale)
    assert_identical(got["query"], (wide / scale).round().to(torch.int8))
    assert_identical(got["query_rope"], plain["query_rope"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", ["float", "static"])
def test_packed_rows(scheme: str, backend: str) -> None:
    case = Case(WIDE, 9, scheme, torch.bfloat16)
    plain = run(case, backend)
    blocks = plain["kv_cache"].shape[0]
    caches = [torch.full((blocks, 16, 1, 656), 77, dtype=torch.int8) for _ in range(2)]
    modes = {"kv_cache_quant_mode": 3, "ckvkr_repo_mode": 1, "quant_scale_repo_mode": 1}
    mlapo(**case.fresh(kv_cache=caches[0], kr_cache=torch.empty(0), **modes), backend=backend)
    slots = case.arguments["cache_index"]
    rows = [plain[name].flatten(0, 2)[slots.clamp(min=0)] for name in ("kv_cache", "kr_cache")]
    for row in rows:
        row[slots < 0] = 0
    write_kv_rows(caches[1].squeeze(2), *rows, slots, backend="reference")
    assert_identical(caches[0], caches[1])
    latent, _ = read_kv_rows(caches[0].squeeze(2), slots, backend="reference")
    torch.testing.assert_close(latent, rows[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("backend", BACKENDS)
def test_columns_of_one_cache_and_other_strides(backend: str) -> None:
    """vLLM keeps latent and rotated key side by side; weights come in either order."""
    for scheme in ("float", "dynamic", "static"):
        case = Case(SMALL, 9, scheme, torch.float32)
        wanted = run(case, backend)
        blocks = wanted["kv_cache"].shape[0]
        both = torch.full((blocks, 16, 1, 256 + 64 + 7), torch.nan)
        changes: dict[str, Any] = {"kv_cache": both[..., :256], "kr_cache": both[..., 256:320]}
        a = case.arguments
        for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
            changes[name] = a[name].contiguous()
        changes["weight_uk"] = a["weight_uk"].transpose(1, 2).contiguous().transpose(1, 2)
        changes["token_x"] = torch.cat((a["token_x"], a["token_x"]), 1)[:, :192]
        for name in ("rope_cos", "rope_sin"):
            changes[name] = torch.cat((a[name], a[name]), 1)
        for name in a:
            if "gamma" in name or "quant_bias" in name or "dequant_scale" in name:
                changes[name] = torch.stack((a[name], -a[name]), -1)[..., 0]
        got = dict(zip(NAMES, mlapo(**{**a, **changes}, backend=backend), strict=True))
        for name in NAMES:
            assert_identical(got[name], wanted[name], name=name)
        parts = [wanted["kv_cache"], wanted["kr_cache"]]
        assert_identical(both[..., :320].contiguous(), torch.cat(parts, -1))
        assert both[..., 320:].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_and_sequence_axes_and_no_tokens(backend: str) -> None:
    case = Case(SMALL, 6, "dynamic", torch.bfloat16)
    wanted = run(case, backend)
    split = {n: case.arguments[n].view(2, 3, -1) for n in ("token_x", "rope_cos", "rope_sin")}
    got = run(case, backend, cache_index=case.arguments["cache_index"].view(2, 3).int(), **split)
    for name in ("query", "query_rope", "latent", "latent_scale"):
        assert_identical(got[name], wanted[name].view(2, 3, *wanted[name].shape[1:]), name=name)
    assert_identical(got["kv_cache"], wanted["kv_cache"])
    none = {n: case.arguments[n][:0] for n in ("token_x", "rope_cos", "rope_sin", "cache_index")}
    got = run(case, backend, **none)
    assert got["query"].shape == (0, 4, 256)
    assert got["latent_scale"].shape == (0, 1)
    assert got["kv_cache"].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_stage_equals_transformers(backend: str) -> None:
    """Scores of absorbed queries over the caches = scores of transformers' expanded heads."""
    module, x, positions, _, _ = make_attention(16)
    seen: list[tuple[Tensor, Tensor]] = []
    eager = modeling.eager_attention_forward

    def record(module: Any, query: Tensor, key: Tensor, *rest: Any, **options: Any) -> Any:
        seen.append((query, key))
        return eager(module, query, key, *rest, **options)

    latents: list[Tensor] = []
    hook = module.q_a_layernorm.register_forward_hook(lambda _, __, out: latents.append(out))
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.float64)
    with (
        double_precision(),
        torch.no_grad(),
        mock.patch.object(modeling, "eager_attention_forward", record),
    ):
        tables = F32Angles(THETA, 64)(x, positions[None])
        module(x[None], tables, mask, position_ids=positions[None])
    hook.remove()
    query, key = seen[0]
    cos, sin = rotary_table(positions, 64, THETA)
    up = module.kv_b_proj.weight.detach().view(4, 88, 128)
    slots = torch.randperm(14 * 16)[:TOKENS]
    kv_cache, kr_cache = (torch.zeros(14, 16, 1, n, dtype=torch.float64) for n in (128, 64))
    results = mlapo(
        x,
        module.q_a_proj.weight.detach().T,
        module.q_b_proj.weight.detach().T,
        up[:, :48],
        module.kv_a_proj_with_mqa.weight.detach().T,
        module.q_a_layernorm.weight.detach(),
        module.kv_a_layernorm.weight.detach(),
        sin,
        cos,
        kv_cache,
        kr_cache,
        cache_index=slots,
        rmsnorm_epsilon_cq=1e-6,
        rmsnorm_epsilon_ckv=1e-6,
        query_norm_flag=True,
        backend=backend,
    )
    latent, rotated = kv_cache.flatten(0, 2)[slots], kr_cache.flatten(0, 2)[slots]
    scores = torch.einsum("thl,sl->hts", results[0], latent)
    scores += torch.einsum("thr,sr->hts", results[1], rotated)
    torch.testing.assert_close(scores, (query @ key.mT)[0], rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(results[3], latents[0][0], rtol=1e-12, atol=1e-13)
