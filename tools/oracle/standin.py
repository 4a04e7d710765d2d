"""A folder that stands for the checkpoint that a command names: everything but the weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.errors import CheckpointError

_CONFIGS = Path(__file__).resolve().parents[2] / "tests" / "data" / "configs"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_TRUNK = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "indexer.wq_b")
_FLOAT = ("kv_b_proj", "indexer.wk", "indexer.weights_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


def stand_in(name: str, folder: Path) -> Path:
    """Write config, tokenizer and description for a model called ``name``; return its folder.

    The published config of GLM-5, 5.1, 5.2 or 5.3 and the quantisation are told by the name:
    ``GLM-5.2-w4a8c8`` has int4 experts and indexer keys in int8.

    Raises:
        CheckpointError: the name does not tell the model.
    """
    lowered = name.lower()
    found = re.search(r"glm-?5(\.[123])?(?![\d.])", lowered)
    if found is None or "flash" in lowered:
        raise CheckpointError(
            f"no folder {name}, and no published config that could stand for it",
            "give the checkpoint's folder with --model",
        )
    target = folder / Path(name).name
    if target.is_dir():
        return target
    target.mkdir(parents=True)
    version = found.group(1) or ""
    source = _CONFIGS / f"GLM-5{version}.json"
    config = json.loads(source.read_text(encoding="utf-8"))
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for file in _TOKENIZER:
        shutil.copyfile(SMALL_MODEL / file, target / file)
    scheme = re.search(r"w(4|8)a(4|8)(c8)?", lowered)
    if scheme is not None:
        described = _description(config, scheme.group(0), lowered)
        path = target / "quant_model_description.json"
        path.write_text(json.dumps(described), encoding="utf-8")
    return target


def _description(config: dict[str, Any], scheme: str, name: str) -> dict[str, object]:
    linear, experts = "W8A8_DYNAMIC", "W8A8_DYNAMIC"
    if scheme.startswith("w4a4"):
        linear, experts = "W8A8_MXFP8", "W4A4_MXFP4"
    elif scheme.startswith("w4"):
        experts = "W4A8_DYNAMIC"
    mx = linear == "W8A8_MXFP8" or "mx" in name
    described: dict[str, object] = {"version": "1.0.0", "group_size": 32 if mx else 0}
    described["model_quant_type"] = experts
    for layer in range(config["num_hidden_layers"] + config["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layer}."
        for module in _TRUNK:
            described[f"{prefix}self_attn.{module}.weight"] = linear
        for module in _FLOAT:
            described[f"{prefix}self_attn.{module}.weight"] = "FLOAT"
        if scheme.endswith("c8"):
            described[f"{prefix}self_attn.indexer.quant_type"] = "INT8_DYNAMIC"
        for module, kind in _mlp_modules(config, layer, linear, experts):
            described[f"{prefix}mlp.{module}.weight"] = kind
    for module in ("model.embed_tokens", "lm_head"):
        described[f"{module}.weight"] = "FLOAT"
    return described


def _mlp_modules(
    config: dict[str, Any], layer: int, linear: str, experts: str
) -> Iterator[tuple[str, str]]:
    if layer < config["first_k_dense_replace"]:
        yield from ((module, linear) for module in _MLP)
        return
    yield "gate", "FLOAT"
    yield from ((f"shared_experts.{module}", linear) for module in _MLP)
    for expert in range(config["n_routed_experts"]):
        yield from ((f"experts.{expert}.{module}", experts) for module in _MLP)
