"""Which schemes vllm-ascend has for a tensor of GLM-5, and the tensors each scheme stores.

Shapes are [out, in] and those of the checkpoint; int4 codes are packed in pairs along ``out``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from glm5_ascend.checkpoint_inventory import TensorSpec
from glm5_ascend.errors import CheckpointError

FLOAT, W8A8, W8A8_DYNAMIC, W4A8_DYNAMIC = "FLOAT", "W8A8", "W8A8_DYNAMIC", "W4A8_DYNAMIC"
ROTATION = "rot.weight"
# What a scheme may store beside a module's weight.
AUXILIARY = (
    "weight_scale",
    "weight_offset",
    "scale_bias",
    "input_scale",
    "input_offset",
    "quant_bias",
    "deq_scale",
)

# Parameters in the model's dtype may be stored wider.
FLOAT_BYTES_ALSO: Mapping[str, Collection[str]] = {"BF16": ("F32",)}

_EXPERT = re.compile(r".*\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight")
_LINEAR = re.compile(
    r".*\.(self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)"
    r"|mlp\.(shared_experts\.)?(gate|up|down)_proj)\.weight"
)
# Partial sums of a down projection's scale_bias, one per slice of its input.
_DOWN_COLUMNS = 16
# Packed rows are read back as 32-bit words of eight codes.
_CODES_PER_WORD = 8


def schemes_for(name: str) -> tuple[str, ...]:
    """Schemes that the engine has for a weight; FLOAT alone for all but linears and experts.

    kv_b_proj is absorbed into attention, wk and weights_proj of the indexer are fused without
    quantisation, the router is compared with an F32 matrix, and eh_proj has no quantised form.
    """
    if _EXPERT.fullmatch(name):
        return FLOAT, W8A8_DYNAMIC, W4A8_DYNAMIC
    if _LINEAR.fullmatch(name):
        return FLOAT, W8A8, W8A8_DYNAMIC
    return (FLOAT,)


def required_tensors(name: str, spec: TensorSpec, scheme: str) -> dict[str, TensorSpec]:
    """What ``scheme`` must store for the tensor ``name`` of shape and dtype ``spec``.

    Raises:
        CheckpointError: the shape cannot be stored as int4.
    """
    if scheme == FLOAT:
        return {name: spec}
    out, inner = spec.shape
    module = name.removesuffix("weight")
    if scheme == W4A8_DYNAMIC:
        columns = _DOWN_COLUMNS if name.endswith(".down_proj.weight") else 1
        if out % _CODES_PER_WORD or inner % columns:
            raise CheckpointError(
                f"{name} of {out} x {inner} is described as {W4A8_DYNAMIC}, which cannot hold it",
                "quantise the checkpoint with --scheme w8a8",
            )
        return {
            name: TensorSpec((out // 2, inner), "I8"),
            f"{module}weight_scale": TensorSpec((out, 1), "F32"),
            f"{module}scale_bias": TensorSpec((out, columns), "F32"),
        }
    weight = {name: TensorSpec((out, inner), "I8")}
    if scheme == W8A8_DYNAMIC:
        return weight | {f"{module}weight_scale": TensorSpec((out, 1), "BF16")}
    return weight | {
        f"{module}input_scale": TensorSpec((1,), "BF16"),
        f"{module}input_offset": TensorSpec((1,), "I8"),
        f"{module}quant_bias": TensorSpec((out,), "I32"),
        f"{module}deq_scale": TensorSpec((out,), "F32"),
    }


def optional_tensors(name: str, spec: TensorSpec, scheme: str) -> dict[str, TensorSpec]:
    """What may be there as well: offsets of symmetric codes, and a scale derived from others."""
    if scheme == FLOAT:
        return {}
    module = name.removesuffix("weight")
    column = TensorSpec((spec.shape[0], 1), "F32" if scheme == W4A8_DYNAMIC else "BF16")
    extra = {f"{module}weight_offset": column}
    if scheme == W8A8:
        extra[f"{module}weight_scale"] = column
    return extra
