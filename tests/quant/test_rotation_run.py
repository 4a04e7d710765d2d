"""Learning refinements: what is looked at, and that threads and long texts change nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant import refining
from glm5_ascend.quant.calibration.corpus import make_corpus
from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.progress import LayerProgress
from glm5_ascend.quant.calibration.rotation_run import RotationRun, sample
from glm5_ascend.quant.folding import layer_of
from glm5_ascend.quant.methods.learned_rotation import Learned, learn_rotation
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe_file import parse
from glm5_ascend.quant.recipe_rules import Calibration, Recipe
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.quant.workers import one_thread
from tests.quant.test_refinement import THOROUGH

# R1 is written but not read by what is quantised.
ONLY_WRITTEN = """
refine_rotation: inputs
mtp: float
rules:
  - {modules: "*.o_proj", scheme: W8A8_DYNAMIC}
  - {modules: "*", scheme: FLOAT}
"""


def rotation_run(source: Path, recipe: Recipe, tokens: int, threads: int) -> RotationRun:
    reader = CheckpointReader(source)
    plan = make_plan(reader.config, recipe)
    steps = [step for shard in plan.shards for step in shard.steps]
    store = FoldedStore(reader, steps, rotations(reader.config))
    corpus = make_corpus(source, reader.config, Calibration(tokens=tokens))
    with_weights = recipe.refine_rotation == "all"
    return RotationRun(store, corpus, threads, with_weights=with_weights)


def learned(run: RotationRun, monkeypatch: pytest.MonkeyPatch) -> dict[str, Learned]:
    """In few steps, which say nothing about gains."""
    place = "glm5_ascend.quant.calibration.rotation_run.learn_rotation"
    monkeypatch.setattr(place, partial(learn_rotation, steps=4))
    with one_thread():
        return run.learn(LayerProgress(4, run.tokens(), 0))


def test_an_axis_that_is_only_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No activation on it is rounded, and its weights are not looked at: nothing to learn."""
    run = rotation_run(source, parse(ONLY_WRITTEN, "x", "recipe"), 100, 1)
    assert {name.split(".")[0] for name in learned(run, monkeypatch)} <= {"R4"}


def test_threads_change_no_bit(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse(THOROUGH, "x", "recipe")
    one, three = (
        learned(rotation_run(source, recipe, 100, threads), monkeypatch) for threads in (1, 3)
    )
    assert list(one) == list(three)
    for name, found in one.items():
        assert torch.equal(found.blocks, three[name].blocks), name


def test_a_long_sequence_is_cut(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dry run counts is what passes the model, however long sequences are."""
    monkeypatch.setattr(refining, "TOKENS", 100)
    recipe = parse(THOROUGH, "x", "recipe")
    long = replace(recipe.calibration, sequence=240, tokens=300)
    with CheckpointReader(source) as reader:
        corpus = make_corpus(source, reader.config, long)
    assert corpus.spans()[0].stop == 240
    run = rotation_run(source, recipe, 300, 1)
    run._corpus = corpus
    assert (run.tokens(), run._spans()) == (100, [slice(0, 100)])
    assert learned(run, monkeypatch)


@pytest.mark.parametrize(("tokens", "most"), [(8192, 17), (301, 64), (300, 1000), (16, 2), (17, 0)])
def test_halves_are_of_other_tokens(tokens: int, most: int) -> None:
    """What judges is never what was learned from, in whatever layer; layers differ if they can."""
    x = torch.arange(float(tokens)).view(-1, 1)
    layers = [sample(x, most, layer).flatten() for layer in range(78)]
    assert {len(one) % 2 for one in layers} == {0}
    assert all(2 <= len(one) <= max(2, most) for one in layers)
    whole = torch.cat(layers)
    learnt, kept = set(whole[::2].tolist()), set(whole[1::2].tolist())
    assert not learnt & kept
    assert max(learnt) < tokens // 2 <= min(kept)
    assert len(learnt | kept) >= min(tokens - 1, 0.9 * len(whole))


def test_groups_are_made_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 matrices of the release in 78 layers: asking each for its layer anew takes minutes."""
    asked = Counter[str]()

    def counted(name: str) -> int | None:
        asked[name] += 1
        return layer_of(name)

    monkeypatch.setattr("glm5_ascend.quant.calibration.rotation_run.layer_of", counted)
    learned(rotation_run(source, parse(THOROUGH, "x", "recipe"), 64, 1), monkeypatch)
    assert set(asked.values()) == {1}
