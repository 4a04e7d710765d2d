"""What ``tools/compile_triton.py`` compiles of mlapo and the small operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """One kernel at one shape: types of its arguments by name, constants, warps and stages.

    ``products``: the warp group instructions that the compiled code must contain, by prefix.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int
    stages: int
    products: str


# GLM-5 and DeepSeek-V3.2: hidden, q_lora, heads and nope of a layer.
_MODELS = {"GLM-5": (6144, 2048, 64, 192), "DeepSeek-V3.2": (7168, 1536, 128, 128)}
# Pointers that a kernel is given in place of what a mode does without.
_MLAPO = {
    "x_point": "*fp32", "x_offset": "*fp32", "x_scale": "*fp32", "scale": "*fp32", "bias": "*i32",
    "scale2": "*fp32", "bias2": "*i32", "point": "*fp32", "offset": "*fp32", "codes": "*i8",
    "scales": "*fp32", "scale_q": "*fp32", "scale_kv": "*fp32", "bias_q": "*i32", "bias_kv": "*i32",
    "gamma_q": "*bf16", "gamma_kv": "*bf16", "eps_q": "fp32", "eps_kv": "fp32", "cos": "*fp32",
    "sin": "*fp32", "slots": "*i64", "latent": "*bf16", "q": "*bf16", "query": "*bf16",
    "rope": "*bf16",
}  # fmt: skip


def mlapo() -> Iterator[Shape]:
    """MLA pre-processing: every tile of the table, both models where sizes are constants."""
    from glm5_ascend.ops.mlapo.triton_tiles import TABLE

    for size, number in ((1, "int8"), (2, "bf16")):
        for tiles in TABLE[size]:
            length = "long" if tiles is TABLE[size][-1] else f"{tiles.most} tokens"
            yield from _projections(size, f"{number}, {length}", tiles)
    yield from _heads()
    yield from _latents()


def _projections(size: int, name: str, tiles: Any) -> Iterator[Shape]:
    from glm5_ascend.ops.mlapo.triton_products import project
    from glm5_ascend.ops.mlapo.triton_tiles import QUANTISED

    int8 = size == 1
    weight, total = ("*i8", "*i32") if int8 else ("*bf16", "*fp32")
    constants = {
        "w_col": 1, "INT8": int8, "BIAS": int8, "BM": tiles.columns,
        "BT": tiles.tokens, "BK": tiles.terms, "BX": QUANTISED, "PDL": tiles.overlap,
        "INTERPRET": False,
    }  # fmt: skip
    kinds = [("up", 0, False), ("down", 0, tiles.split)]
    if int8 and tiles.tokens <= tiles.fuse_static:
        kinds += [("quantised down", mode, tiles.split) for mode in (1, 2)]
    for kind, mode, split in kinds:
        static = "" if mode < 2 else "statically "
        yield Shape(
            f"mlapo {static}{kind} {name}", project,
            {**_MLAPO, "x": "*bf16" if mode else weight, "w": weight, "w2": weight,
             "out": total if split else "*bf16"},
            {**constants, "QUANTISE": mode, "SPLIT": split, "SCALED": mode == 1 and not split},
            tiles.warps, tiles.stages, "IGMMA" if int8 else "HGMMA",
        )  # fmt: skip


def _heads() -> Iterator[Shape]:
    from glm5_ascend.ops.mlapo.triton_products import heads
    from glm5_ascend.ops.mlapo.triton_tiles import TABLE

    for model, (_, _, _, nope) in _MODELS.items():
        for tiles in TABLE[2]:
            yield Shape(
                f"mlapo heads, {model}, {tiles.columns} x {tiles.tokens}", heads,
                {**_MLAPO, "w": "*bf16"},
                {"w_col": 1, "D": nope, "L": 512, "R": 64, "RP": 64, "BM": tiles.latents,
                 "BT": tiles.tokens, "BK": tiles.nope, "PDL": tiles.overlap, "INTERPRET": False},
                tiles.warps, tiles.stages, "HGMMA",
            )  # fmt: skip


def _latents() -> Iterator[Shape]:
    import triton
    import triton.language as tl

    from glm5_ascend.ops.mlapo import triton_kernel as host
    from glm5_ascend.ops.mlapo.triton_source import latents, quantise
    from glm5_ascend.ops.mlapo.triton_tiles import PART, QUANTISED

    for model, int8, packed, split in (
        ("GLM-5", True, True, True),
        ("GLM-5", True, False, False),
        ("GLM-5", False, False, True),
        ("DeepSeek-V3.2", True, True, True),
    ):
        hidden, q_lora, _, _ = _MODELS[model]
        parts = triton.cdiv(hidden, PART) if split else 0
        down = ("*i32" if int8 else "*fp32") if split else "*bf16"
        number = "int8" if int8 else "bf16"
        yield Shape(
            f"mlapo latents, {model}, {number}, {parts} parts{', packed' * packed}", latents,
            {**_MLAPO, "down": down, "kv": "*i8" if packed else "*bf16", "kr": "*bf16"},
            {"PARTS": parts, "Q": q_lora, "QP": 2048, "L": 512, "LP": 512, "R": 64, "RP": 64,
             "INT8": int8, "BIAS": False, "SCALED": int8, "QUANTISE": int(int8), "KEEP": True,
             "TILE": 128 * packed, "DTYPE": tl.bfloat16, "PDL": split, "INTERPRET": False},
            host.WARPS, 3, "",
        )  # fmt: skip
    for static in (False, True):
        yield Shape(
            f"mlapo codes of the input{', static' * static}", quantise, {**_MLAPO, "x": "*bf16"},
            {"STATIC": static, "BN": QUANTISED, "PDL": False}, host.WARPS, 3, "",
        )  # fmt: skip


def rows() -> Iterator[Shape]:
    """Rotation with codes of index keys, and cache rows."""
    from glm5_ascend.ops.hadamard_quant import triton_kernel as hadamard
    from glm5_ascend.ops.hadamard_quant.triton_source import rotate_quantise
    from glm5_ascend.ops.paged_cache import triton_kernel as host
    from glm5_ascend.ops.paged_cache.triton_source import read_packed, write_packed, write_rows

    yield Shape(
        "hadamard 128 with int8 codes", rotate_quantise,
        {"x": "*bf16", "codes": "*i8", "scales": "*fp32", "factor": "fp32"},
        {"WIDTH": 128, "STEPS": 7, "BR": hadamard.ROWS}, hadamard.WARPS, 3, "",
    )  # fmt: skip
    sizes = {"L": 512, "TILE": 128, "R": 64, "INTERPRET": False}
    where = {"cache": "*i8", "slots": "*i64", "latent": "*bf16"}
    yield Shape(
        "write packed rows", write_packed, {**where, "rope": "*bf16"}, sizes, host.WARPS, 3, ""
    )
    yield Shape(
        "read packed rows", read_packed, {**where, "rope": "*i16"}, sizes, host.WARPS, 3, ""
    )
    yield Shape(
        "write rows", write_rows, {"cache": "*i16", "rows": "*i16", "slots": "*i64"},
        {"BN": 512}, host.WARPS, 3, "",
    )  # fmt: skip
