"""Int8 linear layers of the ``ascend`` quantisation: W8A8_DYNAMIC and static W8A8."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import LinearMethodBase

from glm5_ascend.errors import CheckpointError
from glm5_ascend.ops import linear_w8a8_dynamic, linear_w8a8_static
from glm5_ascend.simulator.quant_param import Loader, empty, make_parameter

_HINT = "make the checkpoint again with `glm5-ascend quantize`"


class _Partition:
    """How one linear module, perhaps of several fused ones, is cut for this rank."""

    def __init__(
        self, layer: Any, inputs: int, outputs: list[int], full_inputs: int, full_outputs: int
    ) -> None:
        # A replicated layer, such as the indexer's wq_b, has a rank too and is whole on each.
        self.rank: int = layer.tp_rank
        self.inputs = inputs
        self.outputs = outputs
        self.is_row_parallel = inputs != full_inputs
        self.is_column_parallel = sum(outputs) != full_outputs

    def rows(self, part: int) -> slice:
        """Rows of fused part ``part`` in this rank's parameter."""
        start = sum(self.outputs[:part])
        return slice(start, start + self.outputs[part])

    def matrix(self, data: Tensor, part: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Place of a [N, K] tensor."""
        if self.is_row_parallel:
            start = self.rank * self.inputs
            return data[self.rows(part)], tensor[:, start : start + self.inputs]
        return self.channel(data, part, tensor)

    def channel(self, data: Tensor, part: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Place of a tensor whose first axis is N."""
        size = self.outputs[part]
        start = self.rank * size if self.is_column_parallel else 0
        if tensor.ndim == 0 or tensor.shape[0] % size:
            return data[self.rows(part)], tensor
        return data[self.rows(part)], tensor[start : start + size]

    @staticmethod
    def scalar(data: Tensor, part: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Place of a tensor of one element."""
        return data[part : part + 1], tensor.reshape(1) if tensor.ndim == 0 else tensor


class _Int8Linear(LinearMethodBase):  # type: ignore[misc]
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def _add(
        self, layer: Any, name: str, data: Tensor, place: Any, parts: int, optional: bool = False
    ) -> None:
        loader = Loader(partial(place, data), set(range(parts)))

        def load(parameter: Tensor, tensor: Tensor, part: int | None = None) -> None:
            loader.load(part or 0, tensor)

        layer.register_parameter(name, make_parameter(data, loader, load, optional=optional))

    def _add_weight(
        self,
        layer: Any,
        inputs: int,
        outputs: list[int],
        full: tuple[int, int],
        scale_dtype: torch.dtype,
        *,
        scale_optional: bool,
    ) -> _Partition:
        cut = _Partition(layer, inputs, outputs, *full)
        rows, parts = sum(outputs), len(outputs)
        self._add(layer, "weight", empty((rows, inputs), torch.int8), cut.matrix, parts)
        self._add(
            layer, "weight_scale", empty((rows, 1), scale_dtype), cut.channel, parts, scale_optional
        )
        self._add(layer, "weight_offset", empty((rows, 1), scale_dtype), cut.channel, parts, True)
        return cut

    def process_weights_after_loading(self, layer: Any) -> None:
        if layer.weight_offset.any():
            raise CheckpointError(
                f"{self.prefix}.weight_offset is not zero; int8 weights are symmetric", _HINT
            )


class DynamicLinear(_Int8Linear):
    """W8A8_DYNAMIC: activations quantised per token, scales kept in the model's dtype."""

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **unused: Any,
    ) -> None:
        self._add_weight(
            layer,
            input_size_per_partition,
            output_partition_sizes,
            (input_size, output_size),
            params_dtype,
            scale_optional=False,
        )

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear_w8a8_dynamic(x, layer.weight, layer.weight_scale, bias)


class StaticLinear(_Int8Linear):
    """W8A8: activations quantised with one stored scale and offset.

    ``quant_bias`` holds the offset's correction for the whole input axis, so of the ranks that
    share a row-parallel layer only the first adds it.
    """

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **unused: Any,
    ) -> None:
        cut = self._add_weight(
            layer,
            input_size_per_partition,
            output_partition_sizes,
            (input_size, output_size),
            params_dtype,
            scale_optional=True,
        )
        rows, parts = sum(output_partition_sizes), len(output_partition_sizes)
        self._add(layer, "input_scale", empty((parts,), params_dtype), cut.scalar, parts)
        self._add(layer, "input_offset", empty((parts,), torch.int8), cut.scalar, parts)
        self._add(layer, "quant_bias", empty((rows,), torch.int32), cut.channel, parts)
        self._add(layer, "deq_scale", empty((rows,), torch.float32), cut.channel, parts)
        self.adds_bias = not cut.is_row_parallel or cut.rank == 0

    def process_weights_after_loading(self, layer: Any) -> None:
        super().process_weights_after_loading(layer)
        for name in ("input_scale", "input_offset"):
            values = getattr(layer, name)
            if bool((values != values[0]).any()):
                raise CheckpointError(
                    f"the modules fused in {self.prefix} differ in {name}, but the engine "
                    "quantises their common input once",
                    _HINT,
                )
        if not self.adds_bias:
            layer.quant_bias.data.zero_()

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = linear_w8a8_static(
            x,
            layer.weight,
            layer.input_scale[:1],
            layer.input_offset[:1],
            layer.quant_bias,
            layer.deq_scale,
        )
        return y if bias is None else y + bias
