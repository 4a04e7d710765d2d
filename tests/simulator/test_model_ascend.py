"""The offline model on ``ascend`` checkpoints against the dequantise-and-run oracle.

The checkpoints are written here by round-to-nearest, without the project's quantiser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glm5_ascend.errors import CheckpointError
from glm5_ascend.simulator.model import Choices, OfflineModel
from tests.support.ascend import AscendOracle
from tests.support.mtp import MtpOracle
from tests.support.tiny_model import write_tiny

Parts = dict[str, Tensor]
TOKENS = torch.randint(0, 290, (80,), generator=torch.Generator().manual_seed(5))
# With the oracle's choices injected; activation codes may differ by one unit where F32 sums differ.
LIMIT = 1e-3

_EXPERT = r"mlp\.experts\.\d+\.(gate|up|down)_proj"
_DENSE = r"(self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)"
_DENSE += r"|mlp\.(shared_experts\.)?(gate|up|down)_proj)"
_TRUNK = r"self_attn\.(q_a_proj|kv_a_proj_with_mqa|q_b_proj|o_proj)"
RECIPES: dict[str, dict[str, str]] = {
    "w8a8": {_EXPERT: "W8A8_DYNAMIC", _DENSE: "W8A8_DYNAMIC"},
    "w4a8": {_EXPERT: "W4A8_DYNAMIC", _DENSE: "W8A8_DYNAMIC"},
    "static": {_TRUNK: "W8A8", _EXPERT: "W8A8_DYNAMIC"},
}


def rounded(weight: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(dim=1, keepdim=True) / limit
    return (weight / scale).round().clamp(-limit, limit).to(torch.int8), scale


def dynamic(weight: Tensor) -> Parts:
    codes, scale = rounded(weight, 127)
    return {"weight": codes, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}


def static(weight: Tensor) -> Parts:
    codes, scale = rounded(weight, 127)
    input_scale, offset = torch.tensor([0.11]), torch.tensor([5.0])
    return {
        "weight": codes,
        "input_scale": input_scale,
        "input_offset": offset,
        "quant_bias": (-offset * codes.float().sum(1)).round().int(),
        "deq_scale": (input_scale * scale).flatten(),
    }


def int4(weight: Tensor, columns: int) -> Parts:
    codes, scale = rounded(weight, 7)
    low, high = codes[0::2].int() & 15, codes[1::2].int() & 15
    packed = (low | high << 4).to(torch.uint8).view(torch.int8)
    bias = 8 * (codes.double() * scale).view(len(codes), columns, -1).sum(2)
    return {
        "weight": packed,
        "weight_scale": scale,
        "weight_offset": torch.zeros_like(scale),
        "scale_bias": bias.float(),
    }


def quantised(module: str, weight: Tensor, scheme: str) -> Parts:
    if scheme == "W8A8":
        return static(weight)
    if scheme == "W8A8_DYNAMIC":
        return dynamic(weight)
    return int4(weight, 16 if module.endswith("down_proj") else 1)


def export(source: Path, target: Path, recipe: dict[str, str]) -> Path:
    """Write ``source`` as an ``ascend`` checkpoint with the schemes of ``recipe``."""
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    description: dict[str, object] = {"version": "1.0.0", "group_size": 0}
    stored: Parts = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        local = re.sub(r"^model\.layers\.\d+\.", "", module)
        matches = [scheme for pattern, scheme in recipe.items() if re.fullmatch(pattern, local)]
        scheme = matches[0] if name.endswith(".weight") and matches else "FLOAT"
        parts = {"weight": tensor} if scheme == "FLOAT" else quantised(module, tensor, scheme)
        if scheme == "FLOAT":
            stored[name], description[name] = tensor, scheme
            continue
        for leaf, value in parts.items():
            stored[f"{module}.{leaf}"], description[f"{module}.{leaf}"] = value, scheme
    save_file({n: t.contiguous() for n, t in stored.items()}, target / "weights.safetensors")
    (target / "quant_model_description.json").write_text(json.dumps(description))
    return target


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("ascend")
    source = write_tiny(root / "source", dtype="float32", index=False, outlier_channels=2)
    return {name: export(source, root / name, recipe) for name, recipe in RECIPES.items()}


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


@pytest.mark.parametrize("scheme", RECIPES)
def test_injected_forward_and_draft_match_the_oracle(exports: dict[str, Path], scheme: str) -> None:
    oracle = AscendOracle(exports[scheme])
    model = OfflineModel.load(exports[scheme])
    wanted = oracle.forward(TOKENS)
    found = model.forward(TOKENS, Choices(wanted.choices.topk_indices, wanted.choices.expert_ids))
    assert error(found.logits, wanted.logits) < LIMIT
    draft = MtpOracle(oracle).step(TOKENS[1:], wanted.hidden[:-1])
    inject = Choices(draft.choices.topk_indices, draft.choices.expert_ids)
    found = model.mtp(TOKENS[1:], wanted.hidden[:-1], inject=inject)
    assert error(found.logits, draft.logits) < LIMIT


@pytest.mark.parametrize("scheme", RECIPES)
def test_activations_are_really_quantised(exports: dict[str, Path], scheme: str) -> None:
    """Weights alone dequantised give clearly other logits: the tolerance tells them apart."""
    weights_only = AscendOracle(exports[scheme], activations=False).forward(TOKENS)
    choices = Choices(weights_only.choices.topk_indices, weights_only.choices.expert_ids)
    found = OfflineModel.load(exports[scheme]).forward(TOKENS, choices)
    assert error(found.logits, weights_only.logits) > 5 * LIMIT


def scaled_bias(model: OfflineModel) -> OfflineModel:
    """The fault of a scale_bias that is not 8 · Σ codes · scale."""
    layer = model.layers[1]
    experts = layer.mlp.experts  # type: ignore[attr-defined]
    wrong = replace(experts, w2_scale_bias=experts.w2_scale_bias * 1.01)
    changed = replace(layer, mlp=replace(layer.mlp, experts=wrong))  # type: ignore[type-var]
    return replace(model, layers=(model.layers[0], changed, *model.layers[2:]))


def test_wrong_scale_bias_is_seen(exports: dict[str, Path]) -> None:
    wanted = AscendOracle(exports["w4a8"]).forward(TOKENS)
    inject = Choices(wanted.choices.topk_indices, wanted.choices.expert_ids)
    broken = scaled_bias(OfflineModel.load(exports["w4a8"])).forward(TOKENS, inject)
    assert error(broken.logits, wanted.logits) > LIMIT


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
    directory.mkdir()
    for file in exports["w4a8"].iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    spoil, message = BROKEN[case]
    spoil(directory)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        OfflineModel.load(directory)


def test_quantised_kv_b_is_refused(exports: dict[str, Path], tmp_path: Path) -> None:
    """The engine absorbs kv_b_proj; its codes must never be taken for values."""
    source = write_tiny(tmp_path / "source", index=False)
    directory = export(source, tmp_path / "kv_b", {r"self_attn\.kv_b_proj": "W8A8_DYNAMIC"})
    with pytest.raises(CheckpointError, match=re.escape(KV_B)):
        OfflineModel.load(directory)


def test_fp8_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="FP8"):
        OfflineModel.load(write_tiny(tmp_path / "fp8", fp8=True))
