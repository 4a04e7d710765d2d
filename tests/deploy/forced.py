"""A logits processor that makes any model say a given text.

The served vLLM loads it through ``--logits-processors tests.deploy.forced:ForcedTokens``. A request
with ``vllm_xargs={"forced": "12,5,7"}`` gets exactly these token ids, so that the parsers of model
output can be tested over HTTP whatever the weights are.
"""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class ForcedTokens(AdapterLogitsProcessor):
    """Leaves one token possible at each step."""

    def is_argmax_invariant(self) -> bool:
        """The arg max changes, so greedy requests need this processor too."""
        return False

    def new_req_logits_processor(self, params: SamplingParams):  # type: ignore[no-untyped-def]
        """Return the processor of one request, None when it forces nothing."""
        words = (params.extra_args or {}).get("forced")
        if words is None:
            return None
        forced = [int(word) for word in str(words).split(",")]

        def only_the_next(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) < len(forced):
                token = forced[len(output_ids)]
                kept = logits[token].item()
                logits.fill_(float("-inf"))
                logits[token] = kept
            return logits

        return only_the_next
