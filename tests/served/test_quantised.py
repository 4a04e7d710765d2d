"""W4A8 through ``serve`` against a dequantise-and-run reference, and against itself.

The reference (transformers in F64 with dequantised weights and fake-quantised activations) shares
no code with the engine. Both round activations to int8; a few of these lie within F32 noise of a
tie, and one code that falls the other way moves the logits by about 1e-2 of their deviation and,
through the caches, those of later steps by up to a few tenths. So the engine writes its decisions
down, and the reference follows those that its own values show to be ties (see support/ties.py).
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import pytest
import torch

from tests.served.client import Completion, complete_all, decisions_file, score, texts
from tests.served.conftest import Serve
from tests.support.oracle import AscendOracle, Choices
from tests.support.teacher_forced import step_errors, teacher_forced_error
from tests.support.ties import WINDOWS, Ties

pytestmark = pytest.mark.engine

TOKENS = 192  # three times index_topk
PROMPTS = 64
NEW = 16
CLOSE = 0.05
EXACT = 1e-3
# Measured: 0.03 ties per token in 2156 steps, up to 0.06 in one text. Their number is proportional
# to the noise of the engine's arithmetic.
MOST_TIES = 0.1
RECORDED = ("--logits-processors", "tests.served.recorded:Recorded")


def test_logits_with_injected_choices(serve: Serve, w4a8: Path, tmp_path: Path) -> None:
    tokens, folder = texts(1, TOKENS)[0], tmp_path / "decisions"
    oracle = AscendOracle(w4a8, dtype=torch.float64)
    given = oracle.forward(torch.tensor(tokens)).choices
    given.save(tmp_path / "choices.safetensors")
    server = serve(
        w4a8,
        *RECORDED,
        GLM5_ASCEND_INJECT=str(tmp_path / "choices.safetensors"),
        GLM5_TEST_DECISIONS=str(folder),
    )
    folder.mkdir()
    logprobs = score(server, tokens)
    taken = Choices.load(folder / decisions_file(tokens))
    for layer, rows in given.topk_indices.items():
        assert torch.equal(taken.topk_indices[layer], rows)
    for layer, ids in given.expert_ids.items():
        assert torch.equal(taken.expert_ids[layer], ids)
    ties = Ties({**WINDOWS, "key": inf, "expert": inf})
    logits = oracle.forward(torch.tensor(tokens), taken, ties).logits[:-1]
    error = teacher_forced_error(logprobs, logits)
    print(f"max logit error with injected choices: {error:.1e} of the logits' deviation")
    assert not ties.refused, ties.refused[0]
    assert error <= EXACT


def differences(base: list[Completion], other: list[Completion]) -> list[float]:
    """Return the gap of the two best logits at the first divergence of each pair that has one."""
    gaps = []
    for one, two in zip(base, other, strict=True):
        pairs = enumerate(zip(one.tokens, two.tokens, strict=True))
        first = next((i for i, (a, b) in pairs if a != b), None)
        if first is not None:
            gaps.append(one.gaps[first])
    return gaps


def test_logits_and_tokens_without_help(serve: Serve, w4a8: Path, tmp_path: Path) -> None:
    oracle, folder = AscendOracle(w4a8, dtype=torch.float64), tmp_path / "decisions"
    plain = serve(w4a8, *RECORDED, GLM5_TEST_DECISIONS=str(folder))
    folder.mkdir()
    alone, followed, ties = [], [], []
    for tokens in texts(4, TOKENS):
        logprobs, ids, found = score(plain, tokens), torch.tensor(tokens), Ties()
        taken = Choices.load(folder / decisions_file(tokens))
        alone.append(step_errors(logprobs, oracle.forward(ids).logits[:-1]))
        logits = oracle.forward(ids, taken, found).logits[:-1]
        followed.append(step_errors(logprobs, logits))
        # Before its first tie an engine needs no help at all.
        first = min((tie.row for tie in found.adopted), default=len(tokens))
        assert alone[-1][:first].max() <= EXACT
        ties.append(found)
    folder.rename(tmp_path / "recorded")  # from here on nothing is written

    close = (torch.cat(alone) < CLOSE).double().mean()
    adopted = [tie for found in ties for tie in found.adopted]
    count, worst = sum(map(len, alone)), float(torch.cat(followed).max())
    print(f"{close:.2%} of {count} steps within {CLOSE} of the reference alone (issue: 99 %)")
    print(f"100 % within {worst:.1e} of it once it follows {len(adopted)} ties")
    print(f"largest margin of a tie {max((tie.margin for tie in adopted), default=0):.1e}")
    for found in ties:
        assert not found.refused, found.refused[0]
    assert worst <= EXACT
    assert len(adopted) <= MOST_TIES * count

    prompts = texts(PROMPTS, 72)
    base = complete_all(plain, prompts, NEW, at_once=1)
    runs = {"batch 8": complete_all(plain, prompts, NEW, at_once=8)}
    draft = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
    drafting = serve(w4a8, "--speculative-config", draft)
    for at_once in (1, 8):
        runs[f"MTP, batch {at_once}"] = complete_all(drafting, prompts, NEW, at_once=at_once)
    for name, run in runs.items():
        gaps = differences(base, run)
        print(f"{name}: {len(gaps)} of {PROMPTS} prompts diverge, gaps {gaps}")
        assert len(gaps) <= 2, name
        assert all(gap < CLOSE for gap in gaps), name
