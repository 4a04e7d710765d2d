"""The AscendC kernels of sparse flash attention on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.emulator.launch import Options
from glm5_ascend.ops.emulator.report import Order, Report
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.sparse_flash_attention import emulated
from glm5_ascend.ops.sparse_flash_attention.emulated import LEAST, How, Tiles
from glm5_ascend.ops.verify import suite
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.packed import pack, unpack
from glm5_ascend.ops.verify.runner import public, run_one
from tests.ops.ascendc import mutants

BF16, F16 = torch.bfloat16, torch.float16
DIRECT = Options(isolated=False)
EXPLAINED = Path(emulated.__file__).parent / "ascendc" / "mutants.toml"
SCALE = 1 / 16


@dataclass(frozen=True)
class Scene:
    """Requests of (query tokens, keys); ``slots`` indices per token, ``holes`` in percent of -1.

    ``cores`` and ``least`` as in ``How``; page 0: keys lie one after the other.
    """

    requests: tuple[tuple[int, int], ...]
    heads: int = 8
    slots: int = 100
    kind: Tiles = emulated.KERNELS[BF16, 256]
    dtype: torch.dtype = BF16
    page: int = 0
    block: int = 1
    holes: int = 0
    causal: bool = True
    with_rope: bool = True
    cores: int = 2
    least: int = 1 << 20
    scale: float = SCALE

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        """Of ``emulated.checked``; rows of nobody are NaN."""
        gen = torch.Generator().manual_seed(seed)
        tokens = sum(q for q, _ in self.requests)
        width = self.kind.latent + 64
        query = torch.randn(tokens, self.heads, width, generator=gen).to(self.dtype)
        rows = [torch.randn(k, width, generator=gen).to(self.dtype) for _, k in self.requests]
        flat, keys = self._keys(rows, gen)
        parts = [flat[:, : self.kind.latent], flat[:, self.kind.latent :]]
        queries = [query[..., : self.kind.latent], query[..., self.kind.latent :]]
        if self.kind.packed:
            used = flat.isfinite().all(-1)
            flat = pack(*(part.nan_to_num(0) for part in parts))
            flat[~used] = -1
            queries, parts = [query], [flat]
        elif not self.with_rope:
            queries, parts = queries[:1], parts[:1]
        starts = [sum(q for q, _ in self.requests[:i]) for i in range(len(self.requests))]
        requests = Queries(starts, [q for q, _ in self.requests], tokens)
        indices = self._indices(gen)
        return {
            "kind": self.kind, "query": queries, "key": parts, "indices": indices,
            "scale": self.scale, "block": self.block, "requests": requests, "keys": keys,
            "causal": self.causal,
        }  # fmt: skip

    def _keys(self, rows: list[Tensor], gen: torch.Generator) -> tuple[Tensor, Keys]:
        lengths = [len(r) for r in rows]
        cpu = torch.device("cpu")
        if not self.page:
            return torch.cat(rows), Keys(lengths, [sum(lengths[:b]) for b in range(len(rows))], cpu)
        needed = [-(-n // self.page) for n in lengths]
        free = torch.randperm(sum(needed) + 2, generator=gen).tolist()
        pool = torch.full((len(free), self.page, rows[0].shape[1]), torch.nan, dtype=rows[0].dtype)
        table = torch.full((len(rows), max(needed) + 1), -1, dtype=torch.int32)
        for b, count in enumerate(needed):
            for i in range(count):
                table[b, i] = free.pop()
                part = rows[b][i * self.page : (i + 1) * self.page]
                pool[table[b, i], : len(part)] = part
        return pool.flatten(0, 1), Keys(lengths, [], cpu, table, self.page)

    def _indices(self, gen: torch.Generator) -> Tensor:
        """Positions of the request, visible or not, in any order."""
        out = []
        for q, k in self.requests:
            for _ in range(q):
                chosen = torch.randperm(-(-k // self.block), generator=gen)[: self.slots]
                row = torch.full((self.slots,), -1)
                row[: len(chosen)] = chosen
                row[torch.rand(self.slots, generator=gen) * 100 < self.holes] = -1
                out.append(row)
        return torch.stack(out).int()


HALF = emulated.KERNELS[F16, 256]
PACKED = emulated.SMALL_PACKED_KERNEL
SCENES = {
    # Several tiles, their ends at any place, tasks that follow each other.
    "tiles": Scene(((1, 230), (1, 40), (2, 203)), 64, slots=203, cores=2),
    # Tasks of one tile, of a single key and of none.
    "short": Scene(((1, 1), (3, 9), (0, 4), (2, 0), (6, 33)), 40, slots=40, holes=30, cores=1),
    # Tasks that end where a piece or a tile ends.
    "ends": Scene(((1, 16), (1, 5), (1, 48), (2, 3), (1, 32), (1, 16), (1, 7)), slots=48, cores=1),
    "pages": Scene(((3, 150), (1, 97)), slots=97, page=16, holes=20, cores=3, kind=HALF, dtype=F16),
    "groups": Scene(((1, 120), (2, 31)), 100, slots=90, cores=2, page=48),
    "parts": Scene(((1, 300), (1, 25)), 20, slots=150, cores=13, least=16),
    "many_parts": Scene(((1, 300),), 64, slots=298, cores=6, least=8, holes=20),
    # Blocks with several parts, the second of some without keys.
    "turns": Scene(((1, 900), (1, 20)), slots=900, cores=3, least=8),
    # Maxima that grow so much that what was summed is scaled.
    "steep": Scene(((1, 230), (2, 150)), 40, slots=200, cores=2, scale=1.0),
    "steep_parts": Scene(((1, 300),), 64, slots=298, cores=3, least=8, scale=1.0),
    # Parts of one tile, some of them empty.
    "one_tile": Scene(((1, 300), (1, 20)), 64, slots=200, cores=17, least=8, holes=20),
    "blocks_of_keys": Scene(((2, 90), (1, 61)), slots=30, block=4, page=16, cores=1),
    "plain": Scene(((2, 70),), 32, slots=64, with_rope=False, causal=False, cores=1),
    "packed": Scene(((1, 130), (2, 57), (1, 3)), 24, slots=120, kind=PACKED, page=32, cores=2),
    "packed_parts": Scene(((1, 200),), 64, slots=190, kind=PACKED, cores=3, least=32, holes=10),
    "packed_short": Scene(((2, 90), (1, 1), (2, 40)), 3, slots=80, kind=PACKED, cores=1),
}


def wanted(given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out, max, sum) in F64 with NumPy."""
    keys, requests, block = given["keys"], given["requests"], given["block"]
    latent = given["kind"].latent
    parts = unpack(given["key"][0]) if given["kind"].packed else given["key"]
    rows = torch.cat([part.double() for part in parts], -1)
    query = torch.cat([q.double() for q in given["query"]], -1)
    out = np.zeros((*query.shape[:2], latent))
    peak, total = np.full(query.shape[:2], -np.inf), np.zeros(query.shape[:2])
    for b, (start, n) in enumerate(zip(requests.starts, requests.lengths, strict=True)):
        for i in range(n):
            seen = keys.lengths[b] - (n - i - 1 if given["causal"] else 0)
            entries = given["indices"][start + i].long()
            tokens = (entries[entries >= 0, None] * block + torch.arange(block)).flatten()
            tokens = tokens[tokens < seen]
            if not len(tokens):
                continue
            chosen = rows[keys.flat_rows(torch.tensor(b), tokens)].numpy()
            score = query[start + i].numpy() @ chosen.T * given["scale"]
            peak[start + i] = score.max(-1)
            weight = np.exp(score - peak[start + i][:, None])
            total[start + i] = weight.sum(-1)
            out[start + i] = weight @ chosen[:, :latent] / total[start + i][:, None]
    return out, peak, total


