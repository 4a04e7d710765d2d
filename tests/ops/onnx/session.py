"""ONNX Runtime on torch tensors, and models of one function call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, parser
from torch import Tensor

from glm5_ascend.ops.onnx.functions import with_functions
from glm5_ascend.ops.onnx.names import DOMAIN

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int8: TensorProto.INT8,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
}
NAMES = {torch.float32: "float", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Session:
    """A checked model in ONNX Runtime on one thread of the CPU."""

    def __init__(self, model: onnx.ModelProto | str) -> None:
        onnx.checker.check_model(model, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        source = model if isinstance(model, str) else model.SerializeToString()
        self._session = onnxruntime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.outputs = [value.name for value in self._session.get_outputs()]

    @classmethod
    def of_text(cls, graph: str) -> Session:
        """Of a graph in ONNX's text form that calls our functions."""
        return cls(with_functions(parser.parse_graph(graph)))

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        feeds = {name: _value(tensor) for name, tensor in inputs.items()}
        results = self._session.run_with_ort_values(None, feeds)
        return dict(zip(self.outputs, map(_tensor, results), strict=True))


def call_model(
    function: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[torch.dtype, int]],
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one call, ``x0, x1, ..`` to ``y0, y1, ..``; all axes are dynamic.

    Args:
        inputs: tensors whose dtypes and numbers of axes are taken.
        outputs: dtype and number of axes of each result.
    """

    def declare(name: str, dtype: torch.dtype, rank: int) -> onnx.ValueInfoProto:
        axes = [f"{name}_{i}" for i in range(rank)]
        return helper.make_tensor_value_info(name, TYPES[dtype], axes)

    given = [declare(f"x{i}", x.dtype, x.ndim) for i, x in enumerate(inputs)]
    results = [declare(f"y{i}", dtype, rank) for i, (dtype, rank) in enumerate(outputs)]
    node = helper.make_node(
        function, [x.name for x in given], [y.name for y in results], domain=DOMAIN, **attributes
    )
    return with_functions(helper.make_graph([node], function, given, results))


def _value(tensor: Tensor) -> Any:
    tensor = tensor.contiguous()
    make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    if tensor.dtype == torch.bfloat16:
        return make(tensor.view(torch.uint16).numpy(), TensorProto.BFLOAT16)
    return make(tensor.numpy(), TYPES[tensor.dtype])


def _tensor(value: Any) -> Tensor:
    if value.element_type() == TensorProto.BFLOAT16:
        # NumPy has no bfloat16; only the inner object gives the memory away.
        return torch.from_dlpack(value._ortvalue.to_dlpack()).clone()
    return torch.from_numpy(value.numpy().copy())
