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
    """

    work: Work
    parameters: Parameters
    graph: bool = True
    kernels: bool = False

    def seconds(self, seqs: Array, context: Array, chunk: Array, past: Array) -> float:
        """Seconds of one step; arrays have one entry per DP rank.

        Args:
            seqs: sequences that decode.
            context: their mean length, tokens.
            chunk: prompt tokens of this step.
            past: mean length before the chunk.
        """
        return sum(self.parts(seqs, context, chunk, past).values())

    def parts(self, seqs: Array, context: Array, chunk: Array, past: Array) -> dict[str, float]:
        """Seconds by kind, keys of :data:`KINDS`; arguments as of :meth:`seconds`."""
        w, p = self.work, self.parameters
        queries = seqs * (1 + w.drafts)
        tokens = queries + chunk
        most, total = float(tokens.max()), float(tokens.sum())
        filling = bool(chunk.any())
        attend, index = self._attention(seqs, context, chunk, past)
        found = {
            "attention": w.layers * attend,
            "indexer": w.index_layers * index,
            "linear": self._product(most * w.linear_flops, w.linear_bytes),
            "experts": w.moe_layers * self._experts(total),
        }
        found["linear"] += self._product(float(queries.max()) * w.head_flops, w.head_bytes, w.bf16)
        found["communication"] = w.layers * self._moved(most)
        found["latency"] = w.layers * self._latency(filling)
        found["host"] = 0.0 if self.kernels else p.host_ms * 1e-3
        found["drafts"] = 0.0
        if w.drafts and seqs.any():
            found["drafts"] = w.drafts * self._draft(seqs, attend)
        return found

    def _attention(
        self, seqs: Array, context: Array, chunk: Array, past: Array
    ) -> tuple[float, float]:
        """Seconds of attention and of an indexer in one layer, on the busiest rank."""
        w, p = self.work, self.parameters
        queries = seqs * (1 + w.drafts)
        length = past + chunk / 2
        stream, collect = w.hbm * p.hbm, w.hbm * p.gather
        cube = w.bf16 * p.attention
        share = w.tp if w.split else 1
        if w.topk:
            chosen = np.minimum(context, w.topk)
            picked = np.minimum(length, w.topk)
            moved = (queries * chosen + chunk * picked / share) * (w.latent / collect)
            computed = (queries * chosen + chunk * picked) * (w.query_flops / cube)
        else:
            moved = seqs * context * (w.latent / stream)
            computed = queries * context * (w.query_flops / cube)
            computed = computed + chunk * length * (w.prefill_flops / cube)
        attend = float(np.maximum(moved, computed).max())
        if not w.topk:
            return attend, 0.0
        read = (seqs * context + (chunk > 0) * length) * (w.key / stream)
        scored = (queries * context + chunk * length / share) * (w.score_flops / cube)
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
