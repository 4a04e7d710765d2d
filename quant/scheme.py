"""The quantisation schemes of a checkpoint for vllm-ascend, and the tensors each one stores."""

from __future__ import annotations

from enum import StrEnum

from glm5_ascend.checkpoint_inventory import TensorSpec
from glm5_ascend.errors import ConfigError

# The loader sums this many partial sums of a down projection's scale_bias, one per slice of the
# input dimension, so that any MoE tensor parallelism up to 16 can add its own share.
DOWN_BIAS_COLUMNS = 16


class Scheme(StrEnum):
    """How one matrix is stored; values are the strings of ``quant_model_description.json``."""

    FLOAT = "FLOAT"
    W8A8 = "W8A8"
    W8A8_DYNAMIC = "W8A8_DYNAMIC"
    W4A8_DYNAMIC = "W4A8_DYNAMIC"


def stored_tensors(
    weight: str, shape: tuple[int, int], scheme: Scheme, float_dtype: str
) -> dict[str, TensorSpec]:
    """Return the tensors that ``scheme`` stores for ``<module>.weight`` [out, in], in file order.

    Four-byte tensors come first: the engine's readers take views of the mapped file, so an offset
    must be a multiple of the element size.

    Raises:
        ConfigError: a dimension the integer layouts cannot hold.
    """
    if scheme is Scheme.FLOAT:
        return {weight: TensorSpec(shape, float_dtype)}
    out, inner = shape
    module = weight.removesuffix(".weight")
    column = TensorSpec((out, 1), "F32")
    tensors = {f"{module}.weight_scale": column, f"{module}.weight_offset": column}
    if scheme in (Scheme.W8A8, Scheme.W8A8_DYNAMIC):
        _require(weight, inner % 4 == 0, f"an input size that is a multiple of 4, got {inner}")
        if scheme is Scheme.W8A8:
            tensors |= {
                f"{module}.deq_scale": TensorSpec((out,), "F32"),
                f"{module}.quant_bias": TensorSpec((out,), "I32"),
                f"{module}.input_scale": TensorSpec((1,), "F32"),
                f"{module}.input_offset": TensorSpec((1,), "F32"),
            }
        return {**tensors, weight: TensorSpec(shape, "I8")}
    # Two codes per byte along `out`, read back as 32-bit words after a transpose.
    # int8 only needs multiples of 4, of this matrix' output too: a neighbour reads it.
    hint = "use --scheme none" if out % 4 or inner % 4 else "use --scheme w8a8"
    _require(weight, out % 8 == 0, f"an output size that is a multiple of 8, got {out}", hint)
    is_down = module.endswith(".down_proj")
    if is_down:
        _require(
            weight,
            inner % DOWN_BIAS_COLUMNS == 0,
            f"an input size that is a multiple of {DOWN_BIAS_COLUMNS}, got {inner}",
            hint,
        )
    bias = TensorSpec((out, DOWN_BIAS_COLUMNS if is_down else 1), "F32")
    return {
        **tensors,
        f"{module}.scale_bias": bias,
        weight: TensorSpec((out // 2, inner), "I8"),
    }


def _require(weight: str, holds: bool, need: str, hint: str = "use --scheme none") -> None:
    if not holds:
        raise ConfigError(f"{weight} cannot be quantised: it needs {need}", hint)
