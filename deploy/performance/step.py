"""Time of one synchronised step of an instance: a roofline per kind of work, plus latencies.

All DP ranks step together, so the rank with most to do sets the pace, and experts see the tokens of
all ranks. deploy/README.md writes the sum out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glm5_ascend.deploy.performance.parameters import Parameters
from glm5_ascend.deploy.performance.work import Work

Array = npt.NDArray[np.float64]
KINDS = ("attention", "indexer", "linear", "experts", "communication", "latency", "host", "drafts")


@dataclass(frozen=True, slots=True)
class StepModel:
    """Times of steps of one instance.

    Attributes:
        graph: decode-only steps run as captured graphs.
        kernels: bare kernels: no host, and experts forced to equal load.
        overlap: two micro-batches hide communication behind the rest, as far as it reaches.
    """

    work: Work
    parameters: Parameters
    graph: bool = True
    kernels: bool = False
    overlap: bool = False

    def seconds(self, seqs: Array, context: Array, chunk: Array, keys: Array) -> float:
        """Seconds of one step; arrays have one entry per DP rank.

        Args:
            seqs: sequences that decode.
            context: their mean length, tokens.
            chunk: prompt tokens of this step.
            keys: mean number of tokens that one of them attends to.
        """
        return sum(self.parts(seqs, context, chunk, keys).values())

    def parts(self, seqs: Array, context: Array, chunk: Array, keys: Array) -> dict[str, float]:
        """Seconds by kind, keys of :data:`KINDS`; arguments as of :meth:`seconds`."""
        w, p = self.work, self.parameters
        queries = seqs * (1 + w.drafts)
        tokens = queries + chunk
        most, total = float(tokens.max()), float(tokens.sum())
        filling = bool(chunk.any())
        attend, index = self._attention(seqs, context, chunk, keys)
        found = {
            "attention": w.layers * attend,
            "indexer": w.index_layers * index,
            "linear": self._product(most * w.linear_flops, w.linear_bytes),
            "experts": w.moe_layers * self._experts(total),
        }
        found["linear"] += self._product(float(queries.max()) * w.head_flops, w.head_bytes, w.bf16)
        found["communication"] = w.layers * self._moved(most)
        if self.overlap:
            hidden = sum(found.values()) - found["communication"]
            found["communication"] -= min(found["communication"], hidden)
        found["latency"] = w.layers * self._latency(filling)
        found["host"] = 0.0 if self.kernels else p.host_ms * 1e-3
        found["drafts"] = 0.0
        if w.drafts and seqs.any():
            found["drafts"] = w.drafts * self._draft(seqs, attend)
        return found

    def _attention(
        self, seqs: Array, context: Array, chunk: Array, keys: Array
    ) -> tuple[float, float]:
        """Seconds of attention and of an indexer in one layer, on the busiest rank."""
        w, p = self.work, self.parameters
        queries = seqs * (1 + w.drafts)
        stream, collect = w.hbm * p.hbm, w.hbm * p.gather
        cube = w.bf16 * p.attention
        share = w.tp if w.split else 1
        if w.topk:
            chosen = np.minimum(context, w.topk)
            picked = np.minimum(keys, w.topk)
            moved = (queries * chosen + chunk * picked / share) * (w.latent / collect)
            computed = (queries * chosen + chunk * picked) * (w.query_flops / cube)
        else:
            moved = seqs * context * (w.latent / stream)
            computed = queries * context * (w.query_flops / cube)
            computed = computed + chunk * keys * (w.prefill_flops / cube)
        attend = float(np.maximum(moved, computed).max())
        if not w.topk:
            return attend, 0.0
        read = (seqs * context + (chunk > 0) * keys) * (w.key / stream)
        scored = (queries * context + chunk * keys / share) * (w.score_flops / cube)
        return attend, float(np.maximum(read, scored).max())

    def _experts(self, total: float) -> float:
        w, p = self.work, self.parameters
        skew = 1.0 if self.kernels else p.imbalance
        touched = 1 - w.untouched**total
        return self._product(total * w.expert_flops / w.ep * skew, w.expert_bytes * touched)

    def _product(self, flops: float, nbytes: float, peak: float = 0.0) -> float:
        w, p = self.work, self.parameters
        return max(flops / ((peak or w.peak) * p.gemm), nbytes / (w.hbm * p.hbm))

    def _moved(self, most: float) -> float:
        w, p = self.work, self.parameters
        skew = 1.0 if self.kernels else p.imbalance
        return most * (w.tp_bytes + w.moe_bytes * w.off * skew) / (w.link * p.link)

    def _latency(self, filling: bool) -> float:
        w, p = self.work, self.parameters
        eager = 0.0 if self.kernels or (self.graph and not filling) else p.eager_us
        collectives = 2 * p.tp_us if w.tp > 1 else 0.0
        return (p.layer_us + collectives + eager + p.moe_us * w.moe_layers / w.layers) * 1e-6

    def _draft(self, seqs: Array, attend: float) -> float:
        """Seconds of one pass of the MTP layer: a layer, the head, and its host work."""
        w, p = self.work, self.parameters
        most, total = float(seqs.max()), float(seqs.sum())
        layer = attend / (1 + w.drafts) + self._experts(total) + self._moved(most)
        layer += self._product(most * w.linear_flops / w.layers, w.linear_bytes / w.layers)
        layer += self._product(most * w.head_flops, w.head_bytes, w.bf16)
        host = 0.0 if self.kernels else p.draft_ms * 1e-3
        return layer + self._latency(filling=False) + host
