"""One checkpoint while it is evaluated: hidden states of all windows, one layer after the other.

Shapes: N rows, W windows of equal length one after the other; H hidden. Only one layer's weights
are in memory, and of its experts one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.config import Glm5Config
from glm5_ascend.ops import hadamard_quant, lightning_indexer_quant
from glm5_ascend.quant.evaluation.experts import StreamedExperts
from glm5_ascend.quant.source_values import read_matrix
from glm5_ascend.simulator.offline_layers import DecoderLayer, Indexer, MoeMlp, Norm
from glm5_ascend.simulator.offline_load import load_layer, load_norm
from glm5_ascend.simulator.offline_metrics import Share, topk_overlap
from glm5_ascend.simulator.offline_weights import WeightStore

_ROWS = 4096
# Logits computed at once (64 MiB in F32), and rows of the head converted at once.
_LOGITS = 1 << 24
_HEAD_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """What one layer did to all windows.

    Attributes:
        chosen: int32 [N, index_topk], positions; None in a layer without an indexer.
        expert_ids: [N, top_k]; None in a dense layer.
        c8: positions that an int8 indexer chooses too, of those chosen in float.
        attention, mlp: what the block adds to the hidden states, [N, H].
        peaks: mean over rows of max|x| / rms(x) of the input of attention and of the MLP.
    """

    chosen: Tensor | None
    expert_ids: Tensor | None
    c8: Share | None
    attention: Tensor
    mlp: Tensor
    peaks: tuple[float, float]


class _Store(WeightStore):
    """Reads block FP8 releases too."""

    reads_fp8 = True

    def float(self, name: str) -> Tensor:
        """One FLOAT tensor in the compute dtype, dequantised if it is stored as FP8."""
        if name in self._reader and self._reader.spec(name).dtype == "F8_E4M3":
            return read_matrix(self._reader, name).to(self.dtype)
        return super().float(name)


class Side:
    """A checkpoint, plain (FP8 too) or ``ascend``; a context manager.

    Args:
        directory: the checkpoint.
        measure_c8: compare an int8 indexer with the float one in every layer.

    Raises:
        ConfigError, CheckpointError: not readable, or with tensors the offline model cannot use.
    """

    def __init__(self, directory: Path, *, measure_c8: bool = False) -> None:
        self.store = _Store(directory, torch.float32)
        self._measure_c8 = measure_c8
        self._sizes = _layer_bytes(directory)
        self.hidden = torch.empty(0)
        self._shared: Tensor | None = None

    def __enter__(self) -> Self:
        self.store.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.store.__exit__(kind, value, trace)

    @property
    def config(self) -> Glm5Config:
        """The checkpoint's configuration."""
        return self.store.config

    def nbytes(self, layer: int) -> int:
        """Stored bytes of one layer."""
        return self._sizes.get(layer, 0)

    def has_c8(self, layer: int) -> bool:
        """Whether the description gives the layer an int8 indexer cache."""
        key = f"model.layers.{layer}.self_attn.indexer.quant_type"
        return self.store.description is not None and key in self.store.description

    def embed(self, tokens: Tensor) -> None:
        """Start with the embedding of ``tokens`` int64 [N]."""
        self.hidden = self.store.raw("model.embed_tokens.weight")[tokens].float()

    @torch.inference_mode()
    def run_layer(self, index: int, windows: int) -> LayerTrace:
        """Carry ``hidden`` through layer ``index``, which is read for this."""
        layer = load_layer(
            self.store,
            index,
            self.config.rms_norm_eps,
            lambda prefix: StreamedExperts.below(self.store, prefix),
        )
        x = layer.input_norm(self.hidden)
        attended, chosen, c8 = self._attend(layer, x, windows, self.has_c8(index))
        self.hidden = self.hidden + attended
        y = layer.post_norm(self.hidden)
        out, ids = _feed_forward(layer, y)
        self.hidden = self.hidden + out
        return LayerTrace(chosen, ids, c8, attended, out, (_peak(x), _peak(y)))

    def final(self) -> Tensor:
        """Hidden states after the final norm, [N, H]."""
        return _by_rows(load_norm(self.store, "model.norm"), self.hidden)

    @torch.inference_mode()
    def start_draft(self, next_tokens: Tensor, hidden: Tensor, windows: int) -> None:
        """Let ``hidden`` be the input of the MTP layer's decoder layer.

        Args:
            next_tokens: int64 [N], the token after each row's position.
            hidden: [N, H] after the final norm.
        """
        prefix = f"model.layers.{self.config.num_hidden_layers}"
        own = f"{prefix}.embed_tokens.weight"
        table = own if self.store.has(own) else "model.embed_tokens.weight"
        embedded = self.store.raw(table)[next_tokens].float()
        # vLLM's MTP module zeroes the embedding at position 0.
        embedded.view(windows, -1, embedded.shape[1])[:, 0] = 0
        if self.store.uses_rot:
            hidden = torch.nn.functional.linear(hidden, self.store.float("rot.weight"))
        enorm = load_norm(self.store, f"{prefix}.enorm")
        hnorm = load_norm(self.store, f"{prefix}.hnorm")
        project = self.store.linear(f"{prefix}.eh_proj")
        self.hidden = _by_rows(project, torch.cat((enorm(embedded), hnorm(hidden)), -1))
        self._shared = None

    def draft_greedy(self) -> Tensor:
        """Greedy token int64 [N] of the MTP layer's hidden states."""
        prefix = f"model.layers.{self.config.num_hidden_layers}"
        norm = load_norm(self.store, f"{prefix}.shared_head.norm")
        own = f"{prefix}.shared_head.head.weight"
        head = own if self.store.has(own) else "lm_head.weight"
        rows = self.logit_rows
        return torch.cat(
            [self.logits(part, norm, head).argmax(-1) for part in torch.split(self.hidden, rows)]
        )

    @property
    def logit_rows(self) -> int:
        """Rows whose logits are computed at once."""
        return max(16, _LOGITS // self.config.vocab_size)

    def logits(
        self, hidden: Tensor, norm: Norm | None = None, head: str = "lm_head.weight"
    ) -> Tensor:
        """F32 [rows, vocabulary] of a few hidden states, normed first if ``norm`` is given."""
        x = hidden if norm is None else norm(hidden)
        table = self.store.raw(head)
        parts = [
            torch.nn.functional.linear(x, part.float()) for part in torch.split(table, _HEAD_ROWS)
        ]
        return torch.cat(parts, -1)

    def _attend(
        self, layer: DecoderLayer, x: Tensor, windows: int, use_c8: bool
    ) -> tuple[Tensor, Tensor | None, Share | None]:
        attention, indexer = layer.attention, layer.attention.indexer
        length = x.shape[0] // windows
        positions = torch.arange(length)
        outputs, choices, overlaps = [], [], []
        for number, window in enumerate(torch.split(x, length)):
            if indexer is None:
                if self._shared is None:
                    raise ValueError(
                        "a layer without an indexer needs the choice of an earlier one"
                    )
                chosen = self._shared[number * length : (number + 1) * length]
            else:
                latent = attention.q_a_norm(attention.q_a(window))
                projected = indexer.project(window, latent, positions)
                chosen = indexer.choose(*projected)
                if self._measure_c8 or use_c8:
                    coarse = choose_int8(indexer, *projected)
                    overlaps.append(topk_overlap(chosen, coarse, self.config.index_topk))
                    chosen = coarse if use_c8 else chosen
                choices.append(chosen)
            outputs.append(attention(window, positions, chosen, chosen)[0])
        if choices:
            self._shared = torch.cat(choices)
        own = None if indexer is None else self._shared
        c8 = Share(sum(s.part for s in overlaps), sum(s.whole for s in overlaps))
        return torch.cat(outputs), own, c8 if overlaps else None


def choose_int8(indexer: Indexer, query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    """What LI-C8 chooses: query and key rotated and int8 per row; int32 [T, index_topk]."""
    query_codes, query_scale = hadamard_quant(query)
    key_codes, key_scale = hadamard_quant(key)
    chosen = lightning_indexer_quant(
        query_codes.unsqueeze(0),
        key_codes.unsqueeze(0),
        weights.unsqueeze(0),
        query_scale.unsqueeze(0),
        key_scale.unsqueeze(0),
        sparse_count=indexer.config.index_topk,
    )
    return chosen.reshape(query.shape[0], indexer.config.index_topk)


def _feed_forward(layer: DecoderLayer, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Output [N, H] of the MLP and the experts used; experts are read once for all rows."""
    mlp = layer.mlp
    if not isinstance(mlp, MoeMlp):
        return _by_rows(lambda rows: mlp(rows, None)[0], x), None
    routed = [mlp.route(part) for part in torch.split(x, _ROWS)]
    weights = torch.cat([part for part, _ in routed])
    ids = torch.cat([part for _, part in routed])
    shared = _by_rows(lambda rows: mlp.shared(rows, None)[0], x)
    return mlp.experts(x, weights, ids) + shared, ids


def _by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function`` of a few rows at a time, so that what it makes in between stays small."""
    return torch.cat([function(part) for part in torch.split(x, _ROWS)])


def _peak(x: Tensor) -> float:
    """Mean over rows of max|x| / rms(x): how much of an int8 range an outlier takes."""
    rms = x.square().mean(-1).sqrt().clamp_min(1e-30)
    return float((x.abs().amax(-1) / rms).mean())


def _layer_bytes(directory: Path) -> dict[int, int]:
    sizes: dict[int, int] = {}
    with CheckpointReader(directory) as reader:
        for name in reader.names():
            if name.startswith("model.layers."):
                layer = int(name.split(".")[2])
                sizes[layer] = sizes.get(layer, 0) + reader.nbytes(name)
    return sizes
