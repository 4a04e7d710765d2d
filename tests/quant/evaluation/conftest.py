"""The trained small model, its W4A8 copy, and damage done to copies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.quant.evaluation.command import EvalOptions, run
from glm5_ascend.quant.evaluation.report import Report
from tests.quant.conftest import quantize, rotated, source, w4a8
from tests.quant.damage import copy_of

__all__ = ["rotated", "source", "w4a8"]

Change = Callable[[str, torch.Tensor], torch.Tensor]
PROSE = "The quick brown fox jumps over the lazy dog; 0123456789. " * 60


@pytest.fixture(scope="session")
def small_w4a8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize(SMALL_MODEL, tmp_path_factory.mktemp("small") / "w4a8", "w4a8")


@pytest.fixture(scope="session")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text whose words no tiny model knows: its 320 tokens are nearly single bytes."""
    file = tmp_path_factory.mktemp("text") / "prose.txt"
    file.write_text(PROSE)
    return file


@pytest.fixture(scope="session")
def report(source: Path, w4a8: Path, prose: Path) -> Report:
    """Of the tiny W4A8 checkpoint, three windows."""
    return run(EvalOptions(w4a8, source, text=prose, tokens=300))


def changed(directory: Path, target: Path, change: Change) -> Path:
    """A copy with ``change`` applied to every tensor."""
    copy_of(directory, target)
    for file in target.glob("*.safetensors"):
        tensors = {name: change(name, tensor) for name, tensor in load_file(file).items()}
        save_file({n: t.contiguous() for n, t in tensors.items()}, file)
    return target


def described(directory: Path, **keys: object) -> None:
    """Add keys to the description."""
    file = directory / "quant_model_description.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