def near(got: Tensor, want: np.ndarray, epsilon: float) -> None:
    """Rounding of weights and of results: few units of each row's largest value."""
    reach = np.abs(want).max(-1, keepdims=True) if want.ndim == 3 else np.maximum(abs(want), 1)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.double().numpy() - want)
    error[got.double().numpy() == want] = 0
    assert (error <= epsilon * reach).all(), error.max()


def launched(scene: Scene, options: Options, *, seed: int = 0, sanitize: bool = False) -> Report:
    """Report of a launch, whose results are right if it is clean."""
    given = scene.arguments(seed)
    how = How(options, scene.cores, scene.least, sanitize)
    out, peak, total, report = emulated.unchecked(**given, how=how)
    if report.clean:
        want = wanted(given)
        near(out, want[0], 3 * torch.finfo(scene.dtype).eps)
        near(peak, want[1], 1e-5)
        near(total, want[2], 1e-4)
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


def test_bits_do_not_depend_on_scheduler_cores_or_batch() -> None:
    for name in ("tiles", "packed"):
        scene = SCENES[name]
        given = scene.arguments()
        first = emulated.checked(**given)
        options = replace(DIRECT, scheduler="random", seed=3)
        for how in (How(options, cores=5), How(DIRECT, cores=1)):
            again = emulated.checked(**given, how=how)
            assert all(torch.equal(a, b) for a, b in zip(first[:3], again[:3], strict=True))
        alone = given | {
            "query": [q[:1] for q in given["query"]],
            "indices": given["indices"][:1],
            "requests": Queries([0], [1], 1),
            "keys": replace(
                given["keys"],
                lengths=given["keys"].lengths[:1],
                starts=given["keys"].starts[:1],
                block_table=None
                if given["keys"].block_table is None
                else given["keys"].block_table[:1],
            ),
        }
        assert torch.equal(emulated.checked(**alone)[0][0], first[0][0])


