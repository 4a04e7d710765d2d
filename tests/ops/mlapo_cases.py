"""Inputs of mlapo in every weight scheme, and its formulas in NumPy.

Nothing here uses ``glm5_ascend``. ``formula`` works in F64 or F32; between the stages it rounds to
the activations' format where the operator's contract does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

EPS_Q, EPS_KV = 1e-5, 3e-5
BLOCK = 16


@dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    q_lora: int
    heads: int
    nope: int
    rope: int
    kv_lora: int

    def __str__(self) -> str:
        return self.name


SMALL = Shape("small", 192, 96, 4, 64, 64, 256)
AWKWARD = Shape("awkward", 100, 37, 3, 21, 6, 45)
WIDE = Shape("wide", 320, 128, 2, 192, 64, 512)
GLM5 = Shape("GLM-5", 6144, 2048, 64, 192, 64, 512)
DEEPSEEK = Shape("DeepSeek-V3.2", 7168, 1536, 128, 128, 64, 512)
# name -> (weight_quant_mode, static activations)
SCHEMES = {"float": (0, False), "up": (1, False), "dynamic": (2, False), "static": (2, True)}


@dataclass(frozen=True)
class Case:
    """``weights`` are [out, in] as a checkpoint has them, int8 with scales where quantised."""

    shape: Shape
    tokens: int
    scheme: str
    dtype: torch.dtype
    seed: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``mlapo``; the caches hold NaN."""
        torch.manual_seed(self.seed)
        s, mode = self.shape, SCHEMES[self.scheme][0]
        x = torch.randn(self.tokens, s.hidden) * torch.logspace(-2, 1, self.tokens)[:, None]
        if self.scheme == "static":
            x = torch.randn(self.tokens, s.hidden) + 0.2
        angles = torch.rand(self.tokens, s.rope // 2) * 6
        blocks = self.tokens // BLOCK + 3
        slots = torch.randperm(blocks * BLOCK)[: self.tokens]
        slots[self.tokens // 2 :: 5] = -1
        result = {
            "token_x": x.to(self.dtype),
            "weight_uk": (torch.randn(s.heads, s.nope, s.kv_lora) * s.nope**-0.5).to(self.dtype),
            "rmsnorm_gamma_cq": torch.rand(s.q_lora).add(0.5).to(self.dtype),
            "rmsnorm_gamma_ckv": torch.rand(s.kv_lora).add(0.5).to(self.dtype),
            "rope_sin": angles.sin(),
            "rope_cos": angles.cos(),
            "kv_cache": torch.full((blocks, BLOCK, 1, s.kv_lora), torch.nan, dtype=self.dtype),
            "kr_cache": torch.full((blocks, BLOCK, 1, s.rope), torch.nan, dtype=self.dtype),
            "cache_index": slots,
            "rmsnorm_epsilon_cq": EPS_Q,
            "rmsnorm_epsilon_ckv": EPS_KV,
            "weight_quant_mode": mode,
            "query_norm_flag": True,
        }
        return result | self._projections() | self._static()

    def _projections(self) -> dict[str, Tensor]:
        s, mode = self.shape, SCHEMES[self.scheme][0]
        sizes = {
            "dq": (s.q_lora, s.hidden),
            "dkv_kr": (s.kv_lora + s.rope, s.hidden),
            "uq_qr": (s.heads * (s.nope + s.rope), s.q_lora),
        }
        result = {}
        for name, size in sizes.items():
            weight = torch.randn(size) * size[1] ** -0.5
            if mode < (1 if name == "uq_qr" else 2):
                result[f"weight_{name}"] = weight.to(self.dtype).T
                continue
            scale = weight.abs().amax(1, keepdim=True) / 127
            result[f"weight_{name}"] = (weight / scale).round().to(torch.int8).T
            result[f"dequant_scale_w_{name}"] = scale.T.contiguous()
        if self.scheme == "static":
            for name, (scale, offset) in self.static_points.items():
                codes = result[f"weight_{name}"]
                result[f"dequant_scale_w_{name}"] = result[f"dequant_scale_w_{name}"] * scale
                result[f"quant_bias_{name}"] = (-offset * codes.long().sum(0)).int()
        return result

    @property
    def static_points(self) -> dict[str, tuple[float, int]]:
        """Scale and offset of what each projection multiplies; some activations saturate."""
        return {"dq": (0.025, -17), "dkv_kr": (0.025, -17), "uq_qr": (0.03125, 9)}

    def _static(self) -> dict[str, Tensor]:
        if self.scheme != "static":
            return {}
        points = {"x": self.static_points["dq"], "cq": self.static_points["uq_qr"]}
        result = {}
        for point, (scale, offset) in points.items():
            result[f"quant_scale_{point}"] = torch.tensor([scale])
            result[f"quant_offset_{point}"] = torch.tensor([offset], dtype=torch.int8)
        return result

    def fresh(self, **changes: Any) -> dict[str, Any]:
        """``arguments`` with caches of its own."""
        caches = {name: self.arguments[name].clone() for name in ("kv_cache", "kr_cache")}
        return {**self.arguments, **caches, **changes}


def _numpy(x: Tensor, kind: Any) -> np.ndarray:
    return x.double().numpy().astype(kind)


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x @ weight; in F32 term by term, which is as good as any order an F32 kernel may take."""
    if x.dtype == np.float64:
        return x @ weight
    total = np.zeros((len(x), weight.shape[1]), x.dtype)
    for k in range(weight.shape[0]):
        total += x[:, k : k + 1] * weight[k]
    return total


class Formula:
    """The stages in the float type ``kind``; ``codes`` of the q latent may be given."""

    def __init__(self, case: Case, kind: Any, codes: tuple[Tensor, Tensor | None] | None = None):
        self.case, self.kind, self.given = case, kind, codes
        self.a = case.arguments
        self._run()

    def _round(self, x: np.ndarray) -> np.ndarray:
        """``x`` as the activations' format holds it, unless that is what the kind is for."""
        if self.case.dtype in (torch.float32, torch.float64):
            return x
        return _numpy(torch.from_numpy(x).to(self.case.dtype), self.kind)

    def _project(self, x: np.ndarray, scale: np.ndarray | None, name: str) -> np.ndarray:
        weight, bias = self.a[f"weight_{name}"], self.a.get(f"quant_bias_{name}")
        if weight.dtype != torch.int8:
            return self._round(_product(x, _numpy(weight, self.kind)))
        # F64 sums of these whole numbers are exact.
        total = (x.astype(np.float64) @ weight.numpy().astype(np.float64)).astype(np.int64)
        if bias is not None:
            total = total + bias.numpy()
        y = total.astype(self.kind) * _numpy(self.a[f"dequant_scale_w_{name}"], self.kind)
        return self._round(y if scale is None else y * scale)

    def _quantise(self, x: np.ndarray, point: str) -> tuple[np.ndarray, np.ndarray | None]:
        wide = x.astype(np.float32)
        if f"quant_scale_{point}" in self.a:
            scale = self.a[f"quant_scale_{point}"].numpy()
            shifted = wide / scale + self.a[f"quant_offset_{point}"].numpy().astype(np.float32)
            return np.clip(np.rint(shifted), -128, 127), None
        largest = np.abs(wide).max(-1, keepdims=True) / np.float32(127)
        return np.rint(wide / largest), largest

    def _norm(self, x: np.ndarray, gamma: Tensor, eps: float) -> np.ndarray:
        size = np.sqrt((x * x).mean(-1, keepdims=True) + self.kind(eps))
        return self._round(self._round(x / size) * _numpy(gamma, self.kind))

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """Neighbours as real and imaginary part, turned by multiplication."""
        cos, sin = (_numpy(self.a[f"rope_{name}"], self.kind) for name in ("cos", "sin"))
        turn = (cos + 1j * sin).reshape(len(x), *[1] * (x.ndim - 2), -1)
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack((turned.real, turned.imag), -1).reshape(x.shape)

    def _run(self) -> None:
        s, mode = self.case.shape, self.a["weight_quant_mode"]
        x, scale = _numpy(self.a["token_x"], self.kind), None
        if mode == 2:
            x, scale = self._quantise(x, "x")
        self.latent = self._norm(self._project(x, scale, "dq"), self.a["rmsnorm_gamma_cq"], EPS_Q)
        kv = self._project(x, scale, "dkv_kr")
        self.kv_rows = self._norm(kv[:, : s.kv_lora], self.a["rmsnorm_gamma_ckv"], EPS_KV)
        self.kr_rows = self._rotate(kv[:, s.kv_lora :])
        codes, self.scale = self.latent, None
        if mode:
            codes, self.scale = self._quantise(self.latent, "cq")
            self.codes = codes
        if self.given is not None:
            codes = self.given[0].numpy()
            self.scale = None if self.given[1] is None else _numpy(self.given[1], self.kind)
        query = self._project(codes, self.scale, "uq_qr").reshape(len(x), s.heads, -1)
        w_uk = _numpy(self.a["weight_uk"], self.kind)
        heads = [_product(query[:, h, : s.nope], w_uk[h]) for h in range(s.heads)]
        self.query = np.stack(heads, 1)
        self.query_rope = self._rotate(query[..., s.nope :])

    def written(self, cache: str) -> np.ndarray:
        """The cache after the call: NaN where nothing was written."""
        rows = self.kv_rows if cache == "kv_cache" else self.kr_rows
        target = np.full_like(_numpy(self.a[cache], self.kind), np.nan)
        flat = target.reshape(-1, target.shape[-1])
        for row, slot in zip(rows, self.a["cache_index"].tolist(), strict=True):
            if slot >= 0:
                flat[slot] = row
        return target
