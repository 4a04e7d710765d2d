"""The expected tensors against the published counts and sizes, and against transformers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from glm5_ascend.checkpoint import TensorSpec, expected_tensors, tensor_bytes
from glm5_ascend.config import Glm5Config
from tests.core import micro

CONFIGS = Path(__file__).parent.parent / "data" / "configs"


@cache
def inventory(name: str) -> dict[str, TensorSpec]:
    config = Glm5Config.from_dict(json.loads((CONFIGS / f"{name}.json").read_text()), source=name)
    return expected_tensors(config)


# Counts are those of the published index files; 1 506 659 919 872 and 755 617 140 416 are their
# total_size for 5.2 and 5.2-FP8.
RELEASES = {
    "GLM-5": (59_870, 0, 1_507_728_316_928),
    "GLM-5.1": (59_870, 0, 1_507_728_316_928),
    "GLM-5-FP8": (59_870, 59_158, None),
    "GLM-5.1-FP8": (59_870, 59_158, None),
    "GLM-5.2": (59_585, 0, 1_506_659_919_872),
    "GLM-5.3-BF16": (59_585, 0, 1_506_659_919_872),
    "GLM-5.2-FP8": (59_585, 59_044, 755_617_140_416),
    "GLM-5.3": (59_585, 59_044, 755_617_140_416),
}


@pytest.mark.parametrize("name", RELEASES)
def test_counts_and_bytes_of_the_releases(name: str) -> None:
    count, scales, total = RELEASES[name]
    tensors = inventory(name)
    assert sum(key.endswith("_scale_inv") for key in tensors) == scales
    assert sum(spec.dtype == "F8_E4M3" for spec in tensors.values()) == scales
    assert len(tensors) == count + scales
    if total is not None:
        assert sum(map(tensor_bytes, tensors.values())) == total


def test_mtp_layer_has_791_tensors() -> None:
    tensors = inventory("GLM-5.2")
    mtp = [name for name in tensors if name.startswith("model.layers.78.")]
    assert len(mtp) == 791
    assert tensors["model.layers.78.eh_proj.weight"] == TensorSpec((6144, 12288), "BF16")
    assert "model.layers.78.embed_tokens.weight" not in tensors
    assert "model.layers.78.shared_head.head.weight" not in tensors


def test_shared_layers_have_no_indexer() -> None:
    owners = {name.split(".")[2] for name in inventory("GLM-5.2") if ".indexer." in name}
    assert owners == {str(i) for i in (0, 1, 2, *range(6, 78, 4), 78)}


@pytest.mark.parametrize(
    ("name", "shape", "scale"),
    [
        ("self_attn.q_a_proj", (2048, 6144), (16, 48)),
        ("self_attn.q_b_proj", (16384, 2048), (128, 16)),
        ("self_attn.kv_a_proj_with_mqa", (576, 6144), (5, 48)),
        ("self_attn.kv_b_proj", (28672, 512), (224, 4)),
        ("self_attn.o_proj", (6144, 16384), (48, 128)),
        ("self_attn.indexer.wq_b", (4096, 2048), (32, 16)),
        ("self_attn.indexer.wk", (128, 6144), (1, 48)),
        ("mlp.experts.255.gate_proj", (2048, 6144), (16, 48)),
        ("mlp.experts.0.down_proj", (6144, 2048), (48, 16)),
        ("mlp.shared_experts.up_proj", (2048, 6144), (16, 48)),
        ("self_attn.indexer.weights_proj", (32, 6144), None),
        ("mlp.gate", (256, 6144), None),
        ("self_attn.indexer.k_norm", (128,), None),
        ("eh_proj", (6144, 12288), None),
    ],
)
def test_shapes_of_the_fp8_release(
    name: str, shape: tuple[int, ...], scale: tuple[int, ...] | None
) -> None:
    tensors = inventory("GLM-5.3")
    full = f"model.layers.78.{name}.weight"
    assert tensors[full] == TensorSpec(shape, "BF16" if scale is None else "F8_E4M3")
    if scale is None:
        assert f"{full}_scale_inv" not in tensors
    else:
        assert tensors[f"{full}_scale_inv"] == TensorSpec(scale, "F32")


def test_correction_bias_is_f32_and_the_rest_follows_the_model() -> None:
    for dtype, stored in (("bfloat16", "BF16"), ("float32", "F32")):
        tensors = expected_tensors(micro.config(dtype=dtype))
        bias = {name for name in tensors if name.endswith("e_score_correction_bias")}
        assert len(bias) == 3
        assert {tensors[name].dtype for name in bias} == {"F32"}
        assert {tensors[name].dtype for name in tensors.keys() - bias} == {stored}


@pytest.mark.torch
@pytest.mark.parametrize("style", ["5.1", "5.2"])
def test_names_and_shapes_are_those_that_transformers_saves(style: str, tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

    raw = dict(micro.CONFIG)
    del raw["index_topk_freq"], raw["num_nextn_predict_layers"]
    if style == "5.2":
        raw |= {"index_topk_freq": 2, "index_skip_topk_offset": 1}
    torch.manual_seed(0)
    GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**raw)).to(torch.bfloat16).save_pretrained(tmp_path)
    saved = {}
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            saved[name] = tuple(file.get_slice(name).get_shape())
    config = Glm5Config.from_dir(tmp_path)
    assert config.has_indexer(1) == (style == "5.1")
    assert saved == {name: spec.shape for name, spec in expected_tensors(config).items()}
