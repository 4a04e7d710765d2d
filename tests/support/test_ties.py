"""What a reference may adopt from the other side, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.support.choices import Choices
from tests.support.formula import Formula
from tests.support.hf import HfOracle
from tests.support.oracle import AscendOracle
from tests.support.teacher_forced import step_errors
from tests.support.ties import Ties, members
from tests.support.tiny_ascend import write_tiny_ascend

WINDOWS = {"code": 0.01, "key": 0.1, "expert": 0.1}


def test_codes_within_the_window_are_adopted() -> None:
    ties = Ties(WINDOWS)
    scaled = torch.tensor([[1.495, -2.0, 0.52], [1.49, 2.0, 0.4]])
    wanted = torch.tensor([[2.0, -2.0, 0.0], [1.0, 2.0, 0.0]])
    near = ties.codes("m", scaled, wanted)
    assert near.tolist() == [[True, True, False], [True, True, True]]
    assert [(t.row, t.adopted, round(t.margin, 3)) for t in ties.found] == [
        (0, True, 0.005),
        (0, False, 0.02),
    ]
    # The same input quantised by another module is the same tie.
    ties.codes("n", scaled, wanted)
    assert (len(ties.adopted), len(ties.refused)) == (1, 2)
    assert str(ties.refused[0]) == "code of m at position 0, margin 2.0e-02"


@pytest.mark.parametrize(
    ("wanted", "margin"),
    [
        ([0, 1], None),
        ([1, 0], None),
        ([0, 2], 0.05),  # 0.50 for 0.55
        ([0, 3], 0.45),
        ([2, 3], 0.9),  # the best of two for the worst
        ([0, -1], np.inf),
        ([0, 0], np.inf),
        ([0, 4], np.inf),  # the future
    ],
)
def test_margin_of_a_choice(wanted: list[int], margin: float | None) -> None:
    ties = Ties(WINDOWS)
    scores = torch.tensor([[1.0, 0.55, 0.5, 0.1, -np.inf]])
    near = ties.choice("key", 2, scores, torch.tensor([[0, 1]]), torch.tensor([wanted]))
    assert [t.margin for t in ties.found] == pytest.approx([] if margin is None else [margin])
    assert near.tolist() == [margin is None or margin < 0.1]


def test_members_ignore_padding() -> None:
    rows = torch.tensor([[0, 2, -1], [-1, -1, -1]])
    assert members(rows, 3).tolist() == [[True, False, True], [False] * 3]


class Scored(Ties):
    """Keeps the scores of keys."""

    scores: ClassVar[dict[int, torch.Tensor]] = {}

    def choice(self, kind: str, layer: int, scores: torch.Tensor, *rows: torch.Tensor) -> Any:
        if kind == "key":
            self.scores[layer] = scores
        return super().choice(kind, layer, scores, *rows)


class ScoredFormula(Formula):
    """Keeps the scores of keys."""

    scores: ClassVar[dict[int, torch.Tensor]] = {}

    def index_scores(self, layer: int, x: Any, low: Any) -> Any:
        result = super().index_scores(layer, x, low)
        self.scores[layer] = torch.from_numpy(result)
        return result


def test_scores_equal_the_formulas(tiny: Path, tokens: torch.Tensor) -> None:
    """They are those of NumPy but for one positive factor per row."""
    oracle, formula, ties = HfOracle(tiny, dtype=torch.float64), ScoredFormula(tiny), Scored()
    chosen = oracle.forward(tokens).choices
    oracle.forward(tokens, chosen, ties)
    assert not ties.found
    formula.forward(tokens.tolist())
    visible = torch.ones(96, 96, dtype=torch.bool).tril()
    for layer, scores in ties.scores.items():
        wanted = formula.scores[layer]
        factor = (wanted / scores).masked_fill(~visible, 0).sum(dim=1) / visible.sum(dim=1)
        assert factor.min() > 0
        # Angles are F32 in the oracle and F64 in the formulas.
        error = (wanted / factor[:, None] - scores).masked_fill(~visible, 0).abs()
        assert error.max() < 1e-4
        assert scores.isneginf()[~visible].all()


def test_two_precisions_agree_after_ties(tiny: Path, tmp_path: Path, tokens: torch.Tensor) -> None:
    quantised = write_tiny_ascend(tiny, tmp_path / "w4a8", scheme="w4a8")
    run = AscendOracle(quantised, record_codes=True).forward(tokens)
    double = AscendOracle(quantised, dtype=torch.float64)
    ties = Ties()
    followed = double.forward(tokens, run.choices, ties)
    assert not ties.refused
    assert step_errors(run.logits, followed.logits).max() < 1e-4
    # A choice that is no tie stays the reference's own.
    wrong = Choices(expert_ids={2: (run.choices.expert_ids[2] + 1) % 8})
    ties = Ties()
    own = double.forward(tokens, wrong, ties)
    assert torch.equal(own.logits, double.forward(tokens).logits)
    assert {t.where for t in ties.refused} == {"layers.2"}
