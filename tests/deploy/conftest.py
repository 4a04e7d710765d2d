"""Fixtures of the serving tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pre-flight looks at: GLM-5.2's configuration, a tokenizer, a file of weights."""
    directory = tmp_path_factory.mktemp("models") / "small"
    directory.mkdir()
    shutil.copyfile(CONFIGS / "GLM-5.2.json", directory / "config.json")
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(16))
    return directory
