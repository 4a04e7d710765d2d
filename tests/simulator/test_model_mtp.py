"""MTP steps of the offline model against the oracle composed of transformers' decoder layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glm5_ascend.errors import CheckpointError
from glm5_ascend.simulator.model import Choices, OfflineModel
from tests.support.mtp import MtpOracle
from tests.support.oracle import HfOracle
from tests.support.tiny_model import write_tiny

F32_LIMIT = 5e-5
TOKENS = torch.randint(0, 290, (80,), generator=torch.Generator().manual_seed(11))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[OfflineModel, HfOracle, MtpOracle]:
    directory = write_tiny(tmp_path_factory.mktemp("mtp") / "model")
    oracle = HfOracle(directory)
    return OfflineModel.load(directory), oracle, MtpOracle(oracle)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("shares", [True, False])
def test_two_steps_match_the_oracle(
    tiny: tuple[OfflineModel, HfOracle, MtpOracle], masked: bool, shares: bool
) -> None:
    model, oracle, mtp = tiny
    layer = model.config.num_hidden_layers
    main = oracle.forward(TOKENS)
    first_wanted = mtp.step(TOKENS[1:], main.hidden[:-1], zero_first=masked)
    first = model.mtp(TOKENS[1:], main.hidden[:-1], mask_first=masked)
    assert relative_error(first.logits, first_wanted.logits) < F32_LIMIT
    chosen = first.choices.topk_indices[layer]
    assert torch.equal(chosen, first_wanted.choices.topk_indices[layer])
    reused = chosen[:-1] if shares else None
    second_wanted = mtp.step(TOKENS[2:], first_wanted.hidden[:-1], shared=reused, zero_first=masked)
    second = model.mtp(TOKENS[2:], first.hidden[:-1], topk=reused, mask_first=masked)
    assert relative_error(second.logits, second_wanted.logits) < F32_LIMIT


def test_injection_reaches_the_draft(tiny: tuple[OfflineModel, HfOracle, MtpOracle]) -> None:
    model, oracle, mtp = tiny
    layer = model.config.num_hidden_layers
    hidden = oracle.forward(TOKENS).hidden[:-1]
    wanted = mtp.step(TOKENS[1:], hidden)
    ids = torch.tensor([[0, 1]]).expand(len(hidden), 2)
    moved = model.mtp(TOKENS[1:], hidden, inject=Choices({}, {layer: ids}))
    assert relative_error(moved.logits, wanted.logits) > 0.01
    assert torch.equal(moved.choices.expert_ids[layer], ids)


def test_swapped_halves_are_seen(tiny: tuple[OfflineModel, HfOracle, MtpOracle]) -> None:
    """eh_proj takes the embedding first; the other order must not pass."""
    model, oracle, mtp = tiny
    hidden = oracle.forward(TOKENS).hidden[:-1]
    glue = model.mtp_glue
    assert glue is not None

    def swapped(joined: torch.Tensor) -> torch.Tensor:
        return glue.eh_proj(joined.roll(joined.shape[-1] // 2, -1))

    broken = replace(model, mtp_glue=replace(glue, eh_proj=swapped))
    wanted = mtp.step(TOKENS[1:], hidden)
    assert relative_error(broken.mtp(TOKENS[1:], hidden).logits, wanted.logits) > 0.1


def test_rot_weight_multiplies_every_incoming_state(
    tiny: tuple[OfflineModel, HfOracle, MtpOracle],
) -> None:
    model, oracle, mtp = tiny
    glue = model.mtp_glue
    assert glue is not None
    hidden = oracle.forward(TOKENS).hidden[:-1]
    size = hidden.shape[1]
    rot = torch.randn(size, size, generator=torch.Generator().manual_seed(1)) * size**-0.5
    rotated = replace(model, mtp_glue=replace(glue, rot=rot))
    wanted = mtp.step(TOKENS[1:], hidden @ rot.T)
    assert relative_error(rotated.mtp(TOKENS[1:], hidden).logits, wanted.logits) < F32_LIMIT


def test_model_without_mtp_layer(tmp_path: Path) -> None:
    model = OfflineModel.load(write_tiny(tmp_path / "plain", mtp=False))
    assert model.mtp_layer is None
    with pytest.raises(CheckpointError, match="no MTP layer"):
        model.mtp(TOKENS[1:], model.forward(TOKENS).hidden[:-1])
