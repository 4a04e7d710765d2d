"""Planted faults of the MTP layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from tests.support.choices import Forward
from tests.support.fault_tools import attributes, hooks
from tests.support.hf import HfOracle


def concat_swapped(oracle: HfOracle) -> AbstractContextManager[None]:
    """Hidden state first, embedding second."""
    mtp = oracle.mtp
    combine = mtp.combine
    return attributes([(mtp, "combine", lambda embedded, hidden: combine(hidden, embedded))])


def embedding_kept(oracle: HfOracle) -> AbstractContextManager[None]:
    """The embedding at position 0 is not blanked."""
    mtp = oracle.mtp
    step = mtp.step
    return attributes([(mtp, "step", lambda *a, **k: step(*a, **(k | {"zero_first": False})))])


@contextmanager
def pre_norm_recycled(oracle: HfOracle) -> Iterator[None]:
    """Steps after the first take the state before ``shared_head.norm``."""
    mtp = oracle.mtp
    seen: dict[str, Any] = {}

    def note(_m: Any, inputs: Any) -> None:
        seen["state"] = inputs[0]

    def recycled(_: Forward) -> torch.Tensor:
        state: torch.Tensor = seen["state"][-1:]
        return state

    handles = [mtp.norm.register_forward_pre_hook(note)]
    with hooks(handles), attributes([(mtp, "recycled", recycled)]):
        yield


def indices_not_shared(oracle: HfOracle) -> AbstractContextManager[None]:
    """Steps after the first run their own indexer."""
    return attributes([(oracle.mtp, "shares_indices", False)])


def final_norm_skipped(oracle: HfOracle) -> AbstractContextManager[None]:
    """Logits and recycled state without ``shared_head.norm``."""
    return attributes([(oracle.mtp, "norm", nn.Identity())])
