"""Fixtures of the serving tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GLM-5.2 style checkpoint with tokenizer, named ``tiny``."""
    from tests.support.tiny_model import write_tiny

    return write_tiny(tmp_path_factory.mktemp("models") / "tiny", tokenizer=True)
