"""The oracles on a checkpoint rotated here: rot.weight and the MTP layer's own copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.hf import HfOracle
from tests.support.teacher_forced import teacher_forced_error
from tests.support.tiny_model import write_tiny
from tests.support.weights import read_tensors

Tensors = dict[str, torch.Tensor]
READERS = {
    "input_layernorm": (
        "self_attn.q_a_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.indexer.wk",
        "self_attn.indexer.weights_proj",
    ),
    "post_attention_layernorm": ("mlp.gate", "gate_proj", "up_proj"),
}
WRITERS = ("o_proj.weight", "down_proj.weight", "eh_proj.weight")
MTP = "model.layers.4."


def rotate(tensors: Tensors) -> Tensors:
    """Fuse the norms over the hidden size and rotate it by a random orthogonal matrix (F64)."""
    out = {n: t.double() for n, t in tensors.items()}
    size = out["model.norm.weight"].numel()
    gen = torch.Generator().manual_seed(9)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=gen, dtype=torch.float64)).Q
    out[MTP + "embed_tokens.weight"] = out["model.embed_tokens.weight"].clone()
    out[MTP + "shared_head.head.weight"] = out["lm_head.weight"].clone()

    def fuse(norm: str, readers: list[str]) -> None:
        for reader in readers:
            out[reader] = out[reader] * out[norm]
        out[norm] = torch.ones_like(out[norm])

    out["rot.weight"] = rotation.T @ torch.diag(out["model.norm.weight"]) @ rotation
    both = torch.cat([out[MTP + "enorm.weight"], out[MTP + "hnorm.weight"]])
    out[MTP + "eh_proj.weight"] = out[MTP + "eh_proj.weight"] * both
    for name in ("enorm", "hnorm"):
        out[f"{MTP}{name}.weight"] = torch.ones(size, dtype=torch.float64)
    fuse("model.norm.weight", ["lm_head.weight"])
    fuse(MTP + "shared_head.norm.weight", [MTP + "shared_head.head.weight"])
    inputs = ["lm_head.weight", MTP + "shared_head.head.weight"]
    inputs += ["model.embed_tokens.weight", MTP + "embed_tokens.weight"]
    for layer in range(5):
        prefix = f"model.layers.{layer}."
        for norm, parts in READERS.items():
            names = [
                n
                for n in out
                if n.startswith(prefix) and n.endswith(tuple(f"{p}.weight" for p in parts))
            ]
            fuse(f"{prefix}{norm}.weight", names)
            inputs += names
    for name in inputs:
        out[name] = out[name] @ rotation
    for name in out:
        if name.endswith(WRITERS):
            out[name] = rotation.T @ out[name]
    eh_proj = out[MTP + "eh_proj.weight"]
    out[MTP + "eh_proj.weight"] = torch.cat([h @ rotation for h in eh_proj.chunk(2, dim=1)], 1)
    return {n: t.float() for n, t in out.items()}


@pytest.fixture(params=["equal-norms", "different-norms"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[bool, HfOracle, HfOracle]:
    """(final norms equal, oracle of the plain checkpoint, oracle of the rotated one)."""
    equal = request.param == "equal-norms"
    plain = write_tiny(tmp_path / "plain", dtype="float32", index=False)
    tensors = read_tensors(plain)
    if equal:
        tensors[MTP + "shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
        save_file(tensors, plain / "model.safetensors")
    rotated = tmp_path / "rotated"
    rotated.mkdir()
    shutil.copy(plain / "config.json", rotated)
    save_file({n: t.contiguous() for n, t in rotate(tensors).items()}, rotated / "w.safetensors")
    double = torch.float64
    return equal, HfOracle(plain, dtype=double), HfOracle(rotated, dtype=double)


def test_rotation_changes_nothing(
    pair: tuple[bool, HfOracle, HfOracle], tokens: torch.Tensor
) -> None:
    """Main model and step 1 are exact; later steps recycle through one rot.weight for two norms."""
    equal, plain, rotated = pair
    wanted, reached = plain.forward(tokens), rotated.forward(tokens)
    assert teacher_forced_error(reached.logits, wanted.logits) < 1e-5
    forced = [7, 8]
    first = plain.mtp.draft(tokens, wanted.hidden, 5, 3, forced=forced)
    second = rotated.mtp.draft(tokens, reached.hidden, 5, 3, forced=forced)
    assert teacher_forced_error(second.first.logits, first.first.logits) < 1e-5
    later = teacher_forced_error(second.logits[1:], first.logits[1:])
    assert later < 1e-5 if equal else later > 1e-2


def test_ignored_rotation_weight_is_visible(
    pair: tuple[bool, HfOracle, HfOracle], tokens: torch.Tensor
) -> None:
    _, plain, rotated = pair
    wanted, reached = plain.forward(tokens), rotated.forward(tokens)
    sound = plain.mtp.step(tokens, wanted.hidden)
    rotated.mtp.rotation = None
    broken = rotated.mtp.step(tokens, reached.hidden)
    assert teacher_forced_error(broken.logits, sound.logits) > 0.1
