"""Damages of a good checkpoint: what an engine may refuse, load in silence, or not mind.

The names are those of the table in ``tests/core/test_verify_rules.py``, where the same is done to
headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from tools.oracle.sample import MTP, Sample

Change = Callable[[Sample], None]

_L1 = "model.layers.1."
_ATT = f"{_L1}self_attn."
_GATE, _DOWN = f"{_L1}mlp.experts.0.gate_proj", f"{_L1}mlp.experts.2.down_proj"
_TRUNK = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj", "indexer.wq_b")
_FULL, _LAYERS = (0, 1, 2, 4), range(5)
_INT4 = "W4A8_DYNAMIC"


def _describe(**keys: object) -> Change:
    return lambda made: made.description.update(keys)


def _forget(*prefixes: str) -> Change:
    return lambda made: made.forget(*prefixes)


def _drop(*prefixes: str) -> Change:
    return lambda made: made.drop(*prefixes)


def _configure(**keys: object) -> Change:
    return lambda made: made.config.update(keys)


def _without(*keys: str) -> Change:
    def change(made: Sample) -> None:
        for key in keys:
            del made.config[key]

    return change


def _replace(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda made: made.put(name, make(made.tensors[name]), made.description[name])


def _all(*changes: Change) -> Change:
    def change(made: Sample) -> None:
        for one in changes:
            one(made)

    return change


def static_trunk(made: Sample) -> None:
    """Every linear of attention and indexer static W8A8, as MLAPO wants it."""
    for layer in _LAYERS:
        for module in _TRUNK:
            if module != "indexer.wq_b" or layer in _FULL:
                made.put_static(f"model.layers.{layer}.self_attn.{module}")


def _static_without(part: str) -> Change:
    return _all(static_trunk, _drop(f"{_ATT}o_proj.{part}"))


def _input_scales(made: Sample) -> None:
    static_trunk(made)
    made.put_static(f"{_ATT}q_a_proj", input_scale=1.0)


def _float(module: str, layers: tuple[int, ...]) -> Change:
    def change(made: Sample) -> None:
        for layer in layers:
            made.put_float(f"model.layers.{layer}.self_attn.{module}")

    return change


def _float_expert(made: Sample) -> None:
    packed, columns = made.shape(_DOWN)
    made.drop(f"{_DOWN}.")
    made.put(f"{_DOWN}.weight", torch.ones(2 * packed, columns, dtype=torch.bfloat16), "FLOAT")


def _int4_linear(made: Sample) -> None:
    rows, columns = made.shape(f"{_ATT}o_proj")
    made.drop(f"{_ATT}o_proj.")
    values = {
        "weight": torch.ones(rows // 2, columns, dtype=torch.int8),
        "weight_scale": torch.ones(rows, 1),
        "weight_offset": torch.zeros(rows, 1),
        "scale_bias": torch.zeros(rows, 16),
    }
    for part, value in values.items():
        made.put(f"{_ATT}o_proj.{part}", value, _INT4)


def _offsets(made: Sample) -> None:
    made.drop(*[name for name in made.tensors if name.endswith("weight_offset")])


def _foreign_index(made: Sample) -> None:
    weight_map = dict.fromkeys(made.tensors, "model-00001-of-00282.safetensors")
    made.extra["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map})


def _schedule_written(made: Sample) -> None:
    """The three keys of GLM-5.2 in the configuration of a model with an indexer in every layer."""
    made.config.update(index_topk_freq=2)


def _second_scale(made: Sample) -> None:
    made.put(f"{_GATE}.weight_scale_second", torch.ones(16, 1), _INT4)


MUTATIONS: dict[str, Change] = {
    "q_a static, kv_a dynamic": lambda made: made.put_static(f"{_ATT}q_a_proj"),
    "kv_a not described": _forget(f"{_ATT}kv_a_proj_with_mqa"),
    "o_proj not described, int8 and scale": _forget(f"{_ATT}o_proj"),
    "o_proj not described, int8 only": _all(_drop(f"{_ATT}o_proj.weight_"), _forget(f"{_ATT}o_")),
    "wk int8": lambda made: made.put_int8(f"{_ATT}indexer.wk"),
    "kv_b int8": lambda made: made.put_int8(f"{_ATT}kv_b_proj"),
    "q_b float": _float("q_b_proj", tuple(_LAYERS)),
    "router int8": lambda made: made.put_int8(f"{_L1}mlp.gate"),
    "unknown scheme": _describe(**{f"{_ATT}o_proj.weight": "W3A3"}),
    "int4 linear": _int4_linear,
    "one float expert": _float_expert,
    "down scale_bias in one column": _replace(f"{_DOWN}.scale_bias", lambda t: t[:, :1]),
    "one scale_bias missing": _drop(f"{_GATE}.scale_bias"),
    "one weight_scale missing": _drop(f"{_GATE}.weight_scale"),
    "static deq_scale missing": _static_without("deq_scale"),
    "static quant_bias missing": _static_without("quant_bias"),
    "static input_scale missing": _static_without("input_scale"),
    "unpacked int4": _replace(f"{_GATE}.weight", lambda t: torch.cat([t, t])),
    "int4 packed along in": _replace(f"{_GATE}.weight", lambda t: t.reshape(len(t) * 2, -1)),
    "1-D scale": _replace(f"{_GATE}.weight_scale", lambda t: t[:, 0]),
    "extra scale_second": _second_scale,
    "group_size 256": _describe(group_size=256),
    "group_size missing": _forget("group_size"),
    "version missing": _forget("version"),
    "no weight_offset anywhere": _offsets,
    "MTP not described": _forget(MTP),
    "MTP without embedding and head": _drop(f"{MTP}embed_tokens", f"{MTP}shared_head.head"),
    "is_rot_used without rot.weight": lambda made: made.lose("rot.weight"),
    "indexer absent, no index fields": _without("index_topk_freq", "index_skip_topk_offset"),
    "indexer absent, no indexer_types": _without("indexer_types"),
    "different input scales": _input_scales,
    # Beyond that table.
    "static trunk": static_trunk,
    "static trunk without a norm.bias key": _all(
        static_trunk,
        lambda made: made.forget(*[n for n in made.description if n.endswith("norm.bias")]),
    ),
    "wq_b float": _float("indexer.wq_b", _FULL),
    "kv_b not described": _forget(f"{_ATT}kv_b_proj"),
    "o_proj absent": _drop(f"{_ATT}o_proj."),
    "index of the BF16 release": _foreign_index,
    "quantization_config fp8": _configure(
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}
    ),
    "indexer_quant_type INT8_DYNAMIC": _describe(indexer_quant_type="INT8_DYNAMIC"),
    "head_dim of neither rope nor nope": _configure(head_dim=80),
}
# Needs a model with an indexer in every layer.
MUTATIONS_51: dict[str, Change] = {"index_topk_freq 2 in config.json": _schedule_written}
