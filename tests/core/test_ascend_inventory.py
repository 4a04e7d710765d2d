"""Quantised checkpoints that the engine would load without a word, and those it should."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_ascend.errors import CheckpointError
from glm5_ascend.inspection import inspect_checkpoint
from tests.core.ascend import Quantised, quantised

L1, L3 = "model.layers.1.", "model.layers.3."
GATE = f"{L1}mlp.experts.0.gate_proj"
DOWN = f"{L1}mlp.experts.2.down_proj"
SHARED = f"{L1}mlp.shared_experts.up_proj"
Q_A = f"{L1}self_attn.q_a_proj"
KV_B = f"{L1}self_attn.kv_b_proj"
DESCRIPTION = "quant_model_description.json"
FILE = "model-00001-of-00001.safetensors"


def test_every_scheme_at_once_is_accepted(tmp_path: Path) -> None:
    found = inspect_checkpoint(quantised().write(tmp_path))
    assert found.rotated
    assert found.schemes["attention"] == {"W8A8": 12, "FLOAT": 3}
    assert found.schemes["routed_experts"] == {"W4A8_DYNAMIC": 18}
    assert found.schemes["mtp"] == {"W8A8_DYNAMIC": 17, "FLOAT": 15}


def _scalar(made: Quantised) -> None:
    made.put(f"{Q_A}.input_scale", (), "BF16", "W8A8")


def _float_everywhere(made: Quantised) -> None:
    made.put("model.norm.weight", (16,), "F32", "FLOAT")


def _offsets_and_scales(made: Quantised) -> None:
    made.put(f"{SHARED}.weight_offset", (8 * 2, 1), "F32", "W8A8_DYNAMIC")
    made.put(f"{Q_A}.weight_scale", (6, 1), "BF16", "W8A8")


def _cache_setting(made: Quantised) -> None:
    made.description[f"{L1}self_attn.indexer.quant_type"] = "INT8_DYNAMIC"
    made.description["rot.weight"] = "FLOAT"


@pytest.mark.parametrize(
    "change", [_scalar, _float_everywhere, _offsets_and_scales, _cache_setting]
)
def test_what_the_engine_takes_as_well(change: Callable[[Quantised], None], tmp_path: Path) -> None:
    made = quantised()
    change(made)
    inspect_checkpoint(made.write(tmp_path))


def put(
    name: str, shape: tuple[int, ...], dtype: str, scheme: str | None
) -> Callable[[Quantised], None]:
    return lambda made: made.put(name, shape, dtype, scheme)


def say(**settings: object) -> Callable[[Quantised], None]:
    return lambda made: made.description.update(settings)


def scheme(name: str, value: object) -> Callable[[Quantised], None]:
    return lambda made: made.description.update({name: value})


def lost(name: str) -> Callable[[Quantised], None]:
    def change(made: Quantised) -> None:
        del made.stored[name]

    return change


def undescribed(name: str) -> Callable[[Quantised], None]:
    def change(made: Quantised) -> None:
        del made.description[name]

    return change


def dropped(name: str) -> Callable[[Quantised], None]:
    return lambda made: made.drop(name)


def _one_float_expert(made: Quantised) -> None:
    for part in ("weight_scale", "weight_offset", "scale_bias"):
        made.drop(f"{DOWN}.{part}")
    made.put(f"{DOWN}.weight", (16, 16), "BF16", "FLOAT")


def _two_input_scales(made: Quantised) -> None:
    spec, _ = made.stored[f"{Q_A}.input_scale"]
    made.stored[f"{Q_A}.input_scale"] = (spec, b"\x80\x3f")


def _still_fp8(made: Quantised) -> None:
    made.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}


BROKEN: dict[str, tuple[Callable[[Quantised], None], str]] = {
    "scale lost": (lost(f"{GATE}.weight_scale"), f"lacks tensor {GATE}.weight_scale"),
    "scale nowhere": (dropped(f"{SHARED}.weight_scale"), f"describe tensor {SHARED}.weight_scale"),
    "int4 bias nowhere": (dropped(f"{DOWN}.scale_bias"), f"describe tensor {DOWN}.scale_bias"),
    "static deq_scale": (dropped(f"{Q_A}.deq_scale"), f"describe tensor {Q_A}.deq_scale"),
    "static quant_bias": (dropped(f"{Q_A}.quant_bias"), f"describe tensor {Q_A}.quant_bias"),
    "weight nowhere": (dropped(f"{KV_B}.weight"), f"describe tensor {KV_B}.weight"),
    "key norm bias": (
        dropped(f"{L1}self_attn.indexer.k_norm.bias"),
        f"describe tensor {L1}self_attn.indexer.k_norm.bias",
    ),
    "MTP head": (
        dropped(f"{L3}shared_head.head.weight"),
        f"describe tensor {L3}shared_head.head.weight",
    ),
    "MTP embedding": (lost(f"{L3}embed_tokens.weight"), f"lacks tensor {L3}embed_tokens.weight"),
    "undescribed scale": (undescribed(f"{GATE}.scale_bias"), f"describe tensor {GATE}.scale_bias"),
    "undescribed extra": (put("model.extra", (2,), "BF16", None), f"{FILE} holds tensor model.ext"),
    "other layer": (
        put("model.layers.99.input_layernorm.weight", (16,), "BF16", "FLOAT"),
        "describes tensor model.layers.99.input_layernorm.weight, which the model does not",
    ),
    "odd layer": (
        put("model.layers.foo.weight", (16,), "BF16", "FLOAT"),
        "describes tensor model.layers.foo.weight",
    ),
    "short name": (put("model.layers", (1,), "BF16", None), "holds tensor model.layers, which"),
    "described only": (scheme("model.layers.1.x.weight", "FLOAT"), "no file of the checkpoint"),
    "unpacked int4": (
        put(f"{GATE}.weight", (16, 16), "I8", "W4A8_DYNAMIC"),
        f"{FILE}: tensor {GATE}.weight has shape [16, 16], expected [8, 16]",
    ),
    "one column for down": (
        put(f"{DOWN}.scale_bias", (16, 1), "F32", "W4A8_DYNAMIC"),
        f"tensor {DOWN}.scale_bias has shape [16, 1], expected [16, 16]",
    ),
    "scale without axis": (
        put(f"{SHARED}.weight_scale", (16,), "BF16", "W8A8_DYNAMIC"),
        f"tensor {SHARED}.weight_scale has shape [16], expected [16, 1]",
    ),
    "BF16 int4 scale": (
        put(f"{GATE}.weight_scale", (16, 1), "BF16", "W4A8_DYNAMIC"),
        f"tensor {GATE}.weight_scale has dtype BF16, expected F32",
    ),
    "float in int8": (
        put(f"{SHARED}.weight", (16, 16), "BF16", "W8A8_DYNAMIC"),
        f"tensor {SHARED}.weight has dtype BF16, expected I8",
    ),
    "int8 in float": (
        put(f"{KV_B}.weight", (16, 10), "I8", "FLOAT"),
        f"tensor {KV_B}.weight has dtype I8, expected BF16",
    ),
    "quantised kv_b": (scheme(f"{KV_B}.weight", "W8A8_DYNAMIC"), "can be FLOAT only"),
    "quantised router": (scheme(f"{L1}mlp.gate.weight", "W8A8_DYNAMIC"), "can be FLOAT only"),
    "quantised eh_proj": (scheme(f"{L3}eh_proj.weight", "W8A8_DYNAMIC"), "can be FLOAT only"),
    "int4 linear": (scheme(f"{SHARED}.weight", "W4A8_DYNAMIC"), "FLOAT or W8A8 or W8A8_DYNAMIC"),
    "nonsense": (scheme(f"{GATE}.weight", "W3"), f"gives {GATE}.weight the scheme W3"),
    "part of another scheme": (scheme(f"{GATE}.scale_bias", "FLOAT"), f"gives {GATE}.scale_bias"),
    "not a scheme": (scheme(f"{GATE}.weight", 4), f"gives {GATE}.weight no scheme"),
    "one float expert": (_one_float_expert, "fuses the two"),
    "two input scales": (_two_input_scales, f"{Q_A}.input_scale differs from"),
    "empty description": (lambda made: made.description.clear(), "describe tensor model.embed"),
    "no rotation": (lost("rot.weight"), "lacks tensor rot.weight"),
    "unused rotation": (say(is_rot_used=False), f"{FILE} holds tensor rot.weight"),
    "rotation of another size": (
        put("rot.weight", (12, 12), "BF16", None),
        "tensor rot.weight has shape [12, 12], expected [16, 16]",
    ),
    "rotation in words": (say(is_rot_used="yes"), "is_rot_used must be true or false"),
    "old packing": (say(version="0"), "version must be '1.0.0'"),
    "grouped": (say(group_size=256), "group_size must be 0"),
    "FP8 left over": (_still_fp8, "still declares FP8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_checkpoint_is_refused(case: str, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    made = quantised()
    change(made)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        inspect_checkpoint(made.write(tmp_path))


def test_every_tensor_is_needed(tmp_path: Path) -> None:
    """Whatever is missing from the files is named; only offsets may go, with their description."""
    for name in quantised().stored:
        made = quantised()
        del made.stored[name]
        with pytest.raises(CheckpointError, match=re.escape(f"lacks tensor {name}")):
            inspect_checkpoint(made.write(tmp_path))


def test_int4_that_cannot_be_packed(tmp_path: Path) -> None:
    made = quantised()
    made.config["moe_intermediate_size"] = 20
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight of 20 x 16 .* cannot hold it"):
        inspect_checkpoint(made.write(tmp_path))
