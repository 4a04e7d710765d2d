"""The offline model on ``ascend`` checkpoints against the dequantise-and-run oracle.

The checkpoints are round-to-nearest ones, written without the project's quantiser.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glm5_ascend.errors import CheckpointError
from glm5_ascend.simulator.model import Choices, OfflineModel
from tests.support import oracle as support
from tests.support.ascend import AscendOracle
from tests.support.settle import TieBreaker
from tests.support.tiny_ascend import write_tiny_ascend
from tests.support.tiny_model import write_tiny

TOKENS = torch.randint(0, 290, (80,), generator=torch.Generator().manual_seed(5))
LIMIT = 1e-3
DYNAMIC = ["w8a8", "w4a8"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("source") / "tiny", outlier_channels=2)


@pytest.fixture(scope="module")
def exports(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("ascend")
    made = {scheme: write_tiny_ascend(source, root / scheme, scheme=scheme) for scheme in DYNAMIC}
    return made | {"static": write_tiny_ascend(source, root / "s", scheme="w8a8", static=True)}


def row_errors(found: Tensor, wanted: Tensor) -> Tensor:
    """Largest difference per row in units of the reference's standard deviation."""
    return (found - wanted).abs().amax(-1) / wanted.std()


def settled_by(codes: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the oracle's codes decide rounding ties, and nothing beyond a hundredth of a step.

    For that the operators are those of backend 'reference', where the rounding can be reached.
    """
    from glm5_ascend.ops.moe import reference as moe
    from glm5_ascend.ops.quant_linear import reference as linear

    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    settled = TieBreaker(codes).wrap(linear.dynamic_quant)
    monkeypatch.setattr(moe, "dynamic_quant", settled)
    monkeypatch.setattr(linear, "dynamic_quant", settled)


def own(choices: support.Choices) -> Choices:
    return Choices(choices.topk_indices, choices.expert_ids)


@pytest.mark.parametrize("scheme", DYNAMIC)
def test_injected_forward_and_draft_match_the_oracle(
    exports: dict[str, Path], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = AscendOracle(exports[scheme])
    oracle.probe.record_codes = True
    model = OfflineModel.load(exports[scheme])
    wanted = oracle.forward(TOKENS)
    draft = oracle.mtp.step(TOKENS[1:], wanted.hidden[:-1])
    settled_by(wanted.choices.codes | draft.choices.codes, monkeypatch)
    found = model.forward(TOKENS, own(wanted.choices))
    assert row_errors(found.logits, wanted.logits).max() < LIMIT
    found = model.mtp(TOKENS[1:], wanted.hidden[:-1], inject=own(draft.choices))
    assert row_errors(found.logits, draft.logits).max() < LIMIT


def test_static_forward_matches_the_oracle(exports: dict[str, Path]) -> None:
    """Ties of static codes are not settled, so a few rows may differ by a code."""
    wanted = AscendOracle(exports["static"]).forward(TOKENS)
    found = OfflineModel.load(exports["static"]).forward(TOKENS, own(wanted.choices))
    errors = row_errors(found.logits, wanted.logits)
    assert errors.median() < LIMIT
    assert errors.max() < 0.05


@pytest.mark.parametrize("scheme", [*DYNAMIC, "static"])
def test_activations_are_really_quantised(exports: dict[str, Path], scheme: str) -> None:
    """Weights alone dequantised give clearly other logits: the limit tells them apart."""
    weights_only = AscendOracle(exports[scheme], activations=False).forward(TOKENS)
    found = OfflineModel.load(exports[scheme]).forward(TOKENS, own(weights_only.choices))
    assert row_errors(found.logits, weights_only.logits).median() > 5 * LIMIT


def test_wrong_scale_bias_is_seen(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = AscendOracle(exports["w4a8"])
    oracle.probe.record_codes = True
    wanted = oracle.forward(TOKENS)
    settled_by(wanted.choices.codes, monkeypatch)
    model = OfflineModel.load(exports["w4a8"])
    layer = model.layers[1]
    experts = layer.mlp.experts
    broken = replace(experts, w2_scale_bias=experts.w2_scale_bias * 1.01)
    layers = list(model.layers)
    layers[1] = replace(layer, mlp=replace(layer.mlp, experts=broken))
    found = replace(model, layers=tuple(layers)).forward(TOKENS, own(wanted.choices))
    assert row_errors(found.logits, wanted.logits).median() > LIMIT


def edit_description(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "quant_model_description.json"
        description = json.loads(path.read_text())
        change(description)
        path.write_text(json.dumps(description))

    return apply


O_PROJ = "model.layers.0.self_attn.o_proj.weight"
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
KV_B = "model.layers.0.self_attn.kv_b_proj.weight"
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "undescribed": (edit_description(lambda d: d.pop(O_PROJ)), f"does not describe {O_PROJ}"),
    "unknown scheme": (edit_description(lambda d: d.update({O_PROJ: "W4A16"})), "W4A16"),
    "mixed experts": (edit_description(lambda d: d.update({EXPERT: "FLOAT"})), "different schemes"),
    "rot missing": (edit_description(lambda d: d.update(is_rot_used=True)), "rot.weight"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_exports_are_named(exports: dict[str, Path], tmp_path: Path, case: str) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(exports["w4a8"], directory)
    spoil, message = BROKEN[case]
    spoil(directory)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        OfflineModel.load(directory)


def test_quantised_kv_b_is_refused(exports: dict[str, Path], tmp_path: Path) -> None:
    """The engine absorbs kv_b_proj; its codes must never be taken for values."""
    from safetensors.torch import load_file, save_file

    directory = tmp_path / "copy"
    shutil.copytree(exports["w8a8"], directory)
    (file,) = directory.glob("*.safetensors")
    tensors = load_file(file)
    save_file(tensors | {KV_B: tensors[KV_B].to(torch.int8)}, file)
    with pytest.raises(CheckpointError, match=re.escape(KV_B)):
        OfflineModel.load(directory)


def test_fp8_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="FP8"):
        OfflineModel.load(write_tiny(tmp_path / "fp8", fp8=True))
