"""Faults planted in the reference backends are caught: by the conformance suite, most by name, and
by the comparison with transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from glm5_ascend.ops.moe import reference as moe
from glm5_ascend.ops.norm_rope import reference as norm_rope
from glm5_ascend.ops.verify.case import Case
from tests.ops import mistakes, test_transformers
from tests.ops.planted import ATTENTION_FAULTS, INDEXER_FAULTS, MODEL_FAULTS, Fault, check
from tests.ops.planted_rows import INTEGER_FAULTS, NORM_FAULTS

FAULTS = (*INDEXER_FAULTS, *ATTENTION_FAULTS, *MODEL_FAULTS, *NORM_FAULTS, *INTEGER_FAULTS)


@pytest.mark.parametrize("case", {f.case: None for f in FAULTS}, ids=str)
def test_every_case_passes_without_a_fault(case: Case) -> None:
    check(case).require()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_suite_catches(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault.module, fault.function, fault.replacement)
    problem = check(fault.case).figures.problem
    assert fault.suspect in problem
    assert problem


def attention_of_transformers() -> None:
    config, made = test_transformers.make_config(16), test_transformers.make_attention(16)
    test_transformers.test_attention_equals_transformers(config, made)


def indexer_of_transformers() -> None:
    made = test_transformers.make_attention(16)
    test_transformers.test_indexer_chooses_what_transformers_chooses(made)


def router_of_transformers() -> None:
    test_transformers.test_router_and_experts_equal_transformers(test_transformers.make_config(16))


@pytest.mark.parametrize(
    ("function", "replacement", "comparison"),
    [
        ("rotary_interleaved", mistakes.half_split_rope, indexer_of_transformers),
        ("rotary_interleaved", mistakes.half_split_rope, attention_of_transformers),
        ("layer_norm", mistakes.layer_norm_with(bias=0), indexer_of_transformers),
        ("layer_norm", mistakes.key_norm_as_rms, indexer_of_transformers),
        ("rms_norm", mistakes.rms_norm_with_eps(1e-5), attention_of_transformers),
        ("rms_norm", lambda x, w, eps: x, attention_of_transformers),
    ],
)
def test_the_comparison_with_transformers_catches(
    function: str,
    replacement: Callable[..., Tensor],
    comparison: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    comparison()
    monkeypatch.setattr(norm_rope, function, replacement)
    with pytest.raises(AssertionError):
        comparison()


def test_the_router_of_transformers_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    router_of_transformers()
    monkeypatch.setattr(moe, "gating", mistakes.gating_with(factor=1.0))
    with pytest.raises(AssertionError):
        router_of_transformers()
