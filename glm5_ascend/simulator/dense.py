"""Float layers whose results do not depend on the batch, and their installation in vLLM's modules.

BLAS chooses kernels by the shape of a product, and vectorised functions treat the tail of an array
differently. So a token's bits would depend on how many tokens share its batch, and a batched run
could pick another expert or key than a single one. Here every product has the same number of rows:
longer inputs are cut into tiles and short ones padded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from glm5_ascend.ops import rms_norm

TILE_ROWS = 16


def in_tiles(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function`` applied to 16 rows of ``x`` [T, ..] at a time; the last tile is padded with 0.

    ``function`` maps [16, ..] to [16, ..] and treats rows independently. On other devices than the
    CPU, where nothing is promised of a batch, it gets all rows at once.
    """
    if x.device.type != "cpu":
        return function(x)
    rows = x.shape[0]
    padded = functional.pad(x, [0, 0] * (x.ndim - 1) + [0, -rows % TILE_ROWS])
    if padded.shape[0] == 0:
        padded = x.new_zeros(TILE_ROWS, *x.shape[1:])
    tiles = [function(padded[i : i + TILE_ROWS]) for i in range(0, padded.shape[0], TILE_ROWS)]
    return torch.cat(tiles)[:rows] if len(tiles) > 1 else tiles[0][:rows]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [.., K] times weight [N, K] transposed plus bias [N], in x's dtype, batch-independent."""
    y = in_tiles(lambda tile: functional.linear(tile, weight, bias), x.reshape(-1, x.shape[-1]))
    return y.view(*x.shape[:-1], weight.shape[0])


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(gate) * up of x = [gate | up] [.., 2I], in x's dtype, batch-independent."""

    def gated(tile: Tensor) -> Tensor:
        gate, up = tile.chunk(2, -1)
        return functional.silu(gate.contiguous()) * up

    return in_tiles(gated, x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def _norm(module: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    if residual is None:
        return rms_norm(x, module.weight, module.variance_epsilon)
    total = x + residual
    return rms_norm(total, module.weight, module.variance_epsilon), total


class FloatLinear(UnquantizedLinearMethod):  # type: ignore[misc]
    """Product in the model's dtype, or in F32 for the router."""

    def __init__(self, *, wide: bool = False) -> None:
        super().__init__()
        self.wide = wide

    def process_weights_after_loading(self, layer: Any) -> None:
        """Keep the weight; the stock method packs it for another kernel."""

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.wide:
            return linear(x.float(), layer.weight.float(), bias)
        return linear(x, layer.weight, bias)


class FloatEmbedding(UnquantizedEmbeddingMethod):  # type: ignore[misc]
    """Embedding and head; only the head's product differs from vLLM's."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Keep the weight; the stock method packs it for another kernel."""

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, layer.weight, bias)


def install(model: torch.nn.Module) -> None:
    """Give every float layer of a vLLM model the methods of this module."""
    for module in model.modules():
        if isinstance(module, GateLinear):
            module.quant_method = FloatLinear(wide=True)
        elif isinstance(module, LinearBase):
            if type(module.quant_method) is UnquantizedLinearMethod:
                module.quant_method = FloatLinear()
        elif isinstance(module, VocabParallelEmbedding):
            module.quant_method = FloatEmbedding()
        elif isinstance(module, RMSNorm):
            module._forward_method = partial(_norm, module)
        elif isinstance(module, SiluAndMul):
            module._forward_method = silu_and_mul
