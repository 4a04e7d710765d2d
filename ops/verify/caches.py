"""Conformance of the cache writers: bytes, in the right slots and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare
from glm5_ascend.ops.verify.case import DTYPES, Call, Case, Outputs, Problem, Verdict, invoke
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.packed import LATENT, SCALES_AT, WIDTH, pack, unpack
from glm5_ascend.ops.verify.requests import poison


@dataclass(frozen=True, kw_only=True)
class WriteCase(Case):
    """``write_paged_rows`` of ``tokens`` rows, every fifth of them padding.

    Args:
        narrow: the cache is the first columns of a wider one.
    """

    tokens: int
    width: int
    dtype: torch.dtype
    block_size: int = 16
    narrow: bool = False

    @property
    def operator(self) -> str:
        """The group."""
        return "paged_cache"

    def __str__(self) -> str:
        name = f"write_paged_rows-{self.tokens}x{self.width}-{DTYPES.get(self.dtype, self.dtype)}"
        return f"{name}-pages{self.block_size}" + ("-narrow" if self.narrow else "")

    def problem(self) -> Problem:
        """Draw rows and slots."""
        gen = torch.Generator().manual_seed(self.seed)
        rows = torch.randn(self.tokens, self.width, generator=gen).to(self.dtype)
        blocks = -(-2 * max(self.tokens, 1) // self.block_size) + 1
        slots = torch.randperm(blocks * self.block_size, generator=gen)[: self.tokens]
        slots[2::5] = -1
        return WriteProblem(self, rows, slots, blocks)


@dataclass(frozen=True)
class WriteProblem(Problem):
    """rows [T, width] for slots int64 [T] of a cache of ``blocks`` pages."""

    case: WriteCase
    rows: Tensor
    slots: Tensor
    blocks: int

    def _cache(self) -> Tensor:
        width = self.case.width + (64 if self.case.narrow else 0)
        return poison((self.blocks, self.case.block_size, width), self.rows)

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """``cache``, with all columns of a wider one; shuffled: backwards in two calls."""
        whole = self._cache()
        cache = whole[..., : self.case.width]
        order = torch.arange(len(self.rows))
        parts = order.flip(0).tensor_split(2) if shuffled else [order]
        for part in parts:
            arguments = {"cache": cache, "rows": self.rows[part], "slot_mapping": self.slots[part]}
            invoke(call, "write_paged_rows", arguments, writes=("cache",))
        return {"cache": whole}

    def judge(self, outputs: Outputs) -> Figures:
        """Every byte of the cache."""
        return compare.identical(outputs["cache"], self._wanted(), name="cache")

    def _wanted(self, *, padding: bool = False) -> Tensor:
        whole = self._cache()
        flat = whole.view(-1, whole.shape[-1])
        for slot, row in zip(self.slots.tolist(), self.rows, strict=True):
            if slot >= 0 or padding:
                flat[slot, : self.case.width] = row
        return whole

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Padding rows that are written to the last slot."""
        wrong = self._wanted(padding=True)
        yield (
            "padding rows written",
            lambda outputs: compare.identical(outputs["cache"], wrong, name="cache"),
        )


@dataclass(frozen=True, kw_only=True)
class PackedCase(Case):
    """``write_kv_rows`` of ``tokens`` rows, every fifth of them padding, and ``read_kv_rows``."""

    tokens: int
    dtype: torch.dtype = torch.bfloat16
    block_size: int = 16
    special: bool = False

    @property
    def operator(self) -> str:
        """The group."""
        return "paged_cache"

    def __str__(self) -> str:
        name = f"kv_rows-{self.tokens}-{DTYPES[self.dtype]}-pages{self.block_size}"
        return name + ("-special" if self.special else "")

    def problem(self) -> Problem:
        """Draw latents with an outlier, a row of zeros, and slots.

        Special: rows with a NaN, an infinity, and values so small that their scale is coarse.
        """
        gen = torch.Generator().manual_seed(self.seed)
        latent = torch.randn(self.tokens, LATENT, generator=gen)
        latent[:, 300] *= 20
        latent[1:][-1:] = 0
        if self.special:
            latent[0, 5], latent[3, 200] = torch.nan, -torch.inf
            latent[4] *= 1e-43
        key_rope = torch.randn(self.tokens, 64, generator=gen)
        blocks = -(-2 * max(self.tokens, 1) // self.block_size) + 1
        slots = torch.randperm(blocks * self.block_size, generator=gen)[: self.tokens].int()
        slots[2::5] = -1
        return PackedProblem(latent.to(self.dtype), key_rope.to(self.dtype), slots, blocks, self)


@dataclass(frozen=True)
class PackedProblem(Problem):
    """latent [T, 512] and key_rope [T, 64] for slots int32 [T] of ``blocks`` pages."""

    latent: Tensor
    key_rope: Tensor
    slots: Tensor
    blocks: int
    case: PackedCase

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """The ``cache``, and ``latent`` and ``key_rope`` read from it."""
        cache = self._cache()
        order = torch.arange(len(self.slots))
        for part in order.flip(0).tensor_split(2) if shuffled else [order]:
            written = {"latent": self.latent[part], "key_rope": self.key_rope[part]}
            where = {"cache": cache, "slot_mapping": self.slots[part]}
            invoke(call, "write_kv_rows", where | written, writes=("cache",))
        read = invoke(call, "read_kv_rows", {"cache": cache, "slot_mapping": self.slots})
        return _comparable(cache, *read)

    def judge(self, outputs: Outputs) -> Figures:
        """Every byte."""
        return self._against(outputs)

    def _cache(self) -> Tensor:
        return poison((self.blocks, self.case.block_size, WIDTH), torch.zeros(0, dtype=torch.int8))

    def _against(self, outputs: Outputs, **wrong: int) -> Figures:
        rows = pack(self.latent, self.key_rope, **wrong)
        cache, there = self._cache(), self.slots >= 0
        cache.view(-1, WIDTH)[self.slots[there].long()] = rows[there]
        wanted = _comparable(cache, *(x.masked_fill(~there[:, None], 0) for x in unpack(rows)))
        return compare.worst(
            compare.identical(outputs[name], x, name=name) for name, x in wanted.items()
        )

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Another scale."""
        yield "scale by 128", lambda outputs: self._against(outputs, levels=128)
        yield "one scale per row", lambda outputs: self._against(outputs, tile=LATENT)


def _comparable(cache: Tensor, latent: Tensor, key_rope: Tensor) -> Outputs:
    """By name, with infinity for scales and latents that are not finite: any of them will do."""
    for x in (cache.view(-1, WIDTH)[:, SCALES_AT:].view(torch.float32), latent):
        x[~x.isfinite()] = torch.inf
    return {"cache": cache, "latent": latent, "key_rope": key_rope}


def cases() -> Iterator[Case]:
    """Index keys, latents and rotated parts of GLM-5, awkward numbers of tokens."""
    for dtype in DTYPES:
        for tokens, width in ((1, 512), (62, 128), (213, 64)):
            yield WriteCase(tokens=tokens, width=width, dtype=dtype, size="quick")
    yield WriteCase(tokens=62, width=512, dtype=torch.bfloat16, block_size=128, narrow=True)
    yield WriteCase(tokens=0, width=512, dtype=torch.bfloat16)
    for tokens in (1, 62, 213):
        for dtype in DTYPES:
            yield PackedCase(tokens=tokens, dtype=dtype, size="quick")
    yield PackedCase(tokens=62, block_size=128)
    yield PackedCase(tokens=9, dtype=torch.float32, special=True)
