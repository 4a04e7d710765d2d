"""Read stored weights and check their values: ranges, scales and the identities between them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.ascend_schemes import FLOAT, ROTATION, W4A8_DYNAMIC, W8A8, W8A8_DYNAMIC
from glm5_ascend.checkpoint_values import first_not_finite
from glm5_ascend.config import Glm5Config
from glm5_ascend.files import open_regular
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.verify.findings import Condition
from glm5_ascend.verify.folder import Folder

_TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
# Of 8 · scale · Σ|codes|: what a sum in float32 may lose.
_SUM_TOLERANCE = 4e-6
_PRODUCT_TOLERANCE = 2.0**-23
_INT4_TOP = 8
_HEAD = 4096


class Values:
    """The tensors of a folder as torch tensors, mapped on first use."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._maps: dict[Path, mmap.mmap] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.folder.tensors

    def raw(self, name: str) -> memoryview:
        """Bytes of a tensor, mapped copy-on-write."""
        stored = self.folder.tensors[name]
        if stored.nbytes == 0:
            return memoryview(bytearray())
        if stored.file not in self._maps:
            with open_regular(stored.file) as stream:
                self._maps[stored.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        return memoryview(self._maps[stored.file])[stored.offset : stored.offset + stored.nbytes]

    def tensor(self, name: str) -> Tensor:
        """A tensor in its stored dtype and shape."""
        spec = self.folder.spec(name)
        if 0 in spec.shape:
            return torch.empty(spec.shape, dtype=_TORCH[spec.dtype])
        return torch.frombuffer(self.raw(name), dtype=_TORCH[spec.dtype]).reshape(spec.shape)

    def first_bad(self, name: str) -> int | None:
        """Flat index of the first NaN or infinity."""
        return first_not_finite(self.raw(name), self.folder.spec(name).dtype)


@dataclass(frozen=True, slots=True)
class Codes:
    """Integer codes int8 [out, in] of one weight and the float64 scale [out, 1] of its rows."""

    codes: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        """float64 [out, in]."""
        return self.codes.double() * self.scale


def read_codes(values: Values, name: str, scheme: str) -> Codes | None:
    """Codes and scales of a weight; None where its scheme has no single scale per row here."""
    module = name.removesuffix("weight")
    stored = values.tensor(name)
    if scheme == W4A8_DYNAMIC:
        if f"{module}weight_scale_second" in values or f"{module}scale_bias" not in values:
            return None
        stored = unpack_rows(stored)
    if f"{module}weight_scale" in values:
        scale = values.tensor(f"{module}weight_scale").double()
    elif scheme == W8A8:
        deq = values.tensor(f"{module}deq_scale").double()
        scale = deq[:, None] / values.tensor(f"{module}input_scale").double().reshape(1, 1)
    else:
        return None
    if stored.dim() != 2 or scale.shape != (stored.shape[0], 1):
        return None
    return Codes(stored, scale)


def check_values(
    values: Values, config: Glm5Config, schemes: Mapping[str, str | None], name: str
) -> list[Condition]:
    """Conditions of one weight, with everything stored beside it.

    Args:
        values: the checkpoint.
        config: its configuration.
        schemes: scheme of every weight.
        name: the weight; it and its parts must have passed the header check.
    """
    scheme = schemes.get(name)
    module = name.removesuffix("weight")
    parts = [n for n in (name, *(module + s for s in _FLOAT_PARTS)) if n in values]
    found = [
        Condition("not-finite", part, f"first at element {bad:,}")
        for part in parts
        if (bad := values.first_bad(part)) is not None
    ]
    if found or scheme is None or name not in values:
        return found
    if scheme == FLOAT:
        return _float(values, config, name)
    offset = f"{module}weight_offset"
    if offset in values and bool(values.tensor(offset).ne(0).any()):
        found.append(Condition("offset-value", offset))
    for suffix in ("weight_scale", "input_scale", "deq_scale"):
        part = module + suffix
        if part in values and not bool((values.tensor(part).double() > 0).all()):
            found.append(Condition("scale-value", part))
    pair = None if found else read_codes(values, name, scheme)
    if pair is None:
        return found
    low, high = (int(bound) for bound in torch.aminmax(pair.codes))
    if low == high == 0:
        found.append(Condition("codes-zero", name))
    elif scheme != W4A8_DYNAMIC and max(-low, high) <= _INT4_TOP:
        found.append(Condition("codes-narrow", name))
    if scheme == W4A8_DYNAMIC:
        return found + _scale_bias(values, pair, module)
    if scheme == W8A8_DYNAMIC:
        return found + _rounded(values, config, f"{module}weight_scale")
    return found + _rounded(values, config, f"{module}input_scale") + _static(values, pair, module)


_FLOAT_PARTS = (
    "weight_scale",
    "weight_offset",
    "scale_bias",
    "input_scale",
    "input_offset",
    "deq_scale",
    "weight_scale_second",
)


def expected_bias(pair: Codes, columns: int) -> tuple[Tensor, Tensor]:
    """What ``scale_bias`` must be, and what rounding errors of its sums are measured by.

    Sums of int4 are exact in float32, which adds several times faster than integers here.

    Returns:
        8 · Σ codes · scale over equal slices of the input, float64 [out, columns], and
        8 · Σ|codes| · scale, float64 [out, 1].
    """
    codes = pair.codes.float()
    sums = codes.reshape(codes.shape[0], columns, -1).sum(-1)
    reach = torch.linalg.vector_norm(codes, 1, 1, True)
    return 8.0 * sums.double() * pair.scale, 8.0 * reach.double() * pair.scale


def _scale_bias(values: Values, pair: Codes, module: str) -> list[Condition]:
    name = f"{module}scale_bias"
    stored = values.tensor(name).double()
    if pair.codes.shape[1] % stored.shape[1]:
        return []
    wanted, reach = expected_bias(pair, stored.shape[1])
    limit = _SUM_TOLERANCE * reach
    total = (stored.sum(1, keepdim=True) - wanted.sum(1, keepdim=True)).abs()
    if bool((total > limit).any()):
        return [Condition("scale-bias-value", name, _worst(total, reach))]
    apart = (stored - wanted).abs()
    if bool((apart > limit).any()):
        return [Condition("scale-bias-split", name, _worst(apart, reach))]
    return []


def _worst(apart: Tensor, reach: Tensor) -> str:
    share = float((apart / reach.clamp_min(1e-300)).max())
    return f"is off by up to {share:.1e} of the sum of magnitudes"


def _rounded(values: Values, config: Glm5Config, name: str) -> list[Condition]:
    scale = values.tensor(name)
    if config.dtype != "bfloat16" or torch.equal(scale.double(), scale.bfloat16().double()):
        return []
    return [Condition("scale-rounded", name)]


def _static(values: Values, pair: Codes, module: str) -> list[Condition]:
    found = []
    deq = values.tensor(f"{module}deq_scale")
    step = values.tensor(f"{module}input_scale").double().reshape(())
    if f"{module}weight_scale" in values:
        exact = (step * pair.scale[:, 0]).float()
        apart = (deq.double() - exact.double()).abs() > _PRODUCT_TOLERANCE * exact.double()
        if bool(apart.any()):
            same = torch.equal(deq, exact.bfloat16().float())
            rule = "deq-scale-rounded" if same else "deq-scale-value"
            found.append(Condition(rule, f"{module}deq_scale"))
    elif torch.equal(deq, deq.bfloat16().float()) and deq.numel() > 1:
        found.append(Condition("deq-scale-rounded", f"{module}deq_scale"))
    offset = values.tensor(f"{module}input_offset").double().reshape(())
    wanted = torch.round(-offset * pair.codes.sum(1, dtype=torch.int64).double())
    if bool((values.tensor(f"{module}quant_bias").double() - wanted).abs().gt(1).any()):
        found.append(Condition("quant-bias-value", f"{module}quant_bias"))
    return found


def _float(values: Values, config: Glm5Config, name: str) -> list[Condition]:
    found = []
    is_matrix = len(values.folder.spec(name).shape) == 2
    # The first bytes settle it for every matrix that is not all zeros.
    if is_matrix and not any(values.raw(name)[:_HEAD]) and not any(values.raw(name)):
        found.append(Condition("codes-zero", name))
    if name == f"model.layers.{config.num_hidden_layers}.embed_tokens.weight":
        main = "model.embed_tokens.weight"
        if main in values and values.raw(main) != values.raw(name):
            found.append(Condition("mtp-embedding-value", name))
    if name == ROTATION and not torch.equal(values.tensor(name), values.tensor(name).T):
        found.append(Condition("rotation-value", name, "is not symmetric"))
    return found
