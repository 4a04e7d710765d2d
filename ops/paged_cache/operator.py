"""Schemas, checks, kernels and fake kernels of the cache operators."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops import checks, dispatch
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED
from glm5_ascend.ops.plans import Plans, form_of
from glm5_ascend.ops.registry import define
from glm5_ascend.ops.tracing import passes_errors

PLANS = Plans("plan")
_GROUP = "paged_cache"
_BYTES = (torch.int8, torch.uint8)
WRITE_SCHEMA = (
    "write_paged_rows(Tensor(a!) cache, Tensor rows, Tensor slot_mapping, *, "
    'str backend="auto") -> ()'
)
WRITE_KV_SCHEMA = (
    "write_kv_rows(Tensor(a!) cache, Tensor latent, Tensor key_rope, Tensor slot_mapping, *, "
    'str backend="auto") -> ()'
)
READ_KV_SCHEMA = (
    'read_kv_rows(Tensor cache, Tensor slot_mapping, *, str backend="auto") -> (Tensor, Tensor)'
)


def _check_slots(cache: Tensor, slots: Tensor) -> None:
    if slots.ndim != 1 or slots.dtype not in checks.INTEGERS:
        raise ArgumentError(
            f"slot_mapping must be int32 or int64 [T], not {checks.described(slots)}"
        )
    checks.device("slot_mapping", slots, "cache", cache.device)


def _check_values(cache: Tensor, slots: Tensor) -> None:
    if not slots.numel():
        return
    low, high = checks.extremes(slots)
    total = cache.shape[0] * cache.shape[1]
    if low < -1 or high >= total:
        wrong = low if low < -1 else high
        raise ArgumentError(
            f"slot_mapping must be -1 or name one of the {total} slots of the cache; "
            f"slot {wrong} does neither"
        )


def _check_rows(name: str, rows: Tensor, slots: Tensor, width: int, cache: Tensor) -> None:
    checks.shape(name, rows, (slots.shape[0], width))
    checks.dense(name, rows)
    checks.device(name, rows, "cache", cache.device)


def _check_write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    if cache.ndim != 3:
        raise ArgumentError(
            f"cache must be [blocks, block_size, width], not of shape {list(cache.shape)}"
        )
    checks.rows("cache", cache)
    _check_slots(cache, slots)
    _check_rows("rows", rows, slots, cache.shape[2], cache)
    same = rows.dtype == cache.dtype
    if not same and not (rows.is_floating_point() and cache.is_floating_point()):
        raise ArgumentError(
            f"rows must be of the cache's dtype or both float, not {rows.dtype} and {cache.dtype}"
        )


def _check_packed(cache: Tensor, slots: Tensor) -> None:
    if cache.ndim != 3 or cache.shape[2] != PACKED or cache.dtype not in _BYTES:
        raise ArgumentError(
            f"cache must be int8 or uint8 [blocks, block_size, {PACKED}], not "
            f"{checks.described(cache)}"
        )
    checks.rows("cache", cache)
    _check_slots(cache, slots)


def _check_write_kv(cache: Tensor, latent: Tensor, key_rope: Tensor, slots: Tensor) -> None:
    _check_packed(cache, slots)
    for name, part, width in (("latent", latent, LATENT), ("key_rope", key_rope, ROTATED)):
        _check_rows(name, part, slots, width, cache)
        checks.dtype(name, part, checks.FLOATS)


def _write(cache: Tensor, rows: Tensor, slot_mapping: Tensor, *, backend: str = "auto") -> None:
    form = form_of(backend, cache, rows, slot_mapping) if cache.is_cpu else None
    if form is not None and (plan := PLANS.get(form)) and plan(cache, rows, slot_mapping):
        return
    _check_write(cache, rows, slot_mapping)
    _check_values(cache, slot_mapping)
    module = dispatch.load(_GROUP, backend, cache)
    module.forward(cache, rows, slot_mapping)
    PLANS.ask(form, module, cache, rows, slot_mapping)


def _write_fake(
    cache: Tensor, rows: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> None:
    _check_write(cache, rows, slot_mapping)


def _write_kv(
    cache: Tensor, latent: Tensor, key_rope: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> None:
    _check_write_kv(cache, latent, key_rope, slot_mapping)
    _check_values(cache, slot_mapping)
    module = dispatch.load(_GROUP, backend, latent)
    module.write_kv_rows(cache.view(torch.int8), latent, key_rope, slot_mapping)


def _write_kv_fake(
    cache: Tensor, latent: Tensor, key_rope: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> None:
    _check_write_kv(cache, latent, key_rope, slot_mapping)


def _read_kv(
    cache: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    _check_packed(cache, slot_mapping)
    _check_values(cache, slot_mapping)
    module = dispatch.load(_GROUP, backend, cache)
    latent, key_rope = module.read_kv_rows(cache.view(torch.int8), slot_mapping)
    return latent, key_rope


def _read_kv_fake(
    cache: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    _check_packed(cache, slot_mapping)
    tokens = slot_mapping.shape[0]
    return (
        cache.new_empty((tokens, LATENT), dtype=torch.bfloat16),
        cache.new_empty((tokens, ROTATED), dtype=torch.bfloat16),
    )


WRITE = define(WRITE_SCHEMA, _write, passes_errors(_write_fake))
WRITE_KV = define(WRITE_KV_SCHEMA, _write_kv, passes_errors(_write_kv_fake))
READ_KV = define(READ_KV_SCHEMA, _read_kv, passes_errors(_read_kv_fake))
