"""HfOracle against plain transformers, against formulas in F64, and through its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling
from transformers.utils import logging

from tests.support.choices import Choices, recall
from tests.support.double import F32Angles
from tests.support.formula import Formula
from tests.support.hf import HF_LATENT_EPS, HfOracle, chunks_of
from tests.support.teacher_forced import step_errors, teacher_forced_error
from tests.support.tiny_model import write_tiny

TOPK = 16


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Any:
    """transformers' own loading of the same directory (it reports the MTP layer as unexpected)."""
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    model: Any = GlmMoeDsaForCausalLM.from_pretrained(
        tiny, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def test_equals_plain_transformers(tiny: Path, plain: Any, tokens: torch.Tensor) -> None:
    oracle = HfOracle(tiny, latent_eps=HF_LATENT_EPS)
    with torch.no_grad():
        wanted = plain(tokens[None]).logits[0]
    assert torch.equal(oracle.forward(tokens).logits, wanted)


def test_greedy_equals_plain_transformers(tiny: Path, plain: Any, tokens: torch.Tensor) -> None:
    prompt = tokens[: 3 * TOPK]
    wanted = plain.generate(
        prompt[None],
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=False,
    )
    oracle = HfOracle(tiny, latent_eps=HF_LATENT_EPS)
    assert oracle.greedy(prompt, 24) == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("style", ["5.1", "5.2"])
def test_equals_the_formulas(style: str, tmp_path: Path, tokens: torch.Tensor) -> None:
    """F64 transformers and the written-out formulas agree, MTP step 1 included."""
    directory = write_tiny(tmp_path, style=style, seed=3)
    oracle, formula = HfOracle(directory, dtype=torch.float64), Formula(directory)
    tokens = tokens[: 4 * TOPK]
    logits, hidden = formula.forward(tokens[:-1].tolist())
    run = oracle.forward(tokens[:-1])
    # Angles are F32 in the oracle and F64 in the formulas: 4e-6 at position 64.
    assert teacher_forced_error(run.logits, torch.from_numpy(logits)) < 2e-5
    drafted = torch.from_numpy(formula.mtp(tokens[1:].tolist(), hidden))
    assert teacher_forced_error(oracle.mtp.step(tokens[1:], run.hidden).logits, drafted) < 2e-5
    for layer, rows in run.choices.topk_indices.items():
        chosen = formula.selected[layer]
        for row, picked in enumerate(rows.tolist()):
            assert [i for i in picked if i >= 0] == chosen[row].nonzero()[0].tolist()


def test_double_precision_is_more_precise(
    tiny: Path, oracle: HfOracle, tokens: torch.Tensor
) -> None:
    double = HfOracle(tiny, dtype=torch.float64)
    run = double.forward(tokens)
    assert run.logits.dtype == torch.float64
    assert 1e-8 < teacher_forced_error(oracle.forward(tokens).logits, run.logits) < 1e-4
    again = double.forward_cached(chunks_of(tokens, 11))
    assert teacher_forced_error(again.logits, run.logits) < 1e-11


def test_f32_angles_are_those_of_transformers(oracle: HfOracle) -> None:
    positions = torch.arange(5000).unsqueeze(0)
    ours = F32Angles(8e6, 64)(torch.zeros(1), positions)
    rotary = modeling.GlmMoeDsaRotaryEmbedding(oracle.config)
    for mine, wanted in zip(ours, rotary(torch.zeros(1), positions), strict=True):
        assert torch.equal(mine, wanted)


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_cached_chunks_equal_one_pass(chunk: int, oracle: HfOracle, tokens: torch.Tensor) -> None:
    whole, parts = oracle.forward(tokens), oracle.forward_cached(chunks_of(tokens, chunk))
    assert teacher_forced_error(parts.logits, whole.logits) < 1e-4
    for layer, rows in whole.choices.topk_indices.items():
        assert torch.equal(parts.choices.topk_indices[layer], rows)
    for layer, ids in whole.choices.expert_ids.items():
        assert torch.equal(parts.choices.expert_ids[layer], ids)


def test_sparse_selection_starts_at_index_topk(
    oracle: HfOracle, tmp_path: Path, tokens: torch.Tensor
) -> None:
    dense = HfOracle(write_tiny(tmp_path, index_topk=len(tokens))).forward(tokens)
    errors = step_errors(oracle.forward(tokens).logits, dense.logits)
    assert errors[:TOPK].max() < 1e-5
    assert errors[TOPK] > 1e-3


def test_choices_have_the_documented_form(oracle: HfOracle, tokens: torch.Tensor) -> None:
    choices = oracle.forward(tokens).choices
    assert sorted(choices.topk_indices) == [0, 1, 2]
    assert sorted(choices.expert_ids) == [1, 2, 3]
    for rows in choices.topk_indices.values():
        assert rows.dtype == torch.int32
        assert rows.shape == (len(tokens), TOPK)
        for position, row in enumerate(rows.tolist()):
            count = min(TOPK, position + 1)
            assert row[:count] == sorted(set(row[:count]))
            assert 0 <= row[0] <= row[count - 1] <= position
            assert row[count:] == [-1] * (TOPK - count)
    for ids in choices.expert_ids.values():
        assert ids.dtype == torch.int32
        assert (ids[:, 1:] > ids[:, :-1]).all()


def test_injection(oracle: HfOracle, tokens: torch.Tensor, tmp_path: Path) -> None:
    run = oracle.forward(tokens)
    run.choices.save(tmp_path / "choices.safetensors")
    stored = Choices.load(tmp_path / "choices.safetensors")
    again = oracle.forward(tokens, inject=stored)
    # Experts are summed in another order at most.
    assert teacher_forced_error(again.logits, run.logits) < 1e-5
    assert torch.equal(again.choices.topk_indices[1], run.choices.topk_indices[1])
    cached = oracle.forward_cached(chunks_of(tokens, 13), inject=stored)
    assert teacher_forced_error(cached.logits, run.logits) < 1e-4

    first = stored.topk_indices[0]
    first[-1] = torch.arange(TOPK)
    moved = step_errors(oracle.forward(tokens, inject=stored).logits, run.logits)
    assert moved[:-1].max() < 1e-5
    assert moved[-1] > 1e-3
    stored = Choices(expert_ids={2: (run.choices.expert_ids[2] + 1) % 8})
    assert teacher_forced_error(oracle.forward(tokens, inject=stored).logits, run.logits) > 0.1


def test_recall_ignores_padding() -> None:
    wanted = torch.tensor([[0, 1, -1], [2, 3, 4]])
    found = torch.tensor([[1, 2, -1], [4, 2, 3]])
    assert recall(wanted, found).tolist() == [0.5, 1.0]
