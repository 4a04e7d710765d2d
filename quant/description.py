"""The text files of an output: quantisation description, configuration and weight index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from glm5_ascend.quant.plan import ROT_FILE, Plan
from glm5_ascend.quant.scheme import Scheme

DESCRIPTION = "quant_model_description.json"
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
_MODEL_TYPE = {
    "none": Scheme.FLOAT,
    "w8a8": Scheme.W8A8_DYNAMIC,
    "w4a8": Scheme.W4A8_DYNAMIC,
}


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
        "version": "1.0.0",
        "group_size": 0,
        "model_quant_type": _MODEL_TYPE[plan.choices.scheme].value,
        "is_rot_used": plan.choices.rotate,
        "metadata": {},
        "optional": {},
    }


def output_config(source: Mapping[str, object], plan: Plan) -> dict[str, object]:
    """The source's ``config.json`` without its quantisation, in the output's float dtype.

    A left-over ``quantization_config`` outranks the description and would load int8 as FP8.
    """
    result = {key: value for key, value in source.items() if key != "quantization_config"}
    result.pop("torch_dtype", None)
    result["dtype"] = plan.choices.dtype
    return result


def weight_index(plan: Plan) -> dict[str, object]:
    """The index of the output's own files."""
    return {"metadata": {"total_size": plan.nbytes}, "weight_map": plan.weight_map()}


def index_name(plan: Plan) -> str:
    """File name of the index: engines filter by ``model.safetensors.index.json`` if it exists."""
    stem = "model" if plan.choices.scheme == "none" else "quant_model_weights"
    return f"{stem}.safetensors.index.json"


def copied_files(source: Path) -> list[str]:
    """Names of the files to copy unchanged."""
    return [name for name in COPIED if (source / name).is_file()]


def output_files(plan: Plan, source: Path) -> list[str]:
    """Every file that a run writes, in the order of writing (journal and manifest apart)."""
    texts = [DESCRIPTION] if plan.is_ascend else []
    return [
        *(shard.file for shard in plan.shards),
        *copied_files(source),
        *texts,
        "config.json",
        index_name(plan),
    ]


def as_text(document: Mapping[str, object]) -> str:
    """JSON with two spaces, as the published files have it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
