"""Rounding ties of the engine's activations, settled by the reference (see support/settle.py).

The served vLLM imports this module through ``--logits-processors tests.served.settled:Settled``;
``GLM5_TEST_CODES`` names the reference's codes. The processor itself does nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from glm5_ascend.ops.moe import reference as moe
from glm5_ascend.ops.quant_linear import reference as linear
from tests.support.settle import TieBreaker

_breaker = TieBreaker.load(Path(os.environ["GLM5_TEST_CODES"]))
linear.dynamic_quant = moe.dynamic_quant = _breaker.wrap(linear.dynamic_quant)


class Settled(AdapterLogitsProcessor):
    """Leaves every request alone."""

    def is_argmax_invariant(self) -> bool:
        """Nothing is processed."""
        return True

    def new_req_logits_processor(self, params):  # type: ignore[no-untyped-def]
        """Return no processor."""
        return None
