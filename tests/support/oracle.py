"""Independent references for the engine and the quantiser (one import for test authors)."""

from __future__ import annotations

from tests.support.ascend import AscendOracle
from tests.support.choices import Choices, Forward
from tests.support.hf import ENGINE_LATENT_EPS, HF_LATENT_EPS, HfOracle
from tests.support.mtp import Draft, MtpOracle

__all__ = [
    "ENGINE_LATENT_EPS",
    "HF_LATENT_EPS",
    "AscendOracle",
    "Choices",
    "Draft",
    "Forward",
    "HfOracle",
    "MtpOracle",
]
