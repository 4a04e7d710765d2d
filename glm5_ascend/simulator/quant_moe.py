"""Experts of the ``ascend`` quantisation: W8A8_DYNAMIC and W4A8_DYNAMIC."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from glm5_ascend.errors import CheckpointError
from glm5_ascend.ops import moe_experts
from glm5_ascend.ops.moe.api import Scheme
from glm5_ascend.ops.moe.packing import unpack_int4
from glm5_ascend.simulator.quant_param import Loader, empty, make_parameter

# Columns of down_proj.scale_bias: partial sums over up to 16 slices of the input axis.
BIAS_COLUMNS = 16
_HINT = "make the checkpoint again with `glm5-ascend quantize`"
_HALF = {"w1": 0, "w3": 1}  # vLLM's names of gate and up


class _Cut:
    """How the tensors of one expert are cut along its intermediate axis for this rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def _slice(self, tensor: Tensor, axis: int) -> Tensor:
        if tensor.ndim <= axis or tensor.shape[axis] % self.size:
            return tensor
        each = tensor.shape[axis] // self.size
        return tensor.narrow(axis, self.rank * each, each)

    def up(self, data: Tensor, key: tuple[int, str], tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up: the output axis is cut, gate rows come first."""
        expert, shard = key
        half = data.shape[1] // 2
        target = data[expert].narrow(0, _HALF[shard] * half, half)
        return target, self._slice(tensor, 0)

    def down(self, data: Tensor, key: tuple[int, str], tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Down: the input axis is cut (columns of ``scale_bias`` are slices of it too)."""
        return data[key[0]], self._slice(tensor, 1)

    def whole(self, data: Tensor, key: tuple[int, str], tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Scales of down: one per output channel on every rank."""
        return data[key[0]], tensor


class QuantisedExperts(FusedMoEMethodBase):  # type: ignore[misc]
    """Int8 or packed int4 experts; per-token int8 activations are really applied.

    Scales are kept in the model's dtype for W8A8 and in F32 for W4A8, as vllm-ascend does.
    """

    def __init__(self, moe_config: Any, scheme: Scheme) -> None:
        super().__init__(moe_config)
        self.scheme: Scheme = scheme

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **unused: Any,
    ) -> None:
        inner, hidden = intermediate_size_per_partition, hidden_size
        parallel = self.moe.moe_parallel_config
        cut = _Cut(parallel.tp_rank, parallel.tp_size)
        packed = 2 if self.scheme == "w4a8" else 1
        scale = torch.float32 if self.scheme == "w4a8" else params_dtype
        if BIAS_COLUMNS % cut.size and packed == 2:
            raise CheckpointError(
                f"W4A8 experts cannot be cut over {cut.size} ranks", "use a power of two up to 16"
            )
        layout = [
            ("w13_weight", (2 * inner // packed, hidden), torch.int8, cut.up, False),
            ("w2_weight", (hidden // packed, inner), torch.int8, cut.down, False),
            ("w13_weight_scale", (2 * inner, 1), scale, cut.up, False),
            ("w2_weight_scale", (hidden, 1), scale, cut.whole, False),
            ("w13_weight_offset", (2 * inner, 1), scale, cut.up, True),
            ("w2_weight_offset", (hidden, 1), scale, cut.whole, True),
        ]
        if packed == 2:
            columns = BIAS_COLUMNS // cut.size
            layout += [
                ("w13_scale_bias", (2 * inner, 1), torch.float32, cut.up, False),
                ("w2_scale_bias", (hidden, columns), torch.float32, cut.down, False),
            ]
        for name, shape, dtype, place, optional in layout:
            self._add(layer, name, empty((num_experts, *shape), dtype), place, optional)

    def _add(self, layer: Any, name: str, data: Tensor, place: Any, optional: bool) -> None:
        shards = ("w1", "w3") if name.startswith("w13") else ("w2",)
        parts = {(expert, shard) for expert in range(data.shape[0]) for shard in shards}
        loader = Loader(partial(place, data), parts)

        def load(
            parameter: Tensor,
            tensor: Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool:
            local = layer._map_global_expert_id_to_local_expert_id(expert_id)
            if local < 0:
                return False
            loader.load((local, shard_id), tensor)
            return True

        layer.register_parameter(name, make_parameter(data, loader, load, optional=optional))

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        return FusedMoEQuantConfig.make()

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13_weight_offset", "w2_weight_offset"):
            if getattr(layer, name).any():
                raise CheckpointError(
                    f"{layer.layer_name}.{name} is not zero; expert weights are symmetric", _HINT
                )
        if self.scheme == "w4a8" and layer.w13_weight.device.type != "cpu":
            self.unpack(layer)

    def unpack(self, layer: Any) -> None:
        """Keep int4 experts as int8, twice the memory, for devices with products of int8 only.

        The NPU computes scale * sum (x - 8) w + scale_bias; where scale_bias is 8 * scale * sum w
        that is W8A8.

        Raises:
            CheckpointError: a scale_bias that is not.
        """
        for name in ("w13", "w2"):
            codes = unpack_int4(getattr(layer, f"{name}_weight").data)
            scale = getattr(layer, f"{name}_weight_scale").data.float().squeeze(-1)
            given = getattr(layer, f"{name}_scale_bias").data.float().sum(-1)
            expected = 8 * scale * codes.sum(-1, dtype=torch.int32)
            # Sums in F32 are off by far less than half of what one code of one weight makes.
            if not bool(((given - expected).abs() <= 4 * scale.abs()).all()):
                raise CheckpointError(
                    f"{layer.layer_name}.{name}_scale_bias is not 8 times the scaled sums of the "
                    "int4 weights, which products of int8 assume",
                    "mend it with `glm5-ascend repair`, or make the checkpoint again",
                )
            layer.register_parameter(f"{name}_weight", Parameter(codes, requires_grad=False))
            delattr(layer, f"{name}_scale_bias")
        self.scheme = "w8a8"

    def apply(
        self, layer: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, *shared: Any, **kw: Any
    ) -> Tensor:
        bias = self.scheme == "w4a8"
        return moe_experts(
            x,
            topk_weights,
            topk_ids,
            layer.w13_weight,
            layer.w2_weight,
            scheme=self.scheme,
            w13_scale=layer.w13_weight_scale,
            w2_scale=layer.w2_weight_scale,
            w13_scale_bias=layer.w13_scale_bias if bias else None,
            w2_scale_bias=layer.w2_scale_bias if bias else None,
            expert_map=layer.expert_map,
        )
