"""The configuration of every release, and one refusal for each way a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
FULL_52 = [0, 1, 2, *range(6, 78, 4)]


def release(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return raw


def read(raw: dict[str, Any]) -> Glm5Config:
    return Glm5Config.from_dict(raw, source="config.json")


@pytest.mark.parametrize("name", ["GLM-5", "GLM-5-FP8", "GLM-5.1", "GLM-5.1-FP8"])
def test_first_generation(name: str) -> None:
    config = read(release(name))
    assert config.family == "GLM-5/5.1"
    assert config.rope_theta == 1_000_000
    assert config.max_position_embeddings == 202_752
    assert all(config.has_indexer(layer) for layer in range(79))
    assert not config.index_share_for_mtp_iteration
    assert (config.fp8 is not None) == name.endswith("FP8")


@pytest.mark.parametrize("name", ["GLM-5.2", "GLM-5.2-FP8", "GLM-5.3", "GLM-5.3-BF16"])
def test_second_generation(name: str) -> None:
    config = read(release(name))
    assert config.family == "GLM-5.2/5.3"
    assert config.rope_theta == 8_000_000
    assert config.max_position_embeddings == 1_048_576
    assert [i for i in range(78) if config.has_indexer(i)] == FULL_52
    assert config.has_indexer(78), "the MTP layer always owns an indexer"
    assert config.index_share_for_mtp_iteration
    assert (config.fp8 is not None) == (name in ("GLM-5.2-FP8", "GLM-5.3"))


def test_common_values() -> None:
    config = read(release("GLM-5.2"))
    assert (config.layer_count, config.num_hidden_layers) == (79, 78)
    assert config.qk_head_dim == 256
    assert config.eos_token_id == (154820, 154827, 154829)
    assert config.pad_token_id == 154820
    assert [config.is_moe(i) for i in (0, 2, 3, 78)] == [False, False, True, True]
    assert [config.is_mtp(i) for i in (0, 77, 78)] == [False, False, True]


def test_fp8_metadata_maps_the_alias() -> None:
    fp8 = read(release("GLM-5.2-FP8")).fp8
    assert fp8 is not None
    assert fp8.block == (128, 128)
    assert len(fp8.keep) == 541
    assert fp8.keeps("model.layers.0.self_attn.indexer.weights_proj")
    assert not fp8.keeps("model.layers.0.self_attn.indexer.wk")
    assert not any("indexers_proj" in module for module in fp8.keep)
    assert fp8.grid((576, 6144)) == (5, 48), "the last block of 576 rows is partial"


def test_fp8_keep_covers_what_lies_below_but_no_longer_name() -> None:
    raw = release("GLM-5-FP8")
    raw["quantization_config"]["modules_to_not_convert"] = ["model.layers.7"]
    fp8 = read(raw).fp8
    assert fp8 is not None
    assert fp8.keeps("model.layers.7.self_attn.o_proj")
    assert not fp8.keeps("model.layers.77.self_attn.o_proj")


@pytest.mark.parametrize("head_dim", [64, 192, None])
def test_head_dim_has_no_meaning(head_dim: int | None) -> None:
    assert read(release("GLM-5.2") | {"head_dim": head_dim}) == read(release("GLM-5.2"))


@pytest.mark.parametrize(
    "pattern",
    ["FFFS", ["F", "F", "F", "S"], ["full", "full", "full", "shared"]],
    ids=["string", "letters", "words"],
)
def test_pattern_replaces_the_schedule(pattern: object) -> None:
    raw = release("GLM-5") | {"num_hidden_layers": 4, "index_topk_pattern": pattern}
    assert read(raw).indexer_types == ("full", "full", "full", "shared")


def test_default_offset_is_two() -> None:
    raw = release("GLM-5") | {"index_topk_freq": 4}
    full = [i for i, kind in enumerate(read(raw).indexer_types) if kind == "full"]
    assert full == [0, 1, *range(5, 78, 4)]


def test_own_output_is_readable() -> None:
    raw = release("GLM-5.2-FP8")
    raw["quantization_config"] = {"quant_method": "ascend", "model_quant_type": "W4A8_DYNAMIC"}
    assert read(raw) == read(release("GLM-5.2"))


CONTRADICTIONS = {
    "offset lost": ({"index_skip_topk_offset": None}, "layer 2", "offset 2"),
    "frequency lost": ({"index_topk_freq": None}, "layer 3", "freq 1"),
    "pattern differs": ({"index_topk_pattern": "F" * 78}, "layer 3", "index_topk_pattern"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradiction_names_the_first_layer_and_both_keys(case: str) -> None:
    change, layer, rule = CONTRADICTIONS[case]
    with pytest.raises(ConfigError) as caught:
        read(release("GLM-5.2") | change)
    for word in ("config.json", "indexer_types", layer, rule):
        assert word in caught.value.message


def test_one_wrong_layer_is_found() -> None:
    raw = release("GLM-5.2")
    raw["indexer_types"][41] = "full"
    with pytest.raises(ConfigError, match="says full for layer 41"):
        read(raw)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing essential key": ({"index_topk": None}, "missing key `index_topk`"),
    "typo": ({"index_topk_frq": 4}, "unknown key `index_topk_frq`; did you mean"),
    "unknown key": ({"hc_mult": 4}, "unknown key `hc_mult`"),
    "not an integer": ({"hidden_size": "6144"}, "`hidden_size` must be an integer"),
    "bool for integer": ({"n_shared_experts": True}, "`n_shared_experts` must be an integer"),
    "zero": ({"kv_lora_rank": 0}, "`kv_lora_rank` must be at least 1"),
    "negative": ({"num_nextn_predict_layers": -1}, "`num_nextn_predict_layers` must be at least 0"),
    "infinite": ({"rms_norm_eps": float("inf")}, "`rms_norm_eps` must be finite"),
    "not a number": ({"routed_scaling_factor": "2.5"}, "`routed_scaling_factor` must be a number"),
    "not a flag": ({"norm_topk_prob": 1}, "`norm_topk_prob` must be true or false"),
    "kv heads": ({"num_key_value_heads": 8}, "must equal `num_attention_heads`"),
    "head width": ({"qk_head_dim": 192}, "`qk_head_dim` must be"),
    "odd rope": ({"qk_rope_head_dim": 63, "qk_head_dim": 255}, "must be even"),
    "index head below rope": ({"index_head_dim": 32}, "`index_head_dim` must not be smaller"),
    "too few experts": ({"n_routed_experts": 4}, "`num_experts_per_tok` must not exceed"),
    "all dense": ({"first_k_dense_replace": 79}, "`first_k_dense_replace` must not exceed"),
    "layer kinds": ({"first_k_dense_replace": 2}, "`mlp_layer_types` contradicts"),
    "activation": ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
    "tied": ({"tie_word_embeddings": True}, "`tie_word_embeddings` is True"),
    "groups": ({"n_group": 8}, "`n_group` is 8"),
    "scoring": ({"scoring_func": "softmax"}, "`scoring_func` is 'softmax'"),
    "bias": ({"attention_bias": True}, "`attention_bias` is True"),
    "rope layout": ({"indexer_rope_interleave": False}, "`indexer_rope_interleave` is False"),
    "flat rope": ({"rope_parameters": None, "rope_theta": 8e6}, "missing key `rope_parameters`"),
    "rope type": ({"rope_parameters": {"rope_theta": 8e6, "rope_type": "yarn"}}, "'yarn'"),
    "rope theta": ({"rope_parameters": {"rope_type": "default"}}, "missing key `rope_theta`"),
    "rope twice": ({"rope_theta": 10000.0}, "`rope_theta` differs"),
    "stop token": ({"eos_token_id": [154880]}, "`eos_token_id` holds 154880"),
    "dtype": ({"dtype": "float16"}, "`dtype` is 'float16'"),
    "short types": ({"indexer_types": ["full"]}, "`indexer_types` has 1 entries for 78 layers"),
    "bad type": ({"index_topk_pattern": "X" * 78}, "has 'X' at layer 0"),
    "shared first": ({"indexer_types": None, "index_topk_pattern": "S" * 78}, "layer 0 has a shar"),
    "remote code": ({"auto_map": {"AutoModel": "m.M"}}, "asks to run code"),
    "GPTQ": ({"quantization_config": {"quant_method": "gptq"}}, "method 'gptq'"),
    "FP8 format": (
        {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}},
        "`fmt` is 'e5m2'",
    ),
    "FP8 blocks": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
        "`weight_block_size` must be two",
    ),
    "FP8 typo": (
        {"quantization_config": {"quant_method": "fp8", "modules_to_not_covert": []}},
        "did you mean `modules_to_not_convert`",
    ),
    "flash": ({"model_type": "glm5_next"}, "GLM-5.3-Flash"),
    "text part of flash": ({"model_type": "glm5_next_text"}, "GLM-5.3-Flash"),
    "DeepSeek V2": ({"model_type": "deepseek_v2"}, "DeepSeek-V2"),
    "DeepSeek V3": ({"model_type": "deepseek_v3"}, "DeepSeek-V3"),
    "DeepSeek V3.2": ({"model_type": "deepseek_v32"}, "DeepSeek-V3.2"),
    "another model": ({"model_type": "llama"}, "`llama` is another model family"),
    "no model": ({"model_type": None}, "missing key `model_type`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    change, message = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        read(release("GLM-5.2") | change)
    assert message in caught.value.message
    assert "config.json" in caught.value.message
    assert caught.value.hint


ESSENTIAL = """
    vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers
    first_k_dense_replace num_attention_heads q_lora_rank kv_lora_rank qk_nope_head_dim
    qk_rope_head_dim v_head_dim index_n_heads index_head_dim index_topk n_routed_experts
    num_experts_per_tok n_shared_experts routed_scaling_factor rms_norm_eps
    max_position_embeddings
""".split()  # noqa: SIM905


@pytest.mark.parametrize("key", ESSENTIAL)
def test_every_essential_key_is_demanded_by_name(key: str) -> None:
    raw = release("GLM-5")
    del raw[key]
    with pytest.raises(ConfigError, match=f"missing key `{key}`"):
        read(raw)


FILES: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{model_type", "is not valid JSON"),
    "not an object": (b"[]", "does not hold a JSON object"),
    "not text": (b"\xff\xfe{}", "is not UTF-8"),
    "key twice": (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' occurs twice"),
}


@pytest.mark.parametrize("case", FILES)
def test_broken_file(case: str, tmp_path: Path) -> None:
    content, message = FILES[case]
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        Glm5Config.from_dir(tmp_path)
    assert str(tmp_path) in caught.value.message


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json: No such file"):
        Glm5Config.from_dir(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json: Is a directory"):
        Glm5Config.from_dir(tmp_path)
