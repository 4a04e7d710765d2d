"""Ways to break a checkpoint of the tests' W4A8 output that ``repair`` can mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.quant import damage
from tests.quant.conftest import json_of, tensors_of

ATT = "model.layers.1.self_attn."
EXPERT = "model.layers.1.mlp.experts.0."
MTP = "model.layers.4."
DESCRIPTION, CONFIG = "quant_model_description.json", "config.json"
INDEX = "model.safetensors.index.json"


def described(**keys: Any) -> Callable[[Path], None]:
    return lambda directory: damage.edit_json(directory / DESCRIPTION, **keys)


def configured(**keys: Any) -> Callable[[Path], None]:
    return lambda directory: damage.edit_json(directory / CONFIG, **keys)


def without(*names: str) -> Callable[[Path], None]:
    return lambda directory: damage.drop(directory, *names)


def edited(name: str, change: damage.Edit) -> Callable[[Path], None]:
    return lambda directory: damage.edit(directory, name, change)


def undescribed(prefix: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        keys = [key for key in json_of(directory / DESCRIPTION) if key.startswith(prefix)]
        damage.edit_json(directory / DESCRIPTION, **dict.fromkeys(keys))

    return change


def source_index(directory: Path) -> None:
    content = {
        "metadata": {},
        "weight_map": {"model.norm.weight": "model-00001-of-00282.safetensors"},
    }
    (directory / INDEX).write_text(json.dumps(content))


def unlisted_mtp(directory: Path) -> None:
    index = next(directory.glob("quant*.index.json"))
    document = json_of(index)
    kept = {n: f for n, f in document["weight_map"].items() if not n.startswith(MTP)}
    index.write_text(json.dumps(document | {"weight_map": kept}))


def lost_description(directory: Path) -> None:
    (directory / DESCRIPTION).unlink()


def one_column(directory: Path) -> None:
    for expert in range(8):
        name = f"model.layers.1.mlp.experts.{expert}.down_proj.scale_bias"
        damage.edit(directory, name, lambda bias: bias.sum(1, keepdim=True))


def flat_scales(directory: Path) -> None:
    for part in ("gate_proj", "up_proj"):
        damage.edit(directory, f"{EXPERT}{part}.weight_scale", lambda scale: scale[:, 0])


def no_mtp(directory: Path) -> None:
    names = [name for name in tensors_of(directory) if name.startswith(MTP)]
    damage.drop(directory, *names)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SCHEDULE = ("index_topk_freq", "index_skip_topk_offset", "indexer_types", "index_topk_pattern")

# What is broken, the rule that the plan for 0.23 names, and whether the source is needed.
CASES: dict[str, tuple[Callable[[Path], None], str, bool]] = {
    "group_size 256": (described(group_size=256), "group-size", False),
    "no group_size": (described(group_size=None), "group-size-missing", False),
    "no version": (described(version=None), "version-key", False),
    "MTP not described": (undescribed(MTP), "mtp-undescribed", False),
    "kv_a not described": (undescribed(f"{ATT}kv_a_proj"), "undescribed-fused", False),
    "o_proj not described": (undescribed(f"{ATT}o_proj"), "undescribed-int8", False),
    "kv_b not described": (undescribed(f"{ATT}kv_b_proj"), "undescribed-linear", False),
    "norm not described": (undescribed("model.norm"), "undescribed-other", False),
    "description too long": (described(**{"a.b": "FLOAT"}), "described-unknown", False),
    "part of another scheme": (
        described(**{f"{EXPERT}up_proj.scale_bias": "FLOAT"}),
        "description-part",
        False,
    ),
    "odd cache mark": (
        described(**{"model.layers.3.self_attn.indexer.quant_type": "INT8_DYNAMIC"}),
        "cache-mark",
        False,
    ),
    "no description": (lost_description, "description-missing", False),
    "rotation not announced": (described(is_rot_used=None), "rotation-unannounced", False),
    "FP8 left over": (configured(quantization_config=FP8), "config-quantization", False),
    "schedule lost": (configured(**dict.fromkeys(SCHEDULE)), "config-schedule", False),
    "no indexer_types": (configured(indexer_types=None), "config-indexer-types", False),
    "odd head_dim": (configured(head_dim=80), "config-head-dim", False),
    "MTP not announced": (configured(num_nextn_predict_layers=None), "config-mtp", False),
    "index of the source": (source_index, "index-foreign", False),
    "MTP not in the index": (unlisted_mtp, "index-stale", False),
    "embedding copy lost": (without(f"{MTP}embed_tokens.weight"), "mtp-vocabulary", False),
    "head copy lost": (without(f"{MTP}shared_head.head.weight"), "mtp-vocabulary", True),
    "one column": (one_column, "scale-bias-columns", False),
    "scales without axis": (flat_scales, "scale-axis", False),
    "bias lost": (
        without(f"{EXPERT}up_proj.scale_bias", f"{EXPERT}down_proj.scale_bias"),
        "scale-bias-missing",
        False,
    ),
    "rotation lost": (edited("rot.weight", lambda tensor: None), "rotation-missing", True),
    "MTP layer lost": (no_mtp, "mtp-absent", True),
}
