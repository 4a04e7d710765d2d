"""All functions of domain ``glm5.ascend``, and models that carry the ones they call.

The functions are text in the ``onnx_graph.py`` of each operator's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import onnx
from onnx import helper, parser

from glm5_ascend import __version__
from glm5_ascend.ops.lightning_indexer import onnx_graph as lightning_indexer
from glm5_ascend.ops.mlapo import onnx_graph as mlapo
from glm5_ascend.ops.moe import onnx_graph as moe
from glm5_ascend.ops.norm_rope import onnx_graph as norm_rope
from glm5_ascend.ops.onnx.names import DOMAIN, DOMAIN_VERSION, IR_VERSION, OPSET
from glm5_ascend.ops.paged_cache import onnx_graph as paged_cache
from glm5_ascend.ops.quant_linear import onnx_graph as quant_linear
from glm5_ascend.ops.sparse_flash_attention import onnx_graph as sparse_flash_attention

MODULES = (
    norm_rope,
    quant_linear,
    moe,
    paged_cache,
    lightning_indexer,
    sparse_flash_attention,
    mlapo,
)


@cache
def library() -> dict[str, onnx.FunctionProto]:
    """Every function by name."""
    parsed = (parser.parse_function(text) for module in MODULES for text in module.FUNCTIONS)
    return {function.name: function for function in parsed}


def with_functions(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A model of ``graph`` and the functions that it calls, directly or not."""
    needed: dict[str, onnx.FunctionProto] = {}
    _collect(graph.node, needed)
    return helper.make_model(
        graph,
        functions=list(needed.values()),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
        ir_version=IR_VERSION,
        producer_name="glm5-ascend",
        producer_version=__version__,
    )


def calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Names of the functions of our domain that ``nodes`` call, subgraphs included."""
    for node in nodes:
        if node.domain == DOMAIN:
            yield node.op_type
        for attribute in node.attribute:
            yield from calls(attribute.g.node)


def _collect(nodes: Iterable[onnx.NodeProto], needed: dict[str, onnx.FunctionProto]) -> None:
    for name in calls(nodes):
        if name not in needed:
            function = library()[name]
            _collect(function.node, needed)
            needed[name] = function
