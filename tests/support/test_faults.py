"""Every planted fault moves the oracle far beyond the tolerance on a long enough sequence."""

from __future__ import annotations

import pytest
import torch

from tests.support.faults import FAULTS, Fault
from tests.support.hf import HfOracle, chunks_of
from tests.support.teacher_forced import teacher_forced_error

# The loosest limit that a test of the engine uses on exact models, in standard deviations.
TOLERANCE = 1e-3
SHORT = 16


def logits(oracle: HfOracle, where: str, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of the run that a fault of kind ``where`` belongs to."""
    if where == "main":
        return oracle.forward(tokens).logits
    if where == "cached":
        return oracle.forward_cached(chunks_of(tokens, 7)).logits
    hidden = oracle.forward(tokens[:-1]).hidden
    draft = oracle.mtp.draft(tokens[:-1], hidden, int(tokens[-1]), 2, forced=[5])
    return draft.first.logits if where == "mtp1" else draft.logits[1:]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_visible(fault: Fault, oracle: HfOracle, tokens: torch.Tensor) -> None:
    short = tokens[:SHORT]
    sound, sound_short = (logits(oracle, fault.where, t) for t in (tokens, short))
    with fault.apply(oracle):
        broken, broken_short = (logits(oracle, fault.where, t) for t in (tokens, short))
    assert teacher_forced_error(broken, sound) > 100 * TOLERANCE
    if fault.sparse_only:
        # At most index_topk tokens: every key is selected, indexer faults cannot be seen.
        assert torch.equal(broken_short, sound_short)
    else:
        assert teacher_forced_error(broken_short, sound_short) > TOLERANCE
    assert torch.equal(logits(oracle, fault.where, tokens), sound)


def test_injected_choices_hide_faults_of_the_indexer(
    oracle: HfOracle, tokens: torch.Tensor
) -> None:
    """Injection separates arithmetic from selection, so it must not be the only comparison."""
    sound = oracle.forward(tokens)
    # Faults called index-* change which layer selects, the others how it does.
    hidden = [f for f in FAULTS if f.sparse_only and not f.name.startswith("index-")]
    assert len(hidden) == 6
    for fault in hidden:
        with fault.apply(oracle):
            injected = oracle.forward(tokens, inject=sound.choices)
        assert teacher_forced_error(injected.logits, sound.logits) < 1e-5, fault.name
