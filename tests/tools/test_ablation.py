"""The ablation's recipes are readable, its rows and table belong together, its ratios are right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.quant import recipe_file
from tools import ablation

NAMES = {variant.name: variant for variant in ablation.VARIANTS}


@pytest.mark.parametrize("name", NAMES)
def test_recipes_say_what_their_variant_says(name: str, tmp_path: Path) -> None:
    variant, file = NAMES[name], tmp_path / "recipe.yaml"
    file.write_text(json.dumps(variant.recipe()))
    recipe = recipe_file.read(file)
    assert recipe.rotate is variant.rotate
    assert recipe.smoothing == variant.smoothing
    first, *others = recipe.rules
    assert (str(first.scheme), first.rounding) == (variant.experts, variant.rounding)
    assert {rule.rounding for rule in others} == {variant.linears}
    assert variant.against is None or list(NAMES).index(variant.against) < list(NAMES).index(name)


def test_a_ratio_is_paired() -> None:
    base = np.linspace(0.5, 20.0, 40)
    found = ablation.ratio((0.8 * base).tolist(), base.tolist())
    assert found["value"] == pytest.approx(0.8)
    assert found["interval"] == pytest.approx([0.8, 0.8])
    noise = base + np.tile([0.2, -0.2], 20)
    low, high = ablation.ratio(noise.tolist(), base.tolist())["interval"]
    assert low < 1.0 < high


def test_readme_shows_the_recorded_rows() -> None:
    assert not ablation.check(ablation.README, ablation.ROWS, SMALL_MODEL)
    rows = ablation.last_run(ablation.ROWS)
    assert [row["variant"] for row in rows] == list(NAMES)
    for row in rows:
        assert row["recipe"] == NAMES[row["variant"]].recipe()
        mean = float(np.mean(row["window_kl"]))
        assert row["metrics"]["kl_mean"] == pytest.approx(mean, rel=1e-6)


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    text = ablation.README.read_text(encoding="utf-8")
    row = ablation.last_run(ablation.ROWS)[0]
    shown = f"{row['metrics']['kl_mean']:.6f}"
    readme.write_text(text.replace(shown, "0.000001", 1), encoding="utf-8")
    assert ablation.check(readme, ablation.ROWS, SMALL_MODEL)
