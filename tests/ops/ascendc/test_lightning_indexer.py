"""The AscendC kernels of the lightning indexer on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.emulator.launch import Options
from glm5_ascend.ops.emulator.report import Order, Report
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.lightning_indexer import emulated
from glm5_ascend.ops.lightning_indexer.emulated import PRODUCTION, REDUCED, Call, Settings
from glm5_ascend.ops.verify import suite
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.runner import public, run_one
from tests.ops.ascendc import mutants

CPU = torch.device("cpu")
DIRECT = Options(isolated=False)
EXPLAINED = Path(emulated.__file__).parent / "ascendc" / "mutants.toml"


@dataclass(frozen=True)
class Scene:
    """Requests of ``queries[b]`` tokens and ``keys[b]`` keys, and the blocks that share them."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    blocks: int = 2
    heads: int = 16
    dtype: torch.dtype = torch.bfloat16
    weights: torch.dtype = torch.float32
    page: int = 0
    count: int = 64
    causal: bool = True
    by_score: bool = False
    spread: float = 1.0  # of the keys; 0: all are equal
    scale: float = 1.0  # of the queries; products beyond F16 if it is large

    def call(self, seed: int = 0) -> Call:
        """Random arguments; what no request uses of a page is NaN, or 127 in int8."""
        gen = torch.Generator().manual_seed(seed)
        tokens = sum(self.queries)
        query = self.scale * torch.randn(tokens, self.heads, 128, generator=gen)
        weights = torch.randn(tokens, self.heads, generator=gen).to(self.weights)
        key, keys = self._keys(gen)
        requests = Queries(_starts(self.queries), list(self.queries), tokens)
        call = partial(Call, count=self.count, causal=self.causal, by_score=self.by_score)
        if self.dtype != torch.int8:
            return call(query.to(self.dtype), key.to(self.dtype), weights, requests, keys)
        codes = [(30 * x).nan_to_num(127).round().clamp(-127, 127) for x in (query, key)]
        query_scale = torch.rand(tokens, self.heads, generator=gen).to(self.weights)
        key_scale = torch.rand(len(key), generator=gen).to(self.weights)
        scales = {"query_scale": query_scale, "key_scale": key_scale}
        return call(*(x.to(torch.int8) for x in codes), weights, requests, keys, **scales)

    def _keys(self, gen: torch.Generator) -> tuple[Tensor, Keys]:
        rows = [torch.randn(n, 128, generator=gen) for n in self.keys]
        rows = [torch.lerp(rows[0][:1].expand_as(row), row, self.spread) for row in rows]
        if not self.page:
            return torch.cat(rows), Keys(list(self.keys), _starts(self.keys), CPU)
        needed = [-(-n // self.page) for n in self.keys]
        free = torch.randperm(sum(needed) + 2, generator=gen).tolist()
        table = torch.zeros(len(rows), max(needed), dtype=torch.int32)
        pool = torch.full((len(free), self.page, 128), torch.nan)
        for b, count in enumerate(needed):
            for i in range(count):
                block = free.pop()
                table[b, i] = block
                part = rows[b][i * self.page : (i + 1) * self.page]
                pool[block, : len(part)] = part
        return pool.flatten(0, 1), Keys(list(self.keys), [], CPU, table, self.page)


def _starts(lengths: tuple[int, ...]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]


F16, INT8 = torch.float16, torch.int8
SCENES = {
    # One row over all AIVs, merged at two levels.
    "decode": Scene((1,), (1500,), blocks=3, count=100),
    # Four rows over five blocks, so that an AIV merges two of them at a level.
    "spread": Scene((4,), (1200,), blocks=5, count=100),
    "ranked": Scene((4,), (1200,), blocks=5, by_score=True),
    # No list can be cut where all scores are equal.
    "ties": Scene((4, 1), (1200, 900), blocks=7, count=100, spread=0.0),
    "drafts": Scene((4, 3, 1, 2), (700, 333, 40, 7), 3, heads=32, dtype=F16, weights=F16, page=16),
    "int8": Scene((2, 1, 4), (500, 700, 130), 3, dtype=INT8, weights=F16, page=32, count=100),
    # Many small segments per block, rows without keys, by score.
    "short": Scene(
        (1, 2, 1, 1, 3, 1, 1, 6),
        (5, 16, 1, 33, 20, 17, 8, 4),
        weights=torch.bfloat16,
        by_score=True,
    ),
    # One unit per block, so that its second AIV has no keys: merged lists, and lists of parts.
    "thin": Scene((1, 1), (40, 110), blocks=10, count=20),
    "thin_parts": Scene((1, 1), (32, 32), blocks=4, count=20),
    # Rows that see no more than they get, rows of no request.
    "known": Scene((3, 5, 1), (60, 90, 64), blocks=2, page=16, count=64),
    "one_block": Scene((3, 4), (900, 600), 1, heads=32, count=128),
    # Rows of one block, exactly scored where F16 leaves the choice open: all keys, several pieces.
    "alone_ties": Scene((4, 2), (500, 300), 1, heads=64, count=100, spread=0.0, page=32),
    "alone_wide": Scene((2,), (700,), 1, heads=64, dtype=F16, weights=F16, count=90),
    "close": Scene((4, 1), (900, 400), 1, heads=32, count=120, spread=0.05),
    "huge": Scene((3, 2), (600, 200), 2, heads=32, count=70, scale=300.0),
    "wide": Scene((2, 1), (260, 800), 4, heads=64, count=1, causal=False),
    "alone_int8": Scene((4, 3), (900, 300), 1, dtype=INT8, weights=F16, count=100, page=16),
    "int8_direct": Scene((3, 1), (300, 450), 2, heads=48, dtype=INT8, by_score=True),
}


def wanted(call: Call) -> Tensor:
    """int32 [rows, count] in F64 with NumPy; equal scores: the lower position."""
    out = np.full((call.requests.rows, call.count), -1, dtype=np.int32)
    for b, (start, n) in enumerate(zip(call.requests.starts, call.requests.lengths, strict=True)):
        length = call.keys.lengths[b]
        place = call.keys.flat_rows(torch.tensor(b), torch.arange(length))
        key = call.key[place].double().numpy()
        for i in range(n):
            row = start + i
            seen = max(0, length - n + i + 1) if call.causal else length
            weights = call.weights[row].double().numpy()
            if call.query_scale is not None:
                weights = weights * call.query_scale[row].double().numpy()
            # Not BLAS, in which equal keys may differ by where they lie.
            dots = np.einsum("hd,kd->kh", call.query[row].double().numpy(), key[:seen])
            score = np.einsum("h,kh->k", weights, np.maximum(dots, 0))
            if call.key_scale is not None:
                score = score * call.key_scale[place[:seen]].double().numpy()
            best = np.argsort(-score, kind="stable")[: call.count]
            out[row, : len(best)] = best if call.by_score else np.sort(best)
    return torch.from_numpy(out)


def launched(scene: Scene, options: Options, *, seed: int = 0, sanitize: bool = False) -> Report:
    """Report of a reduced kernel, whose result is right if it is clean."""
    call = scene.call(seed)
    settings = Settings(REDUCED, scene.blocks, options, sanitize)
    indices, report = emulated.run(call, settings)
    if report.clean:
        assert torch.equal(indices, wanted(call))
    return report


@pytest.mark.parametrize("name", SCENES)
def test_both_schedulers_run_clean_and_right(
    name: str, seeds: range, record_property: Callable[[str, object], None]
) -> None:
    assert launched(SCENES[name], DIRECT).findings == ()
    record_property("launches", 1 + len(seeds))
    for seed in seeds:
        options = replace(DIRECT, scheduler="random", seed=seed)
        assert launched(SCENES[name], options, seed=seed % 3).findings == ()


@pytest.mark.parametrize("name", SCENES)
def test_no_undefined_behaviour(name: str) -> None:
    assert launched(SCENES[name], DIRECT, sanitize=True).findings == ()


def test_every_mutant_is_reported(record_property: Callable[[str, object], None]) -> None:
    def run(scene: Scene, order: Order | None) -> Report:
        return launched(scene, replace(DIRECT, disabled=order))

    runs = {name: partial(run, scene) for name, scene in SCENES.items()}
    mutants.check(runs, set(mutants.explained(EXPLAINED)), record_property)


def test_result_does_not_depend_on_the_number_of_blocks() -> None:
    for name in ("decode", "drafts", "int8"):
        scene = SCENES[name]
        results = [
            emulated.select(scene.call(), Settings(REDUCED, blocks, DIRECT))[0]
            for blocks in (1, 2, 5, 24)
        ]
        assert all(torch.equal(results[0], each) for each in results[1:])


def test_equal_scores_take_the_lowest_positions_wherever_blocks_meet() -> None:
    scene = Scene((1, 2), (1000, 700), count=120, page=16)
    call = scene.call()
    call = replace(call, key=call.key.nan_to_num(0)[:1].expand_as(call.key).contiguous())
    for blocks in (1, 4):
        indices, _ = emulated.select(call, Settings(REDUCED, blocks, DIRECT))
        assert torch.equal(indices, torch.arange(120, dtype=torch.int32).expand(3, -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, F16, INT8])
def test_production_tiles(dtype: torch.dtype) -> None:
    """A decoding step of GLM-5 at 4k keys, which takes less than 20 s of emulation."""
    scene = Scene((1,), (4096,), 24, 32, dtype, page=128, count=2048)
    call = scene.call()
    indices, report = emulated.select(call, Settings(PRODUCTION, 24))
    assert torch.equal(indices, wanted(call))
    assert report.seconds < 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: replace(c, query=c.query.float()), "float16, bfloat16 or int8"),
        (lambda c: replace(c, query=c.query[:, :8]), "16, 32, 48 or 64 heads"),
        (lambda c: replace(c, count=2049), "at most 2048, not 2049"),
        (lambda c: replace(c, weights=c.weights.double()), "weights in float32"),
        (lambda c: replace(c, keys=Keys([1 << 25], [0], CPU)), "at most 16777216 keys"),
    ],
)
def test_declines_what_the_kernel_does_not_take(change: partial[Call], reason: str) -> None:
    call = Scene((1,), (20,)).call()
    with pytest.raises(Declined, match=reason):
        emulated.select(change(call))


def conforms(case: Case) -> None:
    result = run_one(case, case.problem(), "emulated", public("emulated"))
    if result.declined:
        numbers = (torch.float32, torch.float8_e4m3fn)
        assert case.heads == 8 or case.dtype in numbers or case.with_values  # type: ignore[attr-defined]
    else:
        result.require()


QUICK = [case for case in suite.indexer() if case.size == "quick"]
# `make test` takes every sixth of the others; `make nightly` has full cases, so all of them.
REST = [
    replace(case, size="normal" if i % 6 == 0 and case.size == "normal" else "full")
    for i, case in enumerate(suite.indexer())
    if case.size != "quick"
]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_conforms(case: Case) -> None:
    conforms(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=str)
def test_conforms_in_every_case_and_at_full_size(case: Case) -> None:
    conforms(case)
