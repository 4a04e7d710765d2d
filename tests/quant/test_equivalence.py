"""Rotation alone does not change the model: transformers' logits before and after, DSA active.

96 tokens against ``index_topk`` 16, 16 index heads, a layer that shares its indexer, the MTP layer.
Each planted fault is one a real quantiser could have (or had); the same comparison must see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GlmMoeDsaForCausalLM

from glm5_ascend.quant import convert, recipe
from glm5_ascend.quant.folding import NO_FOLD, Axis, Fold
from tests.quant.conftest import quantize
from tests.support.hf import ENGINE_LATENT_EPS, HfOracle, set_latent_eps
from tests.support.tiny_model import write_tiny

# The kernels rotate in float32: about 12 roundings per weight and side, 2e-7 of it as the root of
# their sum. Some 25 products in a row add up to five times that; a factor of four is for the worst.
EXACT = 4e-6
STEPS = 4
FORCED = (5, 9, 11)


@dataclass
class Run:
    """Logits of the main model [T, V], MTP step 1 [T, V] and the drafts' last rows [steps, V]."""

    main: torch.Tensor
    first: torch.Tensor
    drafts: torch.Tensor
    choices: list[torch.Tensor]


def run_model(directory: Path, dtype: torch.dtype = torch.float64) -> Run:
    oracle = HfOracle(directory, dtype=dtype)
    vocabulary = int(oracle.raw_config["vocab_size"])
    tokens = torch.randint(vocabulary, (96,), generator=torch.Generator().manual_seed(3))
    main = oracle.forward(tokens)
    draft = oracle.mtp.draft(tokens, main.hidden, 7, STEPS, forced=FORCED)
    found = [*main.choices.topk_indices.values(), *main.choices.expert_ids.values()]
    return Run(main.logits, draft.first.logits, draft.logits, found)


def change(before: torch.Tensor, after: torch.Tensor) -> float:
    """Relative change in the norm of all logits."""
    return float((before - after).norm() / before.norm())


@pytest.fixture(scope="module")
def before(source: Path) -> Run:
    return run_model(source)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, EXACT), (torch.float32, 1e-5)])
def test_rotation_alone_keeps_the_logits(
    source: Path, rotated: Path, dtype: torch.dtype, limit: float
) -> None:
    plain, turned = run_model(source, dtype), run_model(rotated, dtype)
    assert change(plain.main, turned.main) < limit
    assert change(plain.first, turned.first) < limit
    assert change(plain.drafts[:1], turned.drafts[:1]) < limit
    for one, other in zip(plain.choices, turned.choices, strict=True):
        assert torch.equal(one, other)


def test_51_style_and_outliers(tmp_path: Path) -> None:
    """An indexer in every layer, and embedding channels 20 times larger than the rest."""
    source = write_tiny(tmp_path / "source", style="5.1", outlier_channels=3, seed=5)
    turned = quantize(source, tmp_path / "rot", "none", dtype="float32")
    plain, after = run_model(source), run_model(turned)
    assert change(plain.main, after.main) < EXACT
    assert change(plain.first, after.first) < EXACT


def test_later_mtp_steps_are_exact_only_with_equal_norms(
    source: Path, rotated: Path, before: Run, tmp_path: Path
) -> None:
    """Later steps recycle the state after ``shared_head.norm``, whose γ is not model.norm's.

    One ``rot.weight`` restores model.norm's γ in both places, so steps from 2 on see the state
    with the wrong γ; nothing is lost where the two are equal.
    """
    loss = [
        change(before.drafts[i : i + 1], d[None]) for i, d in enumerate(run_model(rotated).drafts)
    ]
    print("relative change per MTP step:", [f"{value:.1e}" for value in loss])
    assert loss[0] < EXACT
    assert min(loss[1:]) > 1e-3
    equal = _with_equal_norms(source, tmp_path / "equal")
    turned = quantize(equal, tmp_path / "rot", "none", dtype="float32")
    assert change(run_model(equal).drafts, run_model(turned).drafts) < EXACT


