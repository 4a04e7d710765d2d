"""The oracle for ``ascend`` checkpoints: an own reader of the format, run by transformers.

The format is read here from vllm_ascend's rules alone, without the project's quantiser: the
description, the int4 packing along the output axis, ``scale_bias`` and the static W8A8 constants.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.fake_quant import Channel, QuantExperts, QuantLinear, Static
from tests.support.hf import ENGINE_LATENT_EPS, HfOracle
from tests.support.weights import fuse_experts, read_tensors

_AUXILIARY = (
    "weight_scale",
    "weight_offset",
    "scale_bias",
    "input_scale",
    "input_offset",
    "quant_bias",
    "deq_scale",
)
_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj")


def read_description(directory: Path) -> dict[str, Any]:
    """Return ``quant_model_description.json`` as a dictionary."""
    path = directory / "quant_model_description.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Return int8 codes [N, K] of bytes [N/2, K]: low nibble = row 2i, high nibble = row 2i + 1."""
    unsigned = packed.to(torch.int16) & 0xFF
    low, high = unsigned & 0xF, unsigned >> 4
    codes = torch.stack([low, high], dim=1).flatten(0, 1)
    return torch.where(codes > 7, codes - 16, codes).to(torch.int8)


def _channel(module: str, parts: dict[str, torch.Tensor], int4: bool) -> Channel:
    codes = unpack_int4(parts["weight"]) if int4 else parts["weight"]
    if codes.dtype != torch.int8 or parts["weight_scale"].shape != (len(codes), 1):
        raise ValueError(f"{module}: wrong dtype or scale shape")
    if parts.get("weight_offset", torch.zeros(1)).any():
        raise ValueError(f"{module}: weight_offset is not zero")
    return Channel(codes, parts["weight_scale"].to(torch.float32))


def expected_scale_bias(weight: Channel, columns: int) -> torch.Tensor:
    """Return 8 · Σ codes·scale [N, columns] over equal slices of the input axis."""
    products = weight.codes.double() * weight.scale.double()
    return 8 * products.view(len(products), columns, -1).sum(dim=2)


def _check_scale_bias(module: str, weight: Channel, stored: torch.Tensor) -> None:
    columns = 16 if module.endswith("down_proj") else 1
    wanted = expected_scale_bias(weight, columns)
    limit = 1e-5 * (8 * weight.codes.double().abs() * weight.scale.double()).sum(dim=1).max()
    if stored.shape != wanted.shape or (stored.double() - wanted).abs().max() > limit:
        raise ValueError(f"{module}: scale_bias is not 8·Σ codes·scale in {columns} columns")


def _static(module: str, parts: dict[str, torch.Tensor]) -> Static:
    if parts["weight"].dtype != torch.int8 or parts["quant_bias"].dtype != torch.int32:
        raise ValueError(f"{module}: wrong dtype")
    return Static(
        parts["weight"],
        parts["input_scale"].to(torch.float32),
        parts["input_offset"],
        parts["quant_bias"],
        parts["deq_scale"].to(torch.float32),
    )


class AscendOracle(HfOracle):
    """Quantised checkpoint with its activation quantisation really applied.

    Inputs of W8A8_DYNAMIC and W4A8_DYNAMIC modules are quantised per token (int8, symmetric), those
    of W8A8 modules per tensor with the stored scale and offset. ``activations=False`` leaves them
    alone, so that only the weights are those of the checkpoint. ``check_bias=False`` loads a
    checkpoint whose ``scale_bias`` is wrong, which has no influence here. ``record_codes`` makes
    the activation codes part of the choices; injecting them settles rounding ties (see
    :meth:`Probe.settle`), without which two exact implementations drift apart.
    """

    def __init__(
        self,
        directory: Path,
        *,
        dtype: torch.dtype = torch.float32,
        latent_eps: float = ENGINE_LATENT_EPS,
        activations: bool = True,
        check_bias: bool = True,
        record_codes: bool = False,
    ) -> None:
        self.description = read_description(directory)
        self.activations, self.check_bias = activations, check_bias
        self.quantised: dict[str, Channel | Static] = {}
        super().__init__(directory, dtype=dtype, latent_eps=latent_eps)
        self.probe.record_codes = record_codes

    def _float_tensors(self) -> dict[str, torch.Tensor]:
        if self.description.get("group_size", 0) != 0:
            raise ValueError("group_size must be 0 for per-channel int4")
        stored = read_tensors(self.directory)
        plain: dict[str, torch.Tensor] = {}
        modules: dict[str, dict[str, torch.Tensor]] = {}
        for name, values in stored.items():
            module, _, part = name.rpartition(".")
            if self.description.get(f"{module}.weight", "FLOAT") == "FLOAT":
                if part in _AUXILIARY or values.dtype == torch.int8:
                    raise ValueError(f"{name} belongs to a module described as FLOAT or not at all")
                plain[name] = values
            else:
                modules.setdefault(module, {})[part] = values
        for module, parts in modules.items():
            self.quantised[module] = self._read_module(module, parts)
            plain[f"{module}.weight"] = self.quantised[module].dequantised()
        return {n: t.to(self.dtype) for n, t in fuse_experts(plain).items()}

    def _read_module(self, module: str, parts: dict[str, torch.Tensor]) -> Channel | Static:
        if unknown := parts.keys() - {"weight", *_AUXILIARY}:
            raise ValueError(f"{module} has unknown tensors {sorted(unknown)}")
        scheme = self.description[f"{module}.weight"]
        is_expert = _EXPERT.fullmatch(module) is not None
        if is_expert and scheme == "W4A8_DYNAMIC":
            weight = _channel(module, parts, int4=True)
            if self.check_bias:
                _check_scale_bias(module, weight, parts["scale_bias"])
            return weight
        if scheme == "W8A8_DYNAMIC":
            return _channel(module, parts, int4=False)
        if scheme == "W8A8" and not is_expert:
            return _static(module, parts)
        raise ValueError(f"{module}: scheme {scheme} is not known here")

    def prepare_layer(self, layer: nn.Module, index: int) -> None:
        """Replace the quantised linears and experts, then hook the choices."""
        if self.activations:
            self._replace_linears(layer, index)
            self._replace_experts(layer, index)
        super().prepare_layer(layer, index)

    def _replace_linears(self, layer: nn.Module, index: int) -> None:
        prefix = f"model.layers.{index}."
        for module, weight in self.quantised.items():
            if not module.startswith(prefix) or _EXPERT.fullmatch(module):
                continue
            parent, _, name = module.removeprefix(prefix).rpartition(".")
            setattr(layer.get_submodule(parent), name, QuantLinear(module, weight, self.probe))

    def _replace_experts(self, layer: nn.Module, index: int) -> None:
        experts: dict[int, dict[str, Channel]] = {}
        for module, weight in self.quantised.items():
            match = _EXPERT.fullmatch(module)
            if match and int(match[1]) == index and isinstance(weight, Channel):
                experts.setdefault(int(match[2]), {})[match[3]] = weight
        if experts:
            mlp: Any = layer.get_submodule("mlp")
            name = f"model.layers.{index}.mlp.experts"
            ordered = [experts[e] for e in range(len(experts))]
            mlp.experts = QuantExperts(name, ordered, self.probe)
