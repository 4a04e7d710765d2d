"""From rounded weights to the tensors that a scheme stores."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.quant.nearest import round_nearest
from glm5_ascend.quant.packing import offset_bias, pack_rows
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.rounding import round_int4, round_int8
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import StaticRange
from glm5_ascend.quant.static_linear import static_tensors


def rounded(weight: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Codes int8 [out, in] and scale float32 [out, 1] of a step, from its weight [out, in] alone.

    A step of ``gptq`` gets here where nothing is known of its input.
    """
    bits = 4 if step.scheme is Scheme.W4A8_DYNAMIC else 8
    if step.rounding == "nearest":
        return round_nearest(weight, bits)
    return round_int4(weight) if bits == 4 else round_int8(weight)


def stored_form(
    step: Step, codes: Tensor, scale: Tensor, given: StaticRange | None = None
) -> dict[str, Tensor]:
    """The tensors of ``step.stored`` by name.

    Args:
        step: a quantised step.
        codes: int8 [out, in].
        scale: float32 [out, 1], exact in bfloat16 for 8 bits.
        given: range of the input of a static step.
    """
    module = step.name.removesuffix(".weight")
    extra: dict[str, Tensor] = {}
    if step.scheme is Scheme.W8A8:
        if given is None:
            raise ValueError(f"{step.name} is static, and no range of its input is known")
        extra = {f"{module}.{name}": t for name, t in static_tensors(codes, scale, given).items()}
    elif step.scheme is Scheme.W4A8_DYNAMIC:
        is_down = module.endswith(".down_proj")
        extra = {f"{module}.scale_bias": offset_bias(codes, scale, is_down=is_down)}
        codes = pack_rows(codes)
    return {
        step.name: codes,
        f"{module}.weight_scale": scale,
        f"{module}.weight_offset": torch.zeros_like(scale),
        **extra,
    }