def test_parts_are_deterministic() -> None:
    given = SCENES["many_parts"].arguments()
    results = [
        emulated.checked(**given, how=How(replace(DIRECT, scheduler=s, seed=5), cores=6, least=8))[
            0
        ]
        for s in ("round-robin", "random")
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("packed", [False, True], ids=["bf16", "packed"])
def test_production_tiles(packed: bool) -> None:
    """64 heads over 512 keys, which takes less than 20 s of emulation, whole and in parts."""
    kind = emulated.PACKED_KERNEL if packed else emulated.KERNELS[BF16, 512]
    scene = Scene(((2, 2000),), 64, slots=512, kind=kind, page=128)
    for how in (How(cores=2), How(cores=24, least=LEAST)):
        given = scene.arguments()
        out, peak, total, report = emulated.checked(**given, how=how)
        want = wanted(given)
        near(out, want[0], 3 * torch.finfo(BF16).eps)
        near(peak, want[1], 1e-5)
        near(total, want[2], 1e-4)
        assert report.seconds < 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float32}, "bfloat16 or float16"),
        ({"latent": 128}, "latent of 512 or 256"),
        ({"rope": 32}, "rotated part of 64"),
        ({"heads": 129}, "1 to 128 heads"),
        ({"value": True}, "one latent as key and value"),
    ],
)
def test_declines_what_the_kernel_does_not_take(change: dict[str, Any], reason: str) -> None:
    dtype, latent, rope = (
        change.get(name, default)
        for name, default in (("dtype", BF16), ("latent", 256), ("rope", 64))
    )
    heads = change.get("heads", 4)
    query = [torch.zeros(1, heads, n, dtype=dtype) for n in (latent, rope)]
    key = [torch.zeros(5, n, dtype=dtype) for n in (latent, rope)]
    value = key[0].clone() if change.get("value") else key[0]
    keys = Keys([5], [0], torch.device("cpu"))
    with pytest.raises(Declined, match=reason):
        emulated.forward(
            query, key, value, torch.zeros(1, 1, dtype=torch.int32), SCALE, 1, Queries([0], [1], 1),
            keys, causal=True,
        )  # fmt: skip


def conforms(case: AttentionCase) -> None:
    result = run_one(case, case.problem(), "emulated", public("emulated"))
    if result.declined:
        assert case.fp8 or case.dtype == torch.float32 or (case.packed and case.dtype == F16)
    else:
        result.require()


QUICK = [case for case in suite.attention() if case.size == "quick"]
REST = [case for case in suite.attention() if case.size != "quick"]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_conforms(case: AttentionCase) -> None:
    conforms(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=str)
def test_conforms_in_every_case_and_at_full_size(case: AttentionCase) -> None:
    conforms(case)
