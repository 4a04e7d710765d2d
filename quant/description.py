"""The text files of an output: quantisation description, configuration and weight index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from glm5_ascend.config import read_json_object
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.quant import compressed_tensors
from glm5_ascend.quant.files import names_in, read_bytes
from glm5_ascend.quant.plan import ROT_FILE, Plan
from glm5_ascend.quant.recipe import Action
from glm5_ascend.quant.scheme import Scheme

DESCRIPTION = DESCRIPTION_FILE
# Besides config.json. An index of the source is never among them: an engine that finds one
# looks for the source's files.
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "NOTICE",
)
# The first that occurs names the model's type.
_MODEL_TYPES = (Scheme.W4A8_DYNAMIC, Scheme.W8A8_DYNAMIC, Scheme.W8A8, Scheme.FLOAT)


def description(plan: Plan) -> dict[str, object]:
    """Every tensor name to its scheme, plus the keys vllm-ascend reads.

    ``version`` 1.0.0 and ``group_size`` 0 mean packed int4 with per-channel scales; releases up to
    0.26 assume something else where they are missing. ``rot.weight`` belongs to no module and is
    announced by ``is_rot_used`` instead.
    """
    names = {
        name: step.scheme.value
        for shard in plan.shards
        if shard.file != ROT_FILE
        for step in shard.steps
        for name in step.stored
    }
    return {
        **names,
        **_cache_marks(plan),
        "version": "1.0.0",
        "group_size": 0,
        "model_quant_type": _model_type(plan),
        "is_rot_used": plan.recipe.rotate,
        "metadata": {},
        "optional": {},
    }


def _cache_marks(plan: Plan) -> dict[str, str]:
    """The layers whose indexer keys may be cached in int8; every other keeps bfloat16.

    A top-level ``indexer_quant_type`` would announce tensors that nothing needs.
    """
    if plan.recipe.kv == "none":
        return {}
    suffix = ".wq_b.weight"
    owners = (
        step.name.removesuffix(suffix)
        for shard in plan.shards
        for step in shard.steps
        if step.name.endswith(f".indexer{suffix}")
    )
    return {
        f"{owner}.quant_type": "INT8_DYNAMIC"
        for owner in owners
        if int(owner.split(".")[2]) not in plan.recipe.kv_except
    }


def _model_type(plan: Plan) -> str:
    schemes = {step.scheme for shard in plan.shards for step in shard.steps}
    return next(scheme.value for scheme in _MODEL_TYPES if scheme in schemes)


def output_config(source: Mapping[str, object], plan: Plan) -> dict[str, object]:
    """The source's ``config.json`` without its quantisation, in the output's float dtype.

    A left-over ``quantization_config`` outranks the description and would load int8 as FP8.
    """
    result = {key: value for key, value in source.items() if key != "quantization_config"}
    result.pop("torch_dtype", None)
    result["dtype"] = plan.recipe.dtype
    if plan.recipe.format == compressed_tensors.NAME and not plan.recipe.is_float:
        schemes = {
            step.name: step.scheme
            for shard in plan.shards
            for step in shard.steps
            if step.action is Action.MATRIX
        }
        result["quantization_config"] = compressed_tensors.quantization_config(schemes)
    return result


def weight_index(plan: Plan) -> dict[str, object]:
    """The index of the output's own files."""
    return {"metadata": {"total_size": plan.nbytes}, "weight_map": plan.weight_map()}


def index_name(plan: Plan) -> str:
    """File name of the index: engines filter by ``model.safetensors.index.json`` if it exists."""
    stem = (
        "model" if plan.recipe.is_float or plan.recipe.format != "ascend" else "quant_model_weights"
    )
    return f"{stem}.safetensors.index.json"


def companions(source: Path) -> dict[str, bytes]:
    """Content of the files to copy unchanged, by name.

    Raises:
        CheckpointError: one of them is there but cannot be read.
    """
    present = names_in(source, "give a directory that you may read")
    hint = "make this file readable, or remove it if the output does not need it"
    return {name: read_bytes(source / name, hint) for name in COPIED if name in present}


def text_files(source: Path, plan: Plan, copied: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every file beside the weights, in the order of writing (journal and manifest apart)."""
    config = output_config(read_json_object(source / "config.json"), plan)
    described = {DESCRIPTION: _as_json(description(plan))} if plan.is_ascend else {}
    return {
        **copied,
        **described,
        "config.json": _as_json(config),
        index_name(plan): _as_json(weight_index(plan)),
    }


def _as_json(document: Mapping[str, object]) -> bytes:
    """JSON with two spaces, as the published files have it.

    A lone surrogate has no UTF-8; its backslash escape is also the one of JSON.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")