def _with_equal_norms(source: Path, target: Path) -> Path:
    target.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for file in source.glob("*.safetensors"):
        tensors |= load_file(file)
    tensors["model.layers.4.shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target


Change = Callable[[Fold], Fold]
UNROTATED_ROWS: Change = lambda fold: replace(fold, rows=None)  # noqa: E731
UNFUSED: Change = lambda fold: replace(fold, norms=())  # noqa: E731
FORGOTTEN: Change = lambda fold: NO_FOLD  # noqa: E731
FAULTS: dict[str, tuple[str, Change]] = {
    "router forgotten": (".mlp.gate.weight", FORGOTTEN),
    "wk forgotten": (".indexer.wk.weight", FORGOTTEN),
    "wk without norm": (".indexer.wk.weight", UNFUSED),
    "weights_proj forgotten": (".indexer.weights_proj.weight", FORGOTTEN),
    "wq_b forgotten": (".indexer.wq_b.weight", FORGOTTEN),
    "wq_b without norm": (".indexer.wq_b.weight", UNFUSED),
    "kv_a without R3": (".kv_a_proj_with_mqa.weight", UNROTATED_ROWS),
    "kv_b without R4": (".kv_b_proj.weight", UNROTATED_ROWS),
    "shared expert's down unrotated": (".shared_experts.down_proj.weight", UNROTATED_ROWS),
    "one expert forgotten": (".mlp.experts.3.up_proj.weight", FORGOTTEN),
    "embedding forgotten": ("model.embed_tokens.weight", FORGOTTEN),
    "head without norm": ("lm_head.weight", UNFUSED),
}
MTP_FAULTS: dict[str, tuple[str, Change]] = {
    "eh_proj norms swapped": (
        ".eh_proj.weight",
        lambda fold: replace(fold, norms=fold.norms[::-1]),
    ),
    "eh_proj half rotated": (
        ".eh_proj.weight",
        lambda fold: replace(fold, columns=Axis((("R1", 96), (None, 96)))),
    ),
    "MTP head with the wrong norm": (
        ".shared_head.head.weight",
        lambda fold: replace(fold, norms=("model.norm.weight",)),
    ),
    "MTP embedding unrotated": (".4.embed_tokens.weight", FORGOTTEN),
}


def plant(monkeypatch: pytest.MonkeyPatch, suffix: str, fault: Change) -> None:
    original = recipe.fold_of

    def broken(config: object, name: str) -> Fold:
        fold = original(config, name)  # type: ignore[arg-type]
        return fault(fold) if name.endswith(suffix) else fold

    monkeypatch.setattr(recipe, "fold_of", broken)


@pytest.mark.parametrize("fault", list(FAULTS))
def test_planted_faults_change_the_main_model(
    fault: str, source: Path, before: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, *FAULTS[fault])
    after = run_model(quantize(source, tmp_path / "out", "none", dtype="float32"))
    assert change(before.main, after.main) > 1e-3


@pytest.mark.parametrize("fault", list(MTP_FAULTS))
def test_planted_faults_change_the_mtp_layer(
    fault: str, source: Path, before: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, *MTP_FAULTS[fault])
    after = run_model(quantize(source, tmp_path / "out", "none", dtype="float32"))
    assert change(before.main, after.main) < EXACT
    assert change(before.first, after.first) > 1e-3


def test_a_wrong_recycled_state_is_seen(
    source: Path, before: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without γ in rot.weight the MTP layer reads an unscaled state: acceptance collapses."""
    monkeypatch.setattr(convert, "recycled_state", lambda gamma, r1: torch.eye(r1.size))
    after = run_model(quantize(source, tmp_path / "out", "none", dtype="float32"))
    assert change(before.first, after.first) > 1e-3


def test_transformers_loads_a_rotated_float_checkpoint(rotated: Path) -> None:
    """The folder itself is a transformers model; what lies beyond the main model is ignored."""
    oracle = HfOracle(rotated)
    tokens = torch.arange(40)
    load = partial(GlmMoeDsaForCausalLM.from_pretrained, rotated, dtype=torch.float32)
    model, report = load(attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    assert all(name.startswith(("model.layers.4.", "rot.")) for name in report["unexpected_keys"])
    for layer in model.model.layers:
        set_latent_eps(layer, ENGINE_LATENT_EPS)
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    assert change(oracle.forward(tokens).logits, logits) < 1e-5
