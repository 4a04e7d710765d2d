"""Backend torch_npu of mlapo: refusals by size, and the translation of what the operator takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.mlapo import mlapo
from glm5_ascend.ops.mlapo import torch_npu_op as backend
from tests.ops.mlapo_cases import GLM5, Case, Shape
from tests.ops.npu import formulas
from tests.ops.npu.vendor import FakeVendor

TAKEN = Shape("taken", 6144, 1536, 1, 128, 64, 512)


def arguments(scheme: str, shape: Shape = TAKEN, **changes: Any) -> dict[str, Any]:
    """Of ``mlapo``: BF16, a slot for every token, angles that BF16 holds."""
    given = Case(shape, 3, scheme, torch.bfloat16).fresh()
    for name in ("rope_cos", "rope_sin"):
        given[name] = given[name].bfloat16().float()
    given["cache_index"] = torch.tensor([5, 0, 17], dtype=torch.int32)
    if given["weight_quant_mode"] == 2 and scheme == "dynamic":
        x = given["token_x"].float()
        scale = x.abs().amax(-1, keepdim=True) / 127
        given |= {"token_x": (x / scale).round().to(torch.int8), "dequant_scale_x": scale}
    return given | changes


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if not found.numel():
        return
    if found.dtype == torch.int8:
        assert (found.int() - wanted.int()).abs().max() <= 1
        return
    error = (found.double() - wanted.double()).abs().max()
    assert error <= 0.02 * wanted.double().abs().max()


@pytest.mark.parametrize("scheme", ["float", "up", "dynamic"])
def test_results_and_caches_are_the_contract_s(scheme: str, vendor: FakeVendor) -> None:
    given = arguments(scheme)
    wanted_caches = {name: given[name].clone() for name in ("kv_cache", "kr_cache")}
    wanted = mlapo(**given | wanted_caches, backend="reference")
    found = mlapo(**given, backend="torch_npu")
    for each, expected in zip(found, wanted, strict=True):
        close(each, expected)
    used = given["cache_index"].long()
    for name, expected in wanted_caches.items():
        rows, other = (c.view(-1, c.shape[-1]) for c in (given[name], expected))
        close(rows[used], other[used])
        assert rows.isnan().any(-1).sum() == len(rows) - 3
    names = [name for name, _ in vendor.calls]
    assert names == ["npu_format_cast"] * 3 + ["npu_mla_prolog_v3"]
    call = vendor.calls[-1][1]
    assert call["rope_cos"].dtype == torch.bfloat16
    assert call["rope_cos"].shape == (3, 64)
    assert call["weight_quant_mode"] == given["weight_quant_mode"]


def test_weights_are_cast_once_and_again_after_a_write(vendor: FakeVendor) -> None:
    given = arguments("float")
    for _ in range(2):
        mlapo(**given, backend="torch_npu")
    casts = [name for name, _ in vendor.calls].count("npu_format_cast")
    assert casts == 3
    given["weight_dq"].mul_(0.5)
    vendor.calls.clear()
    mlapo(**given, backend="torch_npu")
    assert [name for name, _ in vendor.calls].count("npu_format_cast") == 1


def tiny(**sizes: int) -> Shape:
    base = {"hidden": 6144, "q_lora": 1536, "heads": 1, "nope": 128, "rope": 64, "kv_lora": 512}
    return Shape("tiny", **base | sizes)


BREAKING: dict[str, tuple[str, Shape, dict[str, Any]]] = {
    "a q_lora size of 1536 (GLM-5 has 2048)": ("float", tiny(q_lora=64), {}),
    "unrotated parts of 128 dims": ("float", tiny(nope=64), {}),
    "a kv_lora size of 512": ("float", tiny(kv_lora=256), {}),
    "rotated parts of 64": ("float", tiny(rope=32), {}),
    "hidden sizes of 6144": ("float", tiny(hidden=64), {}),
    ".. 128 heads": ("float", tiny(heads=3), {}),
    "no static scales": ("static", TAKEN, {}),
    "int8 codes of x": ("dynamic", TAKEN, {"dequant_scale_x": None}),
    "16 or 128 rows": (
        "float",
        TAKEN,
        {n: torch.zeros(4, 32, 1, d).bfloat16() for n, d in (("kv_cache", 512), ("kr_cache", 64))},
    ),
    "a query in bfloat16": ("float", TAKEN, {"query_quant_mode": 1}),
    "a q latent in the format": ("up", TAKEN, {"query_norm_quantised": False}),
    "not -1": ("float", TAKEN, {"cache_index": torch.tensor([3, -1, 4])}),
}


@pytest.mark.parametrize("words", BREAKING)
def test_each_limit_by_name(words: str, vendor: FakeVendor) -> None:
    scheme, shape, changes = BREAKING[words]
    given = arguments(scheme, shape, **changes)
    if words == "int8 codes of x":
        given["token_x"] = torch.randn(3, shape.hidden).bfloat16()
    with pytest.raises(Declined, match=f"npu_mla_prolog_v3 takes .*{words.split('(')[0]}"):
        mlapo(**given, backend="torch_npu")
    assert vendor.calls == []


def test_glm5_is_refused_by_its_sizes() -> None:
    takes = [limit.takes for limit in backend.LIMITS[:2]]
    assert f"(GLM-5 has {GLM5.q_lora})" in takes[0]
    assert f"(GLM-5 has {GLM5.nope})" in takes[1]


def test_auto_never_takes_it(vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch) -> None:
    from glm5_ascend.ops import dispatch

    monkeypatch.setattr(dispatch, "_PREFERRED", {"cpu": ("torch_npu",)})
    given = arguments("float")
    mlapo(**given)
    assert vendor.calls == []


def test_a_missing_q_latent_is_an_error(
    vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documentation of 2.13.0 calls this result reserved."""
    prolog = formulas.npu_mla_prolog_v3

    def without(*given: Any, **options: Any) -> tuple[Tensor, ...]:
        query, rope, _, _, _ = prolog(*given, **options)
        return query, rope, torch.zeros(1), torch.zeros(1), torch.zeros(1)

    monkeypatch.setattr(formulas, "npu_mla_prolog_v3", without)
    with pytest.raises(BackendUnavailable, match="returns no q latent"):
        mlapo(**arguments("float"), backend="torch_npu")


def test_a_rotation_of_other_pairs_would_be_noticed(
    vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_neighbours", lambda halves: halves)
    given = arguments("float")
    caches = {name: given[name].clone() for name in ("kv_cache", "kr_cache")}
    wanted = mlapo(**given | caches, backend="reference")
    found = mlapo(**given, backend="torch_npu")
    with pytest.raises(AssertionError):
        close(found[1], wanted[1])
