"""MTP speculative decoding changes the speed of an engine, never its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glm5_ascend.quant.command import QuantizeOptions, run
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


@pytest.fixture(scope="module")
def rotated(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny`` rotated in F32 and not quantised, with rot.weight and the draft's own copies."""
    directory = tmp_path_factory.mktemp("rotated") / "out"
    run(QuantizeOptions(tiny, directory, scheme="none", rotate=True, dtype="float32"))
    return directory


def test_rotated_checkpoint_drafts_with_rot_weight(
    engine: Engine,
    start: StartEngine,
    rotated: Path,
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    """Every draft step equals the reference, and the tokens are those of the unrotated file."""
    speculative = {"method": "mtp", "num_speculative_tokens": 3}
    drafting = start(
        rotated, block_size=16, max_num_batched_tokens=128, speculative_config=speculative
    )
    prompt, oracle = tokens(60, seed=41), HfOracle(rotated)
    sampled = drafting.ask("drafts", tokens=prompt, path=str(tmp_path / "logits"))
    reached = torch.load(tmp_path / "logits")
    hidden = oracle.forward(prompt).hidden
    expected = oracle.mtp.draft(prompt, hidden, sampled[0], 3, forced=reached.argmax(-1).tolist())
    outputs = drafting.generate(prompts, together=True)

    assert teacher_forced_error(reached, expected.logits) < 1e-4
    plain = engine.generate(prompts, together=True)
    assert [o.tokens for o in outputs] == [o.tokens for o in plain]
