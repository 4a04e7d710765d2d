"""Time of one synchronised step of an instance: a roofline per kind of work, plus latencies.

All DP ranks step together, so the rank with most to do sets the pace, and experts see the tokens of
all ranks. deploy/README.md writes the sum out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glm5_ascend.deploy.performance.parameters import IMBALANCE, MOE_US, Parameters
from glm5_ascend.deploy.performance.work import Number, Work

Array = npt.NDArray[np.float64]
KINDS = ("attention", "indexer", "linear", "experts", "communication", "latency", "host", "drafts")


def _larger(one: Number, two: Number) -> Number:
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return np.maximum(one, two)
    return max(one, two)


@dataclass(frozen=True, slots=True)
class StepModel:
    """Times of steps of one instance, or of many instances of one model at once.

    Attributes:
        graph: decode-only steps run as captured graphs.
        captured: tokens of a rank above which they do not; 0 for no limit.
        kernels: bare kernels: no host, and experts forced to equal load.
        overlap: two micro-batches hide communication behind the rest, as far as it reaches.
        hits: share of the selected latents that is on the die; the others come from the host.
    """

    work: Work
    parameters: Parameters
    graph: bool = True
    captured: int = 0
    kernels: bool = False
    overlap: bool = False
    hits: float = 1.0

    def seconds(self, seqs: Array, context: Array, chunk: Array, keys: Array) -> float:
        """Seconds of one step; arrays have one entry per DP rank.

        Args:
            seqs: sequences that decode.
            context: their mean length, tokens.
            chunk: prompt tokens of this step.
            keys: mean number of tokens that one of them attends to.
        """
        return float(sum(self.parts(seqs, context, chunk, keys).values()))

    def parts(self, seqs: Array, context: Array, chunk: Array, keys: Array) -> dict[str, Number]:
        """Seconds by kind, keys of :data:`KINDS`; arguments as of :meth:`seconds`."""
        attend, index = self._attention(seqs, context, chunk, keys)
        queries = seqs * (1 + self.work.drafts)
        tokens = queries + chunk
        return self._parts(
            float(attend.max()),
            float(index.max()),
            float(tokens.max()),
            float(tokens.sum()),
            float(queries.max()),
            float(seqs.max()),
            float(seqs.sum()),
            bool(chunk.any()),
        )

    def uniform(
        self, seqs: Number, context: Number, chunk: Number, keys: Number
    ) -> dict[str, Number]:
        """Seconds by kind where every rank has the same to do.

        Arguments and results are numbers, or arrays over the instances of ``work``.
        """
        attend, index = self._attention(seqs, context, chunk, keys)
        ranks = self.work.dp
        queries = seqs * (1 + self.work.drafts)
        tokens, filling = queries + chunk, bool(np.any(chunk > 0))
        return self._parts(
            attend, index, tokens, tokens * ranks, queries, seqs, seqs * ranks, filling
        )

    def _parts(
        self,
        attend: Number,
        index: Number,
        most: Number,
        total: Number,
        queries: Number,
        seqs: Number,
        all_seqs: Number,
        filling: bool,
    ) -> dict[str, Number]:
        w, p = self.work, self.parameters
        linear = self._product(most * w.linear_flops, w.linear_bytes)
        found = {
            "attention": w.layers * attend,
            "indexer": w.index_layers * index,
            "linear": linear + self._product(queries * w.head_flops, w.head_bytes, w.bf16),
            "experts": w.moe_layers * self._experts(total),
        }
        moved = w.layers * self._moved(most)
        if self.overlap:
            moved = moved - np.minimum(moved, sum(found.values()))
        found["communication"] = moved
        eager = filling or bool(self.captured and np.any(most > self.captured))
        found["latency"] = w.layers * self._latency(eager)
        host = p.host_ms + p.sequence_ms * seqs
        found["host"] = 0.0 if self.kernels else host * 1e-3
        first = self._first_draft(most, total, seqs, attend, index)
        later = self._draft(seqs, all_seqs, attend)
        passes = np.minimum(w.drafts, 1) * first + np.maximum(w.drafts - 1, 0) * later
        found["drafts"] = passes * np.logical_or(seqs > 0, filling)
        return found

    def _attention(
        self, seqs: Number, context: Number, chunk: Number, keys: Number
    ) -> tuple[Number, Number]:
        """Seconds of attention and of an indexer in one layer, by rank or instance."""
        w, p = self.work, self.parameters
        queries = seqs * (1 + w.drafts)
        stream, collect = w.hbm * p.hbm, w.hbm * p.gather
        cube = w.bf16 * p.attention
        if not w.topk:
            moved = seqs * context * (w.latent / stream)
            computed = queries * context * (w.query_flops / cube)
            computed = computed + chunk * keys * (w.prefill_flops / cube)
            attend = np.maximum(moved, computed)
            return attend, np.zeros_like(attend)
        chosen = np.minimum(context, w.topk)
        picked = np.minimum(keys, w.topk)
        moved = (queries * chosen + chunk * picked / w.share) * (w.latent / collect)
        computed = (queries * chosen + chunk * picked) * (w.query_flops / cube)
        read = (seqs * context + (chunk > 0) * keys) * (w.key / stream)
        pair = _larger(w.score_flops / cube, w.score_seconds)
        scored = (queries * context + chunk * keys / w.share) * pair
        made = (queries + chunk / w.share) * (w.index_flops / (w.bf16 * p.gemm))
        attend, index = np.maximum(moved, computed), np.maximum(read, scored) + made
        if self.hits < 1:
            missed = queries * chosen * (1 - self.hits)
            attend = attend + missed * (w.latent / (w.host * p.link))
        return attend, index

    def _experts(self, total: Number) -> Number:
        w = self.work
        skew = 1.0 if self.kernels else IMBALANCE
        touched = 1 - w.untouched**total
        return self._product(total * w.expert_flops / w.ep * skew, w.expert_bytes * touched)

    def _product(self, flops: Number, nbytes: Number, peak: Number = None) -> Number:
        w, p = self.work, self.parameters
        peak = w.peak if peak is None else peak
        return _larger(flops / (peak * p.gemm), nbytes / (w.hbm * p.hbm))

    def _moved(self, most: Number) -> Number:
        w, p = self.work, self.parameters
        skew = 1.0 if self.kernels else IMBALANCE
        return most * (w.tp_bytes + w.moe_bytes * w.off * skew) / (w.link * p.link)

    def _latency(self, filling: bool) -> Number:
        w, p = self.work, self.parameters
        eager = 0.0 if self.kernels or (self.graph and not filling) else p.eager_us
        collectives = p.tp_us * w.collectives
        experts = MOE_US * w.moe_layers / w.layers
        index = p.index_us * w.index_layers / w.layers
        return (p.layer_us + collectives + eager + experts + index) * 1e-6

    def _first_draft(
        self, most: Number, total: Number, seqs: Number, attend: Number, index: Number
    ) -> Number:
        """Seconds of the first pass of the MTP layer, which reads every token of the step.

        It fills the layer's own cache, of prompt tokens too.
        """
        w = self.work
        layer = attend + index + self._experts(total) + self._moved(most)
        layer += self._product(most * w.linear_flops / w.layers, w.linear_bytes / w.layers)
        layer += self._product(seqs * w.head_flops, w.head_bytes, w.bf16)
        return layer + self._latency(filling=True)

    def _draft(self, seqs: Number, all_seqs: Number, attend: Number) -> Number:
        """Seconds of a further pass of the MTP layer, on one token per sequence: a layer and the
        head."""
        w = self.work
        layer = attend / (1 + w.drafts) + self._experts(all_seqs) + self._moved(seqs)
        layer += self._product(seqs * w.linear_flops / w.layers, w.linear_bytes / w.layers)
        layer += self._product(seqs * w.head_flops, w.head_bytes, w.bf16)
        # Drafts run outside of the graph in every recipe.
        return layer + self._latency(filling=True)
