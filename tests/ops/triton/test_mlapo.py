"""MLA pre-processing in Triton, interpreted: conformance, hostile calls, planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.errors import ArgumentError, Declined
from glm5_ascend.ops.mlapo import triton_kernel as host
from glm5_ascend.ops.mlapo import triton_products, triton_source
from glm5_ascend.ops.mlapo.triton_tiles import PART, TABLE, Tiles, choose
from glm5_ascend.ops.verify.mla import Sizes
from glm5_ascend.ops.verify.mlapo import MlapoCase, MlapoProblem
from glm5_ascend.ops.verify.runner import public, run_one
from tests.ops.triton.planted import plant

# Nothing is a multiple of a tile; two parts of the first product.
TINY = Sizes(96, 40, 2, 24, rope=16, latent=72)
PARTS = Sizes(PART + 76, 48, 1, 16, rope=16, latent=32)
WIDE = Sizes(PART + 76, PART + 44, 1, 16, rope=16, latent=32)
ROWS = Sizes(64, 32, 1, 16)  # latents as packed rows have them
MODES: tuple[dict[str, Any], ...] = (
    {"mode": 0},
    {"mode": 1},
    {"mode": 2},
    {"mode": 2, "static": True},
)
# Several tiles of tokens, sums in one go, the input quantised beforehand.
LONG = Tiles(1 << 62, 32, 16, 32, 32, 16, 4, 2, False, 0, 0, False)
# Long sums in few steps.
DEEP = LONG._replace(columns=512, terms=256)


def cases() -> Iterator[MlapoCase]:
    for mode in MODES:
        yield MlapoCase(tokens=5, sizes=TINY, **mode)
        yield MlapoCase(tokens=2, sizes=PARTS, **mode)
    yield MlapoCase(tokens=1, sizes=Sizes(384, 256, 2, 192), mode=2)
    for packed in MODES[0], MODES[3]:
        yield MlapoCase(tokens=4, sizes=ROWS, packed=True, **packed)
    for dtype in (torch.float32, torch.float16):
        yield MlapoCase(tokens=5, sizes=TINY, dtype=dtype, std=1e-2)
        yield MlapoCase(tokens=5, sizes=TINY, dtype=dtype, mode=2, std=1e-2)
    yield MlapoCase(tokens=5, sizes=TINY, mode=2, codes=True)
    for static in (False, True):
        yield MlapoCase(tokens=3, sizes=TINY, mode=2, latent_codes=True, static=static)
    yield MlapoCase(tokens=3, sizes=TINY, mode=2, int8_query=True)


def problem_of(case: MlapoCase) -> str:
    result = run_one(case, case.problem(), "triton", public("triton"))
    assert not result.declined
    assert result.error is None
    return result.figures.problem


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_conforms(case: MlapoCase) -> None:
    assert problem_of(case) == ""


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_long_calls_conform(mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "choose", lambda tokens, size: LONG)
    assert problem_of(MlapoCase(tokens=18, sizes=TINY, **mode)) == ""


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_long_sums_conform(mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "choose", lambda tokens, size: DEEP)
    assert problem_of(MlapoCase(tokens=2, sizes=WIDE, **mode)) == ""


def test_split_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = MlapoCase(tokens=3, sizes=PARTS, dtype=torch.float32).problem()
    monkeypatch.setattr(host, "choose", lambda tokens, size: DEEP)
    whole = problem.run(public("triton"))
    monkeypatch.setattr(host, "choose", lambda tokens, size: DEEP._replace(split=True))
    split = problem.run(public("triton"))
    for name, bits in split.items():
        assert torch.equal(bits.view(torch.uint8), whole[name].view(torch.uint8))


def test_tiles() -> None:
    for size, table in TABLE.items():
        assert [tiles.most for tiles in table] == sorted({tiles.most for tiles in table})
        for tiles in table:
            assert choose(tiles.most, size) is tiles
            assert PART % tiles.terms == 0
            # The first product looks for its tokens' scales in one tile.
            assert max(tiles.fuse_dynamic, tiles.fuse_static) <= tiles.tokens


# F32 activations and int8 weights: exact sums, so that codes are the reference's.
EXACT = MlapoCase(tokens=5, sizes=TINY, mode=2, dtype=torch.float32, latent_codes=True)


class Call:
    """Arguments of one call of ``case``, to be changed."""

    def __init__(self, case: MlapoCase = EXACT) -> None:
        self.problem = case.problem()
        assert isinstance(self.problem, MlapoProblem)
        self.caches = self.problem._caches()
        index = torch.arange(case.tokens)
        self.arguments = self.problem._arguments(index, self.caches)

    def agree(self) -> tuple[Tensor, ...]:
        """Results of ``triton``, which are those of ``reference``: codes exactly, floats nearly."""
        found = []
        for backend in ("triton", "reference"):
            caches = {name: self.arguments[name].clone() for name in self.caches}
            # A copy of columns is dense.
            for name, cache in caches.items():
                wide = torch.zeros(*cache.shape[:3], self.arguments[name].stride(1)).to(cache.dtype)
                caches[name] = wide[..., : cache.shape[3]].copy_(cache)
            results = ops.mlapo(**(self.arguments | caches), backend=backend)
            found.append([*results, *caches.values()])
        for ours, theirs in zip(*found, strict=True):
            near(ours, theirs)
        return tuple(found[0])


def near(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype
    if not ours.is_floating_point():
        assert torch.equal(ours, theirs)
        return
    finite = theirs[theirs.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6 * scale, equal_nan=True)


def test_agrees() -> None:
    Call().agree()


@pytest.mark.parametrize("factor", [0.0, -0.0, 1e-30, 1e30, 1e-44], ids=str)
def test_extreme_inputs(factor: float) -> None:
    call = Call()
    call.arguments["token_x"] = call.arguments["token_x"] * factor
    call.agree()


@pytest.mark.parametrize("name", ["uq_qr", "dq", "dkv_kr"])
@pytest.mark.parametrize("factor", [1e-30, 1e15])
def test_extreme_scales(name: str, factor: float) -> None:
    call = Call()
    call.arguments[f"dequant_scale_w_{name}"] *= factor
    call.agree()


def test_a_nan_stays_in_its_token() -> None:
    call = Call()
    call.arguments["token_x"][1, 3] = torch.nan
    results = call.agree()
    assert results[1].isnan().flatten(1).all(1).tolist() == [i == 1 for i in range(5)]
    assert not results[1][[0, 2, 3, 4]].isnan().any()


def test_padding_writes_nothing() -> None:
    call = Call()
    call.arguments["cache_index"] = torch.full((5,), -1)
    before = {name: cache.clone() for name, cache in call.caches.items()}
    *_, kv, kr = call.agree()
    for found, name in ((kv, "kv_cache"), (kr, "kr_cache")):
        assert torch.equal(found.view(torch.int32), before[name].view(torch.int32))


def test_weights_of_any_strides() -> None:
    call = Call()
    for name in ("weight_dq", "weight_uq_qr"):
        call.arguments[name] = call.arguments[name].contiguous()
    spread = torch.zeros(2, 72, 24 * 2)
    spread[..., ::2] = call.arguments["weight_uk"].transpose(1, 2)
    call.arguments["weight_uk"] = spread[..., ::2].transpose(1, 2)
    call.agree()
    call.arguments["weight_dkv_kr"] = call.arguments["weight_dkv_kr"].contiguous()
    call.agree()


def test_inputs_with_gaps() -> None:
    call = Call()
    wide = torch.randn(5, 99, generator=torch.Generator().manual_seed(1))
    call.arguments["token_x"] = wide[:, :96]
    for name in ("rope_cos", "rope_sin"):
        table = call.arguments[name]
        call.arguments[name] = torch.cat((table, table), 1).double()
    slots = torch.stack((call.arguments["cache_index"].int(), torch.zeros(5).int()), 1)
    call.arguments["cache_index"] = slots[:, 0]
    for name, cache in call.caches.items():
        call.arguments[name] = torch.zeros(*cache.shape[:3], cache.shape[3] + 3)[..., :-3]
    call.agree()


def test_batches_of_sequences() -> None:
    call = Call(MlapoCase(tokens=6, sizes=TINY, mode=2, dtype=torch.float32))
    for name in ("token_x", "rope_cos", "rope_sin", "cache_index"):
        call.arguments[name] = call.arguments[name].unflatten(0, (2, 3))
    assert call.agree()[0].shape == (2, 3, 2, 72)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(MlapoCase(tokens=1, sizes=TINY, dtype=torch.float64))
    with pytest.raises(Declined, match="float64"):
        ops.mlapo(**call.arguments, backend="triton")
    monkeypatch.setattr("glm5_ascend.ops.triton.runtime.INTERPRETED", False)
    with pytest.raises(ArgumentError, match="takes CUDA tensors"):
        ops.mlapo(**Call().arguments, backend="triton")


FLOAT = MlapoCase(tokens=3, sizes=TINY)
SMALL = MlapoCase(tokens=3, sizes=TINY, std=1e-3, dtype=torch.float32)
DYNAMIC = MlapoCase(tokens=3, sizes=TINY, mode=2)
STATIC = MlapoCase(tokens=3, sizes=TINY, mode=2, static=True)
SPLIT = MlapoCase(tokens=1, sizes=PARTS, mode=2)
PACKED = MlapoCase(tokens=2, sizes=ROWS, packed=True)
DEEP_CASE = MlapoCase(tokens=1, sizes=WIDE, mode=2)
DEEP_FLOAT = MlapoCase(tokens=1, sizes=WIDE)
# right, wrong, a case to notice it; with LONG or DEEP tiles where the name says so.
FAULTS = {
    "q latent not normed": ("norm(raw, gamma_q", "raw + 0 * norm(raw, gamma_q", FLOAT),
    "cache row not normed": ("norm(raw, gamma, c", "raw + 0 * norm(raw, gamma, c", FLOAT),
    "gamma forgotten": ("* gain.to(tl.float32)", "+ 0 * gain.to(tl.float32)", FLOAT),
    "epsilon ignored": ("mean + eps", "mean + 0 * eps", SMALL),
    "epsilon of the other norm's row": ("/ WIDTH\n", "/ (WIDTH + 1)\n", SMALL),
    "keys turned in halves": (
        "tl.reshape(x, (RP // 2, 2))", "tl.trans(tl.reshape(x, (2, RP // 2)))", FLOAT
    ),
    "queries turned in halves": (
        "tl.reshape(x, (BT, RP // 2, 2))",
        "tl.permute(tl.reshape(x, (BT, 2, RP // 2)), (0, 2, 1))", FLOAT,
    ),
    "turned backwards": ("odd * c + even * s", "odd * c - even * s", FLOAT),
    "another slot": (
        "slot = tl.load(slots + token)", "slot = tl.load(slots + tl.num_programs(0) - 1 - token)",
        FLOAT,
    ),
    "padding written": (
        "slot = tl.load(slots + token)", "slot = tl.abs(tl.load(slots + token))", FLOAT
    ),
    "bf16 product": ("dot(a, b, INTERPRET)", "dot(a, b, False)", FLOAT),
    "last terms dropped": ("some = term < end", "some = term < end - 1", FLOAT),
    "rope read as nope": ("turn(line + D", "turn(line", FLOAT),
    "nope of another head": ("head * (D + R)", "head * D", FLOAT),
    "W_UK of another head": ("w + head * w_head", "w", FLOAT),
    "scales of the q latent for both": ("scale_kv, bias_kv, row", "scale_q, bias_kv, row", DYNAMIC),
    "tokens' scales forgotten": ("y = y * row_scale", "y = y * 1.0", DYNAMIC),
    "scale of 128": (
        "token == row, tl.div_rn(largest(peak, 0), 127.0)",
        "token == row, tl.div_rn(largest(peak, 0), 128.0)", DYNAMIC,
    ),
    "offset forgotten": ("+ tl.load(offset)", "+ 0 * tl.load(offset)", STATIC),
    "bias forgotten": ("+= tl.load(bias + column", "+= 0 * tl.load(bias + column", STATIC),
    "last part dropped": ("static_range(1, PARTS)", "static_range(1, PARTS - 1)", SPLIT),
    "parts overlap": ("begin, end = which * part", "begin, end = which * (part - 1)", SPLIT),
    "packed rope elsewhere": ("store_rope(kv + L,", "store_rope(kv + L - 2,", PACKED),
    "long: scales of the first weight": ("tl.where(second, scale2, scale)", "scale", DYNAMIC),
    "long: bias of the first weight": ("tl.where(second, bias2, bias)", "bias", STATIC),
    "long: columns of the first weight": ("tl.where(second, columns, 0)", "0 * columns", FLOAT),
    "long: tokens' scales forgotten": ("*= tl.load(x_scale", "*= 1 + 0 * tl.load(x_scale", DYNAMIC),
    "deep: terms of one part": ("tl.minimum(terms, (which + 1) * part)", "1024", DEEP_CASE),
    "deep: parts dropped": ("range(0, terms, part)", "range(0, part, part)", DEEP_FLOAT),
    "long: scale of 128": (
        "scales + row, tl.div_rn(largest(peak, 0), 127.0)",
        "scales + row, tl.div_rn(largest(peak, 0), 128.0)", DYNAMIC,
    ),
    "long: second weight not read": ("tl.where(second, w2, w)", "w", FLOAT),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right, wrong, case = FAULTS[name]
    for prefix, tiles in (("long", LONG), ("deep", DEEP)):
        if name.startswith(prefix):
            monkeypatch.setattr(host, "choose", lambda tokens, size, tiles=tiles: tiles)
    texts = {
        each: Path(str(each.__file__)).read_text() for each in (triton_source, triton_products)
    }
    source = next(each for each, text in texts.items() if right in text)
    plant(source, [host], right, wrong, tmp_path, monkeypatch)
    with np.errstate(all="ignore"):
        assert problem_of(case)


@pytest.mark.parametrize("case", [FLOAT, SMALL, DYNAMIC, STATIC, SPLIT, PACKED], ids=str)
def test_right_source_passes(case: MlapoCase) -> None:
    assert problem_of(case) == ""
