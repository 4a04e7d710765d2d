"""Tiny checkpoints have the published names, shapes and variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.support.fp8 import FP8_KEPT, dequantise_blocks, quantise_blocks
from tests.support.hf import HfOracle
from tests.support.teacher_forced import step_errors
from tests.support.tiny_config import tiny_config
from tests.support.tiny_model import write_tiny
from tests.support.tiny_tensors import tensor_shapes
from tests.support.tiny_tokenizer import SPECIAL_TOKENS
from tests.support.weights import read_config, read_tensors

FULL_SIZE: dict[str, Any] = {
    "first_k_dense_replace": 3,
    "hidden_size": 6144,
    "index_n_heads": 32,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "vocab_size": 154880,
}


@pytest.mark.parametrize(
    ("style", "names", "scales", "parameters"),
    [("5.1", 59_870, 59_158, 753.86e9), ("5.2", 59_585, 59_044, 753.33e9)],
)
def test_full_size_inventory_is_the_audited_one(
    style: str, names: int, scales: int, parameters: float
) -> None:
    shapes = tensor_shapes(tiny_config(style, **FULL_SIZE))
    assert len(shapes) == names
    assert sum(not name.endswith(FP8_KEPT) for name in shapes) == scales
    total = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert abs(total - parameters) < 0.005e9


def test_default_shape(tiny: Path) -> None:
    tensors, config = read_tensors(tiny), read_config(tiny)
    assert sum(t.numel() for t in tensors.values()) < 1_000_000
    assert config["indexer_types"] == ["full", "full", "full", "shared"]
    assert "model.layers.3.self_attn.indexer.wk.weight" not in tensors
    assert "model.layers.4.self_attn.indexer.wk.weight" in tensors
    bias = tensors["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert bias.dtype == torch.float32
    assert tensors["model.norm.weight"].dtype == torch.bfloat16
    for name in ("mlp.gate.e_score_correction_bias", "self_attn.indexer.k_norm.bias"):
        assert tensors[f"model.layers.1.{name}"].abs().min() > 0
    assert tensors["model.layers.0.input_layernorm.weight"].std() > 0.2


def test_same_seed_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again, other = write_tiny(tmp_path / "a"), write_tiny(tmp_path / "b", seed=1)
    file = "model.safetensors"
    assert (again / file).read_bytes() == (tiny / file).read_bytes()
    assert (other / file).read_bytes() != (tiny / file).read_bytes()


def test_shards_and_index(tmp_path: Path, tiny: Path) -> None:
    directory = write_tiny(tmp_path, shards=3)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    files = {p.name for p in directory.glob("*.safetensors")}
    assert set(index["weight_map"].values()) == files
    assert len(files) == 3
    whole, parts = read_tensors(tiny), read_tensors(directory)
    assert set(index["weight_map"]) == set(parts) == set(whole)
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_variants(tmp_path: Path, oracle: HfOracle, tokens: torch.Tensor) -> None:
    directory = write_tiny(
        tmp_path, style="5.1", mtp=False, index=False, outlier_channels=2, dead_expert=True
    )
    assert [p.name for p in directory.glob("*.safetensors*")] == ["model.safetensors"]
    peaks = read_tensors(directory)["model.embed_tokens.weight"].float().abs().amax(dim=0)
    assert (peaks > 4 * peaks.median()).sum() == 2
    odd = HfOracle(directory)
    with pytest.raises(ValueError, match="no MTP layer"):
        _ = odd.mtp
    choices = odd.forward(tokens).choices
    assert sorted(choices.topk_indices) == [0, 1, 2, 3]
    assert all((ids < 7).all() for ids in choices.expert_ids.values())
    assert any((ids == 7).any() for ids in oracle.forward(tokens).choices.expert_ids.values())


def test_fp8_blocks_on_a_partial_grid() -> None:
    gen = torch.Generator().manual_seed(0)
    weight = torch.randn(320, 200, generator=gen)
    weight[128:] *= 100
    codes, scales = quantise_blocks(weight)
    assert scales.shape == (3, 2)
    error = (dequantise_blocks(codes, scales) - weight).abs()
    # e4m3 keeps three mantissa bits: at most 1/16 of the value, or half the smallest step.
    assert (error <= weight.abs() / 16 + 1e-3 * weight.abs().max()).all()
    # The block size guessed as rows // scale_rows mis-scales rows 106 to 127.
    guessed = codes.float() * scales.repeat_interleave(107, 0)[:320].repeat_interleave(100, 1)
    assert (guessed - weight).norm() / weight.norm() > 5 * error.norm() / weight.norm()


def test_fp8_checkpoint(tmp_path: Path, oracle: HfOracle, tokens: torch.Tensor) -> None:
    directory = write_tiny(tmp_path, fp8=True)
    tensors, config = read_tensors(directory), read_config(directory)
    assert tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"].shape == (3, 1)
    assert tensors["model.layers.4.eh_proj.weight"].dtype == torch.bfloat16
    kept = config["quantization_config"]["modules_to_not_convert"]
    assert "model.layers.0.self_attn.indexers_proj" in kept
    assert not any("weights_proj" in name for name in kept)
    sound = oracle.forward(tokens)
    reached = HfOracle(directory).forward(tokens, inject=sound.choices)
    assert 0.01 < step_errors(reached.logits, sound.logits).median() < 0.6


def test_tokenizer(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, tokenizer=True)
    config, tokenizer = read_config(directory), AutoTokenizer.from_pretrained(directory)
    text = "naïve <think>x</think>\n\tthe tokens"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids) < config["vocab_size"]
    assert tokenizer.convert_tokens_to_ids("<think>") in ids
    stops = ["<|endoftext|>", "<|user|>", "<|observation|>"]
    assert config["eos_token_id"] == tokenizer.convert_tokens_to_ids(stops)
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS[-1]) == config["vocab_size"] - 1
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "[gMASK]<sop><|user|>hi<|assistant|><think>"
