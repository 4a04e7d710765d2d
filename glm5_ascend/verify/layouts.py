"""The tensors of each scheme that vllm-ascend knows, with shapes, dtypes and what may be missing.

``o`` and ``i`` are the sizes of the unquantised weight [out, in]. Shapes were confirmed by building
the engine's own model for 0.23 and 0.30 on a CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from glm5_ascend.ascend_schemes import FLOAT, W4A8_DYNAMIC, W8A8, W8A8_DYNAMIC

W8A16 = "W8A16"
# One per module kind; MX and FP8 schemes need an Ascend 950 and are not looked into.
A5_SCHEMES = frozenset(
    [
        "W8A8_MXFP8",
        "W4A8_MXFP",
        "W4A4_MXFP4",
        "W4A4_MXFP4_FLATQUANT",
        "W4A16_MXFP4",
        "W8A8FP8_DYNAMIC",
        "W4A4_DYNAMIC",
        "W4A4_FLATQUANT_DYNAMIC",
        "W4A16",
        "W8A8_MIX",
    ]
)
EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
LINEAR = re.compile(
    r".*\.(self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)"
    r"|mlp\.(shared_experts\.)?(gate|up|down)_proj)\.weight"
)
FLOATS = ("BF16", "F32", "F16")
_INTEGERS = ("I8",)
DOWN_COLUMNS = 16
CHANNEL, GROUPS, UNPACKED = "channel", "groups", "unpacked"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a module: allowed shapes (the first is the usual one) and dtypes."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    required: bool = True


def schemes_for(name: str) -> tuple[str, ...]:
    """Schemes whose tensors are checked here that the engine has for a weight."""
    if EXPERT.fullmatch(name):
        return FLOAT, W8A8_DYNAMIC, W4A8_DYNAMIC
    if LINEAR.fullmatch(name):
        return FLOAT, W8A8, W8A8_DYNAMIC, W8A16
    return (FLOAT,)


def parts_of(
    name: str, shape: tuple[int, int], scheme: str, layout: str, group: int
) -> dict[str, Part]:
    """Suffix to part for the weight ``name`` [o, i] in an integer scheme.

    Args:
        name: of the weight; the down projection of an expert has a wide ``scale_bias``.
        shape: of the unquantised weight.
        scheme: from the description.
        layout: of int4: one scale per channel, two levels of scales, or one code per byte.
        group: columns per scale of the second level.
    """
    out, inner = shape
    scale = Part(((out, 1),), FLOATS)
    offset = Part(((out, 1),), (*FLOATS, "I8", "I64"), required=False)
    weight = Part(((out, inner),), _INTEGERS)
    if scheme == W8A8:
        one = ((1,), ())
        return {
            "weight": weight,
            "input_scale": Part(one, FLOATS),
            "input_offset": Part(one, (*FLOATS, "I8")),
            "quant_bias": Part(((out,),), ("I32",)),
            "deq_scale": Part(((out,),), ("F32",)),
            "weight_scale": Part(((out, 1),), FLOATS, required=False),
            "weight_offset": offset,
        }
    if scheme != W4A8_DYNAMIC or layout == UNPACKED:
        return {"weight": weight, "weight_scale": scale, "weight_offset": offset}
    columns = DOWN_COLUMNS if name.endswith(".down_proj.weight") else 1
    parts = {
        "weight": Part(((out // 2, inner),), _INTEGERS),
        "weight_scale": scale,
        "scale_bias": Part(((out, columns),), FLOATS),
        "weight_offset": offset,
    }
    if layout == GROUPS and group > 0:
        second = ((out, inner // group),)
        parts["weight_scale_second"] = Part(second, FLOATS)
        parts["weight_offset_second"] = Part(second, (*FLOATS, "I8", "I64"), required=False)
    return parts
