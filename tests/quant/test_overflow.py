"""Finite sources whose conversion overflows: refused, naming tensor and file, and resumable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_ascend.checkpoint_values import first_not_finite
from glm5_ascend.quant import convert, matrix_cpu
from glm5_ascend.quant.journal import JOURNAL
from glm5_ascend.quant.native import Rounded
from tests.quant.conftest import quantize
from tests.quant.test_refusals import assert_refused, invoke
from tests.support.tiny_model import write_tiny

Q_A = "model.layers.0.self_attn.q_a_proj.weight"
KV_B = "model.layers.0.self_attn.kv_b_proj.weight"
EXPERT = "model.layers.2.mlp.experts.5.gate_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
K_NORM_BIAS = "model.layers.0.self_attn.indexer.k_norm.bias"
SCALE = f"{Q_A}_scale_inv"

# kind of source, tensor, value, options, tensor that the message names
CASES: dict[str, tuple[str, str, float, tuple[str, ...], str]] = {
    "rotation of a projection": ("bfloat16", Q_A, 3e38, (), Q_A),
    "rotation of an expert": ("bfloat16", EXPERT, 3e38, (), EXPERT),
    "rotation of the embedding": ("bfloat16", EMBEDDING, 3e38, (), EMBEDDING),
    "cast of a vector": ("float32", K_NORM_BIAS, 3.4028e38, ("--no-rotate",), K_NORM_BIAS),
    "cast of a matrix": ("float32", KV_B, 3.4028e38, ("--no-rotate",), KV_B),
    "FP8 scale overflows int8": ("fp8", SCALE, 3e38, ("--no-rotate",), Q_A),
    "FP8 scale overflows a float": ("fp8", f"{KV_B}_scale_inv", 3e38, (), KV_B),
    "FP8 scale is zero": ("fp8", SCALE, 0.0, (), SCALE),
    "FP8 scale is negative": ("fp8", SCALE, -1.0, (), SCALE),
    "FP8 scale is infinite": ("fp8", SCALE, float("inf"), (), SCALE),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("overflow")
    return {
        "bfloat16": write_tiny(home / "bfloat16"),
        "float32": write_tiny(home / "float32", dtype="float32"),
        "fp8": write_tiny(home / "fp8", fp8=True),
    }


@pytest.mark.parametrize("name", list(CASES))
def test_overflow_is_refused(name: str, sources: dict[str, Path], tmp_path: Path) -> None:
    kind, tensor, value, options, named = CASES[name]
    source = Path(shutil.copytree(sources[kind], tmp_path / "source"))
    file = source / "model.safetensors"
    tensors = load_file(file)
    tensors[tensor][0] = value
    save_file(tensors, file, {"format": "pt"})
    destination = tmp_path / "out"
    result = invoke(source, destination, "--scheme", "w4a8", *options)
    assert_refused(result, 1, f"tensor {named} ", str(file))
    left = {path.name for path in destination.iterdir()}
    assert JOURNAL in left
    assert "config.json" not in left


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_that_is_not_positive_is_never_written(
    scale: float, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever rounding does: the check stands between every scale and the file."""
    folded: Callable[..., Rounded] = matrix_cpu.fold

    def broken(*args: Any, **options: Any) -> Rounded:
        found = folded(*args, **options)
        found.scale[1] = scale if len(found.bias) else found.scale[1]
        return found

    monkeypatch.setattr(matrix_cpu, "fold", broken)
    result = invoke(source, tmp_path / "out", "--scheme", "w4a8")
    assert_refused(result, 1, "experts", "not positive", "model-0000")


def test_zero_and_huge_but_representable_weights(sources: dict[str, Path], tmp_path: Path) -> None:
    """An all-zero matrix and weights of 1e30 convert; every stored value is finite."""
    source = Path(shutil.copytree(sources["bfloat16"], tmp_path / "source"))
    file = source / "model.safetensors"
    tensors = load_file(file)
    tensors[EXPERT].zero_()
    tensors[Q_A].fill_(1e30)
    save_file(tensors, file, {"format": "pt"})
    output = quantize(source, tmp_path / "out", "w4a8")
    for path in output.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert bool(torch.isfinite(tensor.float()).all()), name
            assert not name.endswith("weight_scale") or bool((tensor > 0).all()), name


def test_the_check_sees_every_float_dtype() -> None:
    for dtype, kind in (("BF16", torch.bfloat16), ("F32", torch.float32)):
        values = torch.tensor([1.0, float("inf")], dtype=kind)
        assert first_not_finite(convert.as_bytes(values, convert.TensorSpec((2,), dtype)), dtype)
