"""The plan of the published models: every tensor once, and the sizes that arithmetic demands."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_ascend.checkpoint import expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.plan import Plan, make_plan
from glm5_ascend.quant.recipe_file import preset
from tests.support.tiny_model import tiny_config

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
HIDDEN, INNER, EXPERTS, MOE_LAYERS = 6144, 2048, 256, 75
VOCABULARY_BYTES = 154880 * HIDDEN * 2


def config(name: str) -> Glm5Config:
    return Glm5Config.from_dict(json.loads((CONFIGS / f"{name}.json").read_text()), source=name)


def source_bytes(plan: Plan) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for shard in plan.shards:
        for step in shard.steps:
            sizes[step.scheme.value] += sum(
                _bytes(spec.shape, spec.dtype) for spec in step.stored.values()
            )
    return sizes


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    size = {"BF16": 2, "F32": 4, "I8": 1}[dtype]
    for length in shape:
        size *= length
    return size


def test_w4a8_of_the_full_model() -> None:
    model = config("GLM-5.2")
    plan = make_plan(model, preset("w4a8"))
    sizes = source_bytes(plan)
    # int4 codes; scale and offset of each row; scale_bias [inter, 1] twice and [hidden, 16].
    codes = 3 * HIDDEN * INNER // 2
    scales = 8 * (2 * INNER + HIDDEN) + 4 * (2 * INNER + 16 * HIDDEN)
    assert sizes["W4A8_DYNAMIC"] == MOE_LAYERS * EXPERTS * (codes + scales)
    # The int8 MTP layer saves 9.8 GB against a float one.
    float_mtp = make_plan(model, replace(preset("w4a8"), mtp="float"))
    assert 9.8e9 < float_mtp.nbytes - plan.nbytes < 9.9e9
    assert (
        float_mtp.nbytes == sum(source_bytes(float_mtp).values()) == pytest.approx(418e9, rel=1e-3)
    )
    assert max(shard.nbytes for shard in plan.shards) <= 4 << 30
    assert len(plan.shards) < 100


@pytest.mark.parametrize("name", ["GLM-5", "GLM-5.3"])
def test_every_source_tensor_is_used_once(name: str) -> None:
    model = config(name)
    plan = make_plan(model, preset("w8a8"))
    used = Counter(step.source for shard in plan.shards for step in shard.steps)
    wanted = Counter({n for n in expected_tensors(model) if not n.endswith("_scale_inv")})
    # The MTP layer's copies, and rot.weight from the final norm.
    copies = ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
    assert used == wanted + Counter(copies)
    assert len(plan.weight_map()) == sum(len(shard.tensors()) for shard in plan.shards)


def test_plain_output_is_as_large_as_the_release() -> None:
    plan = make_plan(config("GLM-5.2"), replace(preset("none"), rotate=False))
    assert plan.nbytes == 1_506_659_919_872
    assert len(plan.weight_map()) == 59_585


def test_the_plan_depends_on_nothing_else() -> None:
    choices = preset("w4a8")
    model = Glm5Config.from_dict(tiny_config(), source="tiny")
    first, second = (make_plan(model, choices) for _ in range(2))
    assert first.digest() == second.digest()
    for other in (replace(choices, dtype="float32"), replace(choices, mtp="float")):
        assert make_plan(model, other).digest() != first.digest()
    smaller = make_plan(model, choices, shard_bytes=1 << 16)
    assert smaller.digest() != first.digest()
    assert smaller.nbytes == first.nbytes
