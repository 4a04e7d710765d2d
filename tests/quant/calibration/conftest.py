"""Tiny models on their way through a calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glm5_ascend.config import Glm5Config
from glm5_ascend.quant import recipe_file
from glm5_ascend.quant.calibration.corpus import Corpus
from glm5_ascend.quant.calibration.options import Setting
from glm5_ascend.quant.calibration.session import Session
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe_rules import Recipe
from tests.support.tiny_model import write_tiny

# Five times index_topk of the tiny model, and other lengths beside it.
LENGTHS = (80, 47, 64)


def tiny_corpus(lengths: tuple[int, ...] = LENGTHS, seed: int = 3) -> Corpus:
    """Random tokens in sequences of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 290, (sum(lengths),), generator=generator)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return Corpus(tokens, tuple(starts))


def float_recipe() -> Recipe:
    """Rotation alone, in float32: the calibration's forward is then the model's."""
    return recipe_file.overridden(recipe_file.preset("none"), rotate=True, dtype="float32")


def session(
    source: Path,
    directory: Path,
    recipe: Recipe,
    corpus: Corpus | None = None,
    setting: Setting | None = None,
) -> Session:
    plan = make_plan(Glm5Config.from_dir(source), recipe)
    return Session(source, plan, corpus or tiny_corpus(), setting or Setting(), directory, {})


@pytest.fixture(scope="session")
def shared_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM-5.2 style in F32: shared indexers, MTP, a tokenizer."""
    directory = tmp_path_factory.mktemp("calibration") / "tiny"
    return write_tiny(directory, dtype="float32", tokenizer=True)
