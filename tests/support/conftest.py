"""Tiny checkpoints and oracles shared by the tests of the test support."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.hf import HfOracle
from tests.support.tiny_model import write_tiny

TOPK = 16


@pytest.fixture(scope="session")
def tokens() -> torch.Tensor:
    """96 random tokens: six times ``index_topk``."""
    return torch.randint(0, 320, (96,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM-5.2 style checkpoint: layers 0-2 own an indexer, layer 3 shares, layer 4 is MTP."""
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def oracle(tiny: Path) -> HfOracle:
    """F32 oracle of ``tiny``; tests leave it as they found it."""
    return HfOracle(tiny)
