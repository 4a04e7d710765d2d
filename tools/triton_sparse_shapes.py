"""Kernels of the indexer and of attention at the shapes of production, for ``compile_triton``.

Every row of ops/triton/tuning.toml that a shape of GLM-5 or DeepSeek-V3.2 takes is among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tools.triton_shapes import Shape

# What is a 32-bit number in production, where strides and counts are below 2^31.
_NARROW = (
    "q_row", "q_head", "qr_row", "qr_head", "c_row", "s_row", "w_row", "i_row", "e_row", "count",
    "table_stride", "n", "heads", "length", "share", "k_row", "kr_row", "v_row",
)  # fmt: skip
_POINTER = {"bf16": "*bf16", "int8": "*i8", "e4m3": "*fp8e4nv"}
_CHOSEN = {
    "indices": "*i32", "which": "*i64", "request": "*i64", "visible": "*i64", "start": "*i64",
    "table": "*i32", "pieces": "*fp32", "peaks": "*fp32", "sums": "*fp32", "scale": "fp32",
    "many": "*i64", "group": "*i64", "sizes": "*i32", "members": "*i8", "entries": "*i32",
}  # fmt: skip


def attention() -> Iterator[Shape]:
    """Both forms, and what prepares and ends them."""
    from glm5_ascend.ops.sparse_flash_attention import triton_heads, triton_kernel
    from glm5_ascend.ops.sparse_flash_attention.triton_source import combine, unite, unpack

    yield from _by_keys()
    yield from _by_heads()
    for number in ("int8", "e4m3"):
        yield Shape(
            f"attention, packed {number} rows", unpack,
            {**_CHOSEN, **dict.fromkeys(_NARROW, "i32"), "codes": _POINTER[number],
             "words": "*bf16", "scales": "*fp32", "out": "*fp16", "positions": "*i32"},
            {"L": 512, "R": 64, "TILE": 128, "BN": triton_kernel.UNPACKED, "PAGE": 128,
             "INTERPRET": False},
            4, 1, "",
        )  # fmt: skip
    for parts in (4, 8, 16):
        yield Shape(
            f"attention, sum of {parts} parts", combine,
            {**_CHOSEN, **dict.fromkeys(_NARROW, "i32"), "out": "*bf16", "peak": "*fp32",
             "total": "*fp32"},
            {"PARTS": parts, "PP": parts, "V": 512, "VP": 512, "INTERPRET": False}, 4, 1, "",
        )  # fmt: skip
    for tokens in (2, 4):
        yield Shape(
            f"attention, union of {tokens} tokens", unite,
            {**_CHOSEN, **dict.fromkeys(_NARROW, "i32")},
            {"G": tokens, "BN": triton_heads.UNITED, "STEPS": 12}, 4, 1, "",
        )  # fmt: skip


def _by_keys() -> Iterator[Shape]:
    import torch

    from glm5_ascend.ops.sparse_flash_attention import triton_kernel as host
    from glm5_ascend.ops.sparse_flash_attention.triton_source import attend_rows
    from glm5_ascend.ops.triton import tuning

    for heads in (8, 16, 32):
        how = tuning.attention(torch.bfloat16, heads, 1)
        yield Shape(
            f"attention bf16, keys on rows, {heads} heads", attend_rows,
            {"q": "*bf16", "qr": "*bf16", "k": "*bf16", "kr": "*bf16", "v": "*bf16", **_CHOSEN,
             **dict.fromkeys(_NARROW, "i32")},
            {"L": 512, "LP": 512, "R": 64, "RP": 64, "V": 512, "VP": 512, "SHARED": True,
             "BN": how.tile, "HB": min(host.HEADS, max(16, heads)), "PAGE": 128,
             "INTERPRET": False},
            how.warps, how.stages, "HGMMA",
        )  # fmt: skip


def _by_heads() -> Iterator[Shape]:
    from glm5_ascend.ops.sparse_flash_attention import triton_heads as host
    from glm5_ascend.ops.sparse_flash_attention.triton_source import attend_heads
    from glm5_ascend.ops.triton import tuning

    numbers = {name: number for number, name in tuning.NUMBERS.items() if name in _POINTER}
    made = set()
    for name, heads, query_tokens in itertools.product(
        _POINTER, (8, 16, 32, 64, 128), (1, 16, 100, 4096)
    ):
        how = tuning.attention(numbers[name], heads, query_tokens)
        for tokens in sorted({1, how.unite}):
            split, united, packed = how.parts > 1, how.unite > 1, name != "bf16"
            form = "one by one" if how.unite == 1 else f"{tokens} of {how.unite} tokens"
            label = f"attention {name}, heads on rows, {form}{', split' * split}"
            if how.form != "heads" or label in made:
                continue
            made.add(label)
            yield Shape(
                label, attend_heads,
                {"q": "*bf16", "qr": "*bf16", "codes": _POINTER[name], "words": "*bf16",
                 "scales": "*fp32" if packed else "*bf16", **_CHOSEN,
                 **dict.fromkeys(_NARROW, "i32"), "pieces": "*fp32" if split else "*bf16"},
                {"T": 128, "R": 64, "M": host.MEMBERS, "G": tokens, "BN": how.tile, "PAGE": 128,
                 "PACKED": packed, "UNITED": united, "SPLIT": split, "INTERPRET": False},
                how.warps, how.stages, "HGMMA",
            )  # fmt: skip


_SCORED = {
    "first": "*i64", "size": "*i64", "request": "*i64", "visible": "*i64", "start": "*i64",
    "table": "*i32", "logits": "*fp32", "samples": "*fp32", "bound": "*i32", "values": "*i32",
    "positions": "*i32", "fills": "*i32", "wanted": "*i32", "out": "*i32",
    **dict.fromkeys(("q_row", "q_head", "k_row", "w_row", "qs_row", "ks_row", "table_stride",
                     "width", "length", "count", "heads", "parts"), "i32"),
}  # fmt: skip
# Weights and scales, kind of products.
_KEYS = {"bf16": ("*fp32", "HGMMA"), "int8": ("*fp16", "IGMMA"), "e4m3": ("*fp32", "HGMMA")}


def indexer() -> Iterator[Shape]:
    """Scores and selections, with and without a matrix of logits."""
    from glm5_ascend.ops.lightning_indexer import triton_source as source
    from glm5_ascend.ops.lightning_indexer.triton_fused import DIGITS, SCAN
    from glm5_ascend.ops.triton import tuning

    for number, name in tuning.NUMBERS.items():
        for heads, keys in itertools.product((32, 64) if name in _KEYS else (), (4096, 131072)):
            how = tuning.indexer(number, heads, keys)
            weight, product = _KEYS[name]
            types = {"q": _POINTER[name], "k": _POINTER[name], "w": weight, "qs": weight,
                     "ks": weight, **_SCORED}  # fmt: skip
            constants = {
                "D": 128, "Q": 128 // heads, "H": heads, "BN": how.tile, "PAGE": 128,
                "QUANT": name != "bf16", "FP8": name == "e4m3", "INTERPRET": False,
            }  # fmt: skip
            if not how.samples:
                yield Shape(
                    f"indexer {name}, {heads} heads", source.scores, types,
                    {**constants, "SOME": False}, how.warps, how.stages, product,
                )  # fmt: skip
                continue
            yield Shape(
                f"indexer {name}, {heads} heads, keys that reach the bound", source.keep, types,
                constants, how.warps, how.stages, product,
            )  # fmt: skip
            if heads > 32:
                continue
            yield Shape(
                f"indexer {name}, {heads} heads, sample", source.sample, types,
                {**constants, "SAMPLES": how.samples}, how.warps, 1, product,
            )  # fmt: skip
            yield Shape(
                f"indexer {name}, {heads} heads, again", source.scores, types,
                {**constants, "SOME": True}, how.warps, how.stages, product,
            )  # fmt: skip
    for some in (False, True):
        yield Shape(
            f"indexer, best of logits{', again' * some}", source.select, _SCORED,
            {"BN": SCAN, **DIGITS, "SOME": some}, 8, 1, "",
        )  # fmt: skip
    yield from _selections()


def _selections() -> Iterator[Shape]:
    import torch

    from glm5_ascend.ops.lightning_indexer import triton_fused as host
    from glm5_ascend.ops.lightning_indexer.triton_source import bounds, choose
    from glm5_ascend.ops.triton import tuning
    from glm5_ascend.ops.triton.runtime import padded

    for keys in (16384, 65536, 262144):
        how = tuning.indexer(torch.bfloat16, 32, keys)
        parts = padded(keys // how.part, 1)
        yield Shape(
            f"indexer, bound of {how.samples} samples of {keys}", bounds, _SCORED,
            {"SAMPLES": how.samples, **host.DIGITS}, host.warps(how.samples), 1, "",
        )  # fmt: skip
        yield Shape(
            f"indexer, best of {how.room} kept in {parts} parts", choose, _SCORED,
            {"PARTS": parts, "ROOM": how.room, "BN": host.SCAN, **host.DIGITS},
            host.warps(2 * how.room), 1, "",
        )  # fmt: skip
