"""Shapes of the cost model: ``t`` tokens through one layer of GLM-5's sizes."""

from __future__ import annotations

import torch

from glm5_ascend.ops.emulator.cost_case import Case, Shape, halved, refuse
from glm5_ascend.ops.mlapo.api import mlapo

# int8=1: W8A8 with scales per token; 0: everything in BF16.
KEYS = {"t": 8, "h": 64, "int8": 1}
_HIDDEN, _Q_LORA, _LATENT, _ROPE, _NOPE, _PAGE = 6144, 2048, 512, 64, 192, 128
# Multiply-adds per second of the emulator on one core, and seconds for the weights.
_HOST_PRODUCTS, _HOST_WEIGHTS = 2e9, 10.0


def case(shape: Shape) -> Case:
    """The case of a shape."""
    t, h, int8 = (shape[key] for key in KEYS)
    refuse(t > 1024, f"t={t} tokens", "the kernel takes at most 1024")
    refuse(int8 > 1, f"int8 is {int8}", "write int8=0 or int8=1")
    down, up = (_Q_LORA + _LATENT + _ROPE) * _HIDDEN, h * (_NOPE + _ROPE) * _Q_LORA
    absorb = h * _NOPE * _LATENT
    products = {"int8": t * (down + up), "b16": t * absorb}
    if not int8:
        products = {"b16": t * (down + up + absorb)}
    return Case(
        run=lambda: _call(shape),
        floor="weights, once",
        floor_bytes=(1 if int8 else 2) * (down + up) + 2 * absorb,
        products=products,
        memory=8 * (down + up + absorb) + 16 * t * h * (_NOPE + _LATENT),
        seconds=_HOST_WEIGHTS + sum(products.values()) / _HOST_PRODUCTS,
        smaller=lambda: halved(shape, ("t",), {"t": 64}),
    )


def _call(shape: Shape) -> None:
    t, h, int8 = (shape[key] for key in KEYS)
    generator = torch.Generator().manual_seed(0)

    def weight(inputs: int, outputs: int) -> torch.Tensor:
        if int8:
            codes = torch.randint(-127, 128, (outputs, inputs), generator=generator)
            return codes.to(torch.int8).t()
        values: torch.Tensor = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
        return values.bfloat16().t()

    def scale(inputs: int, outputs: int) -> torch.Tensor | None:
        return torch.full((outputs,), 1 / 73 / inputs**0.5) if int8 else None

    columns = h * (_NOPE + _ROPE)
    angle = torch.arange(t)[:, None] * torch.logspace(0, -4, _ROPE // 2)
    caches = [
        torch.zeros(-(-t // _PAGE), _PAGE, 1, width, dtype=torch.bfloat16)
        for width in (_LATENT, _ROPE)
    ]
    mlapo(
        torch.randn(t, _HIDDEN, generator=generator).bfloat16(),
        weight(_HIDDEN, _Q_LORA),
        weight(_Q_LORA, columns),
        (torch.randn(h, _NOPE, _LATENT, generator=generator) / _NOPE**0.5).bfloat16(),
        weight(_HIDDEN, _LATENT + _ROPE),
        torch.ones(_Q_LORA, dtype=torch.bfloat16),
        torch.ones(_LATENT, dtype=torch.bfloat16),
        angle.sin(),
        angle.cos(),
        caches[0],
        caches[1],
        cache_index=torch.arange(t),
        dequant_scale_w_dq=scale(_HIDDEN, _Q_LORA),
        dequant_scale_w_uq_qr=scale(_Q_LORA, columns),
        dequant_scale_w_dkv_kr=scale(_HIDDEN, _LATENT + _ROPE),
        weight_quant_mode=2 if int8 else 0,
        query_norm_flag=True,
        backend="emulated",
    )
