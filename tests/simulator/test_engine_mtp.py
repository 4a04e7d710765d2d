"""MTP speculative decoding changes the speed of an engine, never its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.simulator.conftest import StartEngine, tokens
from tests.simulator.engine import Engine
from tests.support.oracle import HfOracle
from tests.support.teacher_forced import teacher_forced_error

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def drafting(start: StartEngine, tiny: Path) -> Engine:
    speculative = {"method": "mtp", "num_speculative_tokens": 2}
    return start(tiny, block_size=16, max_num_batched_tokens=128, speculative_config=speculative)


def test_same_tokens_with_and_without_drafts(
    engine: Engine, drafting: Engine, prompts: list[list[int]]
) -> None:
    without = engine.generate(prompts, together=True)
    batched = drafting.generate(prompts, together=True)
    alone = drafting.generate(prompts[:2])

    assert [o.tokens for o in batched] == [o.tokens for o in without]
    assert [o.tokens for o in alone] == [o.tokens for o in without[:2]]
    assert [o.logprobs for o in batched] == [o.logprobs for o in without]


def test_draft_with_shared_embedding_and_head(drafting: Engine, tiny: Path, tmp_path: Path) -> None:
    prompt, oracle = tokens(60, seed=40), HfOracle(tiny)
    sampled = drafting.ask("drafts", tokens=prompt, path=str(tmp_path / "logits"))
    reached = torch.load(tmp_path / "logits")
    hidden = oracle.forward(prompt).hidden
    expected = oracle.mtp.draft(prompt, hidden, sampled[0], 2, forced=reached.argmax(-1).tolist())

    assert teacher_forced_error(reached, expected.logits) < 1e-4
