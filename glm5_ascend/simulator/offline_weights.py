"""Reads the modules of one checkpoint directory: plain BF16/F32 files or an ``ascend`` export.

An export is known by its description file (the ModelSlim family's), which names one scheme per
``<module>.weight``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.config import Glm5Config, read_json_object
from glm5_ascend.errors import CheckpointError
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.simulator.offline_linear import (
    FLOAT,
    MOE_SCHEMES,
    W4A8_DYNAMIC,
    W8A8,
    W8A8_DYNAMIC,
    DynamicLinear,
    Experts,
    FloatLinear,
    Linear,
    StaticLinear,
)

_TORCH_DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}


class WeightStore:
    """Reads modules of one checkpoint on demand; a context manager.

    Args:
        directory: a checkpoint with ``config.json`` and safetensors files.
        dtype: compute dtype that FLOAT tensors are converted to.

    Raises:
        CheckpointError: block FP8 weights, an unknown scheme or a missing tensor.
    """

    # Whether a subclass dequantises block FP8 weights.
    reads_fp8 = False

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self.directory = directory
        self.dtype = dtype
        self.description = _read_description(directory)
        self._reader = CheckpointReader(directory)
        is_fp8 = self.config.fp8 is not None and self.description is None
        if is_fp8 and not self.reads_fp8:
            raise CheckpointError(
                f"{directory} holds block FP8 weights, which the offline model does not read",
                "convert it first with glm5-ascend quantize --scheme none",
            )

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.__exit__(kind, value, trace)

    @property
    def config(self) -> Glm5Config:
        return self._reader.config

    @property
    def uses_rot(self) -> bool:
        """Whether the MTP layer wants its incoming hidden states multiplied by ``rot.weight``."""
        return self.description is not None and bool(self.description.get("is_rot_used"))

    def scheme(self, module: str) -> str:
        """Return the quantisation scheme of one module, FLOAT in a plain checkpoint."""
        if self.description is None:
            return FLOAT
        value = self.description.get(f"{module}.weight")
        if not isinstance(value, str):
            raise CheckpointError(
                f"{DESCRIPTION_FILE} in {self.directory} does not describe {module}.weight",
                "write the checkpoint again; every weight needs an entry",
            )
        return value

    def has(self, name: str) -> bool:
        return name in self._reader

    def raw(self, name: str) -> Tensor:
        """Return one tensor in the dtype of its file, mapped, not copied."""
        spec = self._reader.spec(name)
        dtype = _TORCH_DTYPES.get(spec.dtype)
        if dtype is None:
            raise CheckpointError(
                f"tensor {name} has dtype {spec.dtype}, which the offline model does not read",
                "use BF16, F32 or an ascend export",
            )
        return torch.frombuffer(self._reader.raw(name), dtype=dtype).reshape(spec.shape)

    def float(self, name: str) -> Tensor:
        """Return one FLOAT tensor in the compute dtype; integer codes are an error."""
        value = self.raw(name)
        if not value.is_floating_point():
            raise CheckpointError(
                f"tensor {name} holds {value.dtype} codes where only a float tensor is possible",
                "keep it FLOAT: the engine absorbs or fuses it",
            )
        return value.to(self.dtype)

    def linear(self, module: str) -> Linear:
        """Return the linear ``module`` in the scheme that the description gives it."""
        scheme = self.scheme(module)
        if scheme == FLOAT:
            return FloatLinear(self.float(f"{module}.weight"))
        weight = self.raw(f"{module}.weight")
        if scheme == W8A8_DYNAMIC:
            return DynamicLinear(weight, self._f32(f"{module}.weight_scale"))
        if scheme == W8A8:
            return StaticLinear(
                weight,
                self._f32(f"{module}.input_scale"),
                self._f32(f"{module}.input_offset"),
                self.raw(f"{module}.quant_bias"),
                self._f32(f"{module}.deq_scale"),
            )
        raise _unknown_scheme(module, scheme)

    def experts(self, prefix: str, some: range | None = None) -> Experts:
        """Stack all routed experts below ``prefix`` (``…mlp.experts``), or ``some`` of them, which
        are then numbered from 0; they must have one scheme."""
        some = range(self.config.n_routed_experts) if some is None else some
        names = [f"{prefix}.{e}.{p}_proj" for e in some for p in ("gate", "up", "down")]
        schemes = {self.scheme(name) for name in names}
        scheme = schemes.pop()
        if schemes:
            raise CheckpointError(
                f"experts of {prefix} have different schemes", "use one scheme for all experts"
            )
        if scheme not in MOE_SCHEMES:
            raise _unknown_scheme(prefix, scheme)
        w13, w2 = self._stack(prefix, some, "weight", self.float if scheme == FLOAT else self.raw)
        if scheme == FLOAT:
            return Experts(MOE_SCHEMES[scheme], w13, w2)
        scales = self._stack(prefix, some, "weight_scale", self._f32)
        biases: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if scheme == W4A8_DYNAMIC:
            biases = self._stack(prefix, some, "scale_bias", self._f32)
        return Experts(MOE_SCHEMES[scheme], w13, w2, *scales, *biases)

    def _stack(
        self, prefix: str, some: range, leaf: str, read: Callable[[str], Tensor]
    ) -> tuple[Tensor, Tensor]:
        gate_up, down = [], []
        for expert in some:
            gate = read(f"{prefix}.{expert}.gate_proj.{leaf}")
            up = read(f"{prefix}.{expert}.up_proj.{leaf}")
            gate_up.append(torch.cat((gate, up)))
            down.append(read(f"{prefix}.{expert}.down_proj.{leaf}"))
        return torch.stack(gate_up), torch.stack(down)

    def _f32(self, name: str) -> Tensor:
        return self.raw(name).to(torch.float32)


def _unknown_scheme(module: str, scheme: str) -> CheckpointError:
    return CheckpointError(
        f"{module} has scheme {scheme}, which the offline model does not know",
        f"known schemes: {FLOAT}, {W8A8}, {W8A8_DYNAMIC}, {W4A8_DYNAMIC} (experts only)",
    )


def _read_description(directory: Path) -> dict[str, object] | None:
    path = directory / DESCRIPTION_FILE
    return read_json_object(path) if path.exists() else None
