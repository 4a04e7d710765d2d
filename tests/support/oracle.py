"""Independent references for the engine and the quantiser (one import for test authors)."""

from __future__ import annotations

from tests.support.choices import Choices
from tests.support.hf import ENGINE_LATENT_EPS, HF_LATENT_EPS, Forward, HfOracle

__all__ = ["ENGINE_LATENT_EPS", "HF_LATENT_EPS", "Choices", "Forward", "HfOracle"]
