"""Building a graph node by node, where text would be longer than code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from glm5_ascend.ops.onnx.names import DOMAIN
from glm5_ascend.ops.onnx.weights import Weight

ONNX_TYPES = {
    "F32": TensorProto.FLOAT,
    "I8": TensorProto.INT8,
    "I32": TensorProto.INT32,
    "I64": TensorProto.INT64,
}


class GraphBuilder:
    """Nodes, inputs, outputs and weights of one graph, in the order in which they are added."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights: list[Weight] = []
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        """Declare an input; text is a dynamic axis."""
        self._inputs.append(helper.make_tensor_value_info(name, ONNX_TYPES[dtype], shape))
        return name

    def output(self, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Declare the value ``name`` an output."""
        self._outputs.append(helper.make_tensor_value_info(name, ONNX_TYPES[dtype], shape))

    def constant(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """A small constant, kept in the model itself."""
        self._constants.append(onnx.numpy_helper.from_array(value, name))
        return name

    def weight(self, weight: Weight) -> str:
        """A weight of the checkpoint."""
        self.weights.append(weight)
        return weight.name

    def node(self, operator: str, *inputs: str, out: str, domain: str = "", **options: Any) -> str:
        """A standard operator with one result."""
        self._nodes.append(
            helper.make_node(operator, inputs, [out], name=out, domain=domain, **options)
        )
        return out

    def call(self, function: str, *inputs: str, out: str, **attributes: Any) -> str:
        """One of our functions with one result."""
        return self.node(function, *inputs, out=out, domain=DOMAIN, **attributes)

    def call_many(
        self, function: str, *inputs: str, outs: Sequence[str], **attributes: Any
    ) -> Sequence[str]:
        """One of our functions with several results."""
        self._nodes.append(
            helper.make_node(function, inputs, outs, name=outs[0], domain=DOMAIN, **attributes)
        )
        return outs

    def build(self) -> onnx.GraphProto:
        """The graph; its weights still have to be added."""
        return helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, initializer=self._constants
        )
