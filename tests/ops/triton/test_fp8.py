"""e4m3 codes with every F32 scale that a cache may hold: 2^-40 to 2^40, zero, denormal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import kv_quant_sparse_flash_attention, lightning_indexer_quant
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.triton import tuning
from glm5_ascend.ops.triton.tuning import Attention, Indexer
from glm5_ascend.ops.verify.attention import AttentionCase, PackedProblem
from glm5_ascend.ops.verify.attention_data import AttentionShape, draw, draw_indices
from glm5_ascend.ops.verify.compare import require
from glm5_ascend.ops.verify.indexer import IndexerCase, IndexerProblem
from glm5_ascend.ops.verify.indexer_data import draw as draw_keys
from glm5_ascend.ops.verify.packed import e4m3_values, pack_fp8, unpack_fp8
from glm5_ascend.ops.verify.requests import Requests
from glm5_ascend.ops.verify.runner import public

E4M3 = torch.float8_e4m3fn
REQUESTS = Requests("scales", ((2, 40), (1, 17)), seed=9)
BACKENDS = ("reference", "triton")


def scales(shape: tuple[int, ...], low: int, high: int, seed: int) -> Tensor:
    """Any F32 from 2^low to 2^high, a tenth of them zero, a tenth denormal."""
    gen = torch.Generator().manual_seed(seed)
    exponent = low + (high - low) * torch.rand(shape, generator=gen, dtype=torch.float64)
    each, kind = exponent.exp2().float(), torch.rand(shape, generator=gen)
    denormal = torch.full(shape, 1.7e-41)
    return torch.where(kind < 0.1, 0.0, torch.where(kind < 0.2, denormal, each))


def test_values_of_the_codes() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3)
    assert np.array_equal(codes.float().numpy(), e4m3_values(), equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("low", "high"), [(-40, 40), (-40, -36), (36, 40), (-2, 2)])
def test_attention(low: int, high: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Attention("heads", 16, 4, 1, 2, part=8)
    monkeypatch.setattr(tuning, "attention", lambda *_: how)
    # Queries that leave the softmax neither flat nor on one key.
    case = AttentionCase(
        requests=REQUESTS, shape=AttentionShape(4), packed=True, fp8=True, count=24,
        std=2.0 ** (-high - 7),
    )  # fmt: skip
    data = draw(case.requests, case.shape, case.dtype, case.std, 0)
    data = replace(data, indices=draw_indices(REQUESTS, 24, 1, "selected", 0, causal=True))
    rows = []
    for latent, rope in zip(data.latent, data.key_rope, strict=True):
        each = scales((len(latent), 4), low, high, len(latent))
        tiles = latent.float().view(len(latent), 4, -1) * 100 * each[..., None]
        rows.append(pack_fp8(tiles.flatten(1), rope * 2.0**high, each))
    latents, ropes = zip(*map(unpack_fp8, rows), strict=True)
    problem = PackedProblem(case, replace(data, latent=latents, key_rope=ropes), rows)
    require(problem.judge(problem.run(public(backend))))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fused", [False, True])
def test_indexer(fused: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Indexer(32, 64, 4, 1, *((32, 64) if fused else ()))
    monkeypatch.setattr(tuning, "indexer", lambda *_: how)
    case = IndexerCase(requests=REQUESTS, heads=16, dtype=E4M3, count=4)
    data = draw_keys(REQUESTS, 16, 128, "random", 0).cast(E4M3, torch.float32)
    assert data.key_scale is not None
    each = [scales(tuple(k.shape), -40, 40, len(k)) for k in data.key_scale]
    problem = IndexerProblem(case, replace(data, key_scale=each))
    require(problem.judge(problem.run(public(backend))))


def test_other_backends_say_what_they_lack() -> None:
    case = IndexerCase(requests=REQUESTS, heads=16, dtype=E4M3, count=4)
    problem = case.problem()
    for backend in ("cpu", "auto"):
        with pytest.raises(Declined, match="does not take float8_e4m3fn") as caught:
            problem.run(lambda _, b=backend, **x: lightning_indexer_quant(**x, backend=b))
        assert "'reference'" in caught.value.hint
    rows = AttentionCase(requests=REQUESTS, shape=AttentionShape(4), packed=True, fp8=True)
    with pytest.raises(Declined, match="'cpu' of kv_quant_sparse_flash_attention does not take"):
        rows.problem().run(lambda _, **x: kv_quant_sparse_flash_attention(**x, backend="cpu"))
