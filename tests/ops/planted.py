"""Faults of indexer, attention and the model's layers, planted in the reference backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Keys
from glm5_ascend.ops.lightning_indexer import reference as indexer
from glm5_ascend.ops.mlapo import reference as mlapo
from glm5_ascend.ops.norm_rope import reference as norm_rope
from glm5_ascend.ops.sparse_flash_attention import reference as attention
from glm5_ascend.ops.verify import chain, suite
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import SMALL
from glm5_ascend.ops.verify.case import Case, Problem
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.layers import LayersCase
from glm5_ascend.ops.verify.requests import REQUESTS
from glm5_ascend.ops.verify.runner import Result, public, run_one
from tests.ops import mistakes

MIXED = next(r for r in REQUESTS if r.name == "mixed")
INDEXER = IndexerCase(requests=MIXED, heads=16, dtype=torch.float32)
ATTENTION = AttentionCase(requests=MIXED, shape=SMALL)
PRECISE = AttentionCase(requests=MIXED, shape=SMALL, dtype=torch.float32)
HOLES = AttentionCase(requests=MIXED, shape=SMALL, kind="holes")
FUTURE = AttentionCase(requests=MIXED, shape=SMALL, kind="future")
LAYERS = LayersCase()


def indexer_of(kind: str) -> Case:
    return IndexerCase(requests=MIXED, heads=16, kind=kind)


@cache
def named(operator: str, label: str) -> Case:
    """The suite's case."""
    found = [c for c in suite.cases() if (c.operator, str(c)) == (operator, label)]
    assert len(found) == 1, (operator, label)
    return found[0]


@cache
def problem_of(case: Case) -> Problem:
    return case.problem()


def check(case: Case) -> Result:
    return run_one(case, problem_of(case), "reference", public("reference"))


@dataclass(frozen=True)
class Fault:
    """A function of a module is replaced; ``suspect`` is what the suite has to say."""

    name: str
    case: Case
    module: Any
    function: str
    replacement: Callable[..., Any]
    suspect: str

    def __str__(self) -> str:
        return self.name


INDEXER_FAULTS = (
    Fault("relu_missing", INDEXER, indexer, "scores", mistakes.no_relu, "'missing ReLU'"),
    Fault(
        "head_weights_without_sign",
        INDEXER,
        indexer,
        "scores",
        mistakes.scores_with(Tensor.abs),
        "'head weights without sign'",
    ),
    Fault(
        "head_weights_in_bf16",
        INDEXER,
        indexer,
        "scores",
        mistakes.scores_with(lambda w: w.bfloat16().to(w.dtype)),
        "'head weights in BF16'",
    ),
    Fault(
        "ties_to_the_highest",
        indexer_of("two_values"),
        indexer,
        "best",
        mistakes.highest_ties,
        "'ties to the highest position'",
    ),
    Fault("not_ascending", INDEXER, indexer, "best", mistakes.unsorted, "is not ascending"),
    Fault(
        "nan_ranks_first",
        indexer_of("not_a_number"),
        indexer,
        "best",
        mistakes.unsorted,
        "chosen down to -inf",
    ),
    Fault(
        "sees_one_more",
        INDEXER,
        indexer,
        "visible_keys",
        mistakes.sees(1, indexer),
        "'one key too many'",
    ),
    Fault(
        "sees_one_less",
        INDEXER,
        indexer,
        "visible_keys",
        mistakes.sees(-1, indexer),
        "'one key too few'",
    ),
    Fault(
        "sees_everything",
        INDEXER,
        indexer,
        "visible_keys",
        mistakes.sees(1000, indexer),
        "'no causal mask'",
    ),
    Fault(
        "pages_in_order", INDEXER, Keys, "flat_rows", mistakes.pages_in_order(Keys.flat_rows), ""
    ),
)

ATTENTION_FAULTS = (
    Fault(
        "attention_sees_one_less",
        ATTENTION,
        attention,
        "visible_keys",
        mistakes.sees(-1, attention),
        "out: ",
    ),
    Fault(
        "attention_sees_everything",
        FUTURE,
        attention,
        "visible_keys",
        mistakes.sees(1000, attention),
        "'no causal mask'",
    ),
    Fault(
        "scale_two_percent_off",
        ATTENTION,
        attention,
        "_attend",
        mistakes.attend_with(lambda *a: (*a[:5], a[5] * 1.02)),
        "'scale 2 % too large'",
    ),
    Fault(
        "last_key_dropped",
        ATTENTION,
        attention,
        "_attend",
        mistakes.attend_with(mistakes.without_last),
        "'last chosen key dropped'",
    ),
    Fault(
        "query_in_bf16",
        PRECISE,
        attention,
        "_attend",
        mistakes.attend_with(mistakes.bf16_weights),
        "out: ",
    ),
    Fault(
        "unused_entries_attend",
        HOLES,
        attention,
        "_attend",
        mistakes.attend_with(lambda *a: (*a[:4], torch.ones_like(a[4]), a[5])),
        "out: ",
    ),
    Fault(
        "rotated_part_forgotten",
        ATTENTION,
        attention,
        "_attend",
        mistakes.attend_with(lambda q, k, *rest: (q[:1], k[:1], *rest)),
        "'rotated part forgotten'",
    ),
)

# Each of these was once a defect of a real implementation; the model's operators run together.
MODEL_FAULTS = (
    Fault("layers_relu_missing", LAYERS, indexer, "scores", mistakes.no_relu, "'missing ReLU'"),
    Fault(
        "layers_rope_half_split_in_the_indexer",
        LAYERS,
        norm_rope,
        "rotary_interleaved",
        mistakes.half_split_rope,
        "'wrong rope style in the indexer'",
    ),
    Fault(
        "layers_rope_half_split_in_attention",
        LAYERS,
        mlapo,
        "rotary_interleaved",
        mistakes.half_split_rope,
        "'wrong rope style in attention'",
    ),
    Fault(
        "layers_latent_not_normalised",
        LAYERS,
        mlapo,
        "forward",
        mistakes.raw_latent_returned(mlapo.forward),
        "'un-normalised q latent'",
    ),
    Fault(
        "layers_k_norm_as_rms_norm",
        LAYERS,
        norm_rope,
        "layer_norm",
        mistakes.key_norm_as_rms,
        "'k_norm as RMSNorm'",
    ),
    Fault(
        "layers_k_norm_bias_dropped",
        LAYERS,
        norm_rope,
        "layer_norm",
        mistakes.layer_norm_with(bias=0),
        "'k_norm bias dropped'",
    ),
    Fault(
        "layers_index_share_ignored",
        LAYERS,
        chain,
        "indices_of_layer",
        mistakes.always_selects,
        "'IndexShare ignored'",
    ),
)
