"""The attention half of one layer over all sequences: statistics, rounding, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glm5_ascend.quant.calibration.parallel import in_order
from glm5_ascend.quant.calibration.statistics import InputStatistics
from glm5_ascend.simulator.offline_layers import Attention, DecoderLayer
from glm5_ascend.simulator.offline_linear import Linear

# Inputs of the attention's linears, by the module of ours that sees them first.
READERS: Mapping[str, tuple[str, ...]] = {
    "block": ("q_a_proj", "kv_a_proj_with_mqa", "indexer.wk", "indexer.weights_proj"),
    "query": ("q_b_proj", "indexer.wq_b"),
    "values": ("o_proj",),
}


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence on its way through a layer.

    Attributes:
        rows: where it lies in the matrices of all tokens.
        hidden: F32 [T, H], the layer's input.
        shared: int32 [T, index_topk], the choice of the last layer with an indexer, or None.
    """

    rows: slice
    hidden: Tensor
    shared: Tensor | None


@dataclass(frozen=True, slots=True)
class Attended:
    """What attention makes of a sequence: ``hidden`` after the residual, the input of the MLP, the
    positions attended to, and the inputs of its linears by the names of ``READERS``."""

    rows: slice
    hidden: Tensor
    mlp_input: Tensor
    chosen: Tensor
    inputs: dict[str, Tensor]


class _Seen:
    """A linear that keeps its input."""

    def __init__(self, inner: Linear, name: str, inputs: dict[str, Tensor]) -> None:
        self._inner, self._name, self._inputs = inner, name, inputs

    def __call__(self, x: Tensor) -> Tensor:
        self._inputs[self._name] = x
        return self._inner(x)


def attend(layer: DecoderLayer, sequence: Sequence, watched: Iterable[str] = ()) -> Attended:
    """Run the attention of ``layer`` on one sequence, keeping the inputs that are watched."""
    inputs: dict[str, Tensor] = {}
    attention = _watching(layer.attention, frozenset(watched), inputs)
    positions = torch.arange(sequence.hidden.shape[0])
    normed = layer.input_norm(sequence.hidden)
    out, chosen = attention(normed, positions, sequence.shared, None)
    hidden = sequence.hidden + out
    return Attended(sequence.rows, hidden, layer.post_norm(hidden), chosen, inputs)


def gather(
    layer: DecoderLayer,
    sequences: Iterable[Sequence],
    statistics: Mapping[str, InputStatistics],
    threads: int,
) -> None:
    """Add the inputs of the attention's linears to ``statistics``, by the names of ``READERS``."""

    def run(sequence: Sequence) -> dict[str, Tensor]:
        return attend(layer, sequence, statistics).inputs

    for inputs in in_order(run, sequences, threads):
        for name, part in statistics.items():
            part.add(inputs[name])


def _watching(attention: Attention, names: frozenset[str], inputs: dict[str, Tensor]) -> Attention:
    def seen(inner: Linear, name: str) -> Linear:
        return _Seen(inner, name, inputs) if name in names else inner

    return replace(
        attention,
        q_a=seen(attention.q_a, "block"),
        q_b=seen(attention.q_b, "query"),
        o_proj=seen(attention.o_proj, "values"),
    )
