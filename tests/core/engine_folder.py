"""A small quantised checkpoint that loads everywhere, to be damaged one way at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.core import micro
from tests.core.ascend import Quantised

# Shared indexers as in GLM-5.2: layers 0, 1, 2 own one, 3 shares, 4 is the MTP layer.
SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "indexer_types": ["full", "full", "full", "shared"],
}
_LINEARS = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj", "wq_b")
_MATRICES = ("gate_proj", "up_proj", "down_proj")
MTP = "model.layers.4."


def good(**config: Any) -> Quantised:
    """W4A8: dynamic int8 trunk, int4 experts, an int8 MTP layer, rotated."""
    shape = SHAPE | config
    shape = {key: value for key, value in shape.items() if value is not None}
    made = Quantised(config=shape)
    last = shape["num_hidden_layers"]
    for name, (spec, _) in micro.tensors(micro.config(**shape)).items():
        module = name.removesuffix(".weight")
        kind = module.rpartition(".")[2]
        if ".experts." in name and not name.startswith(f"model.layers.{last}."):
            put_int4(made, module, spec.shape)
        elif kind in _LINEARS or kind in _MATRICES:
            put_int8(made, module, spec.shape)
        else:
            made.put(name, spec.shape, spec.dtype, "FLOAT")
    vocabulary = made.stored["lm_head.weight"][0].shape
    for copy in ("embed_tokens", "shared_head.head"):
        made.put(f"model.layers.{last}.{copy}.weight", vocabulary, "BF16", "FLOAT")
    made.put("rot.weight", (16, 16), "BF16", None)
    made.description |= {"version": "1.0.0", "group_size": 0, "is_rot_used": True}
    return made


def put_int4(made: Quantised, module: str, shape: tuple[int, ...]) -> None:
    """Tensors of W4A8_DYNAMIC for a weight [out, in]."""
    rows, columns = shape
    scheme = "W4A8_DYNAMIC"
    bias = 16 if module.endswith("down_proj") else 1
    made.put(f"{module}.weight", (rows // 2, columns), "I8", scheme)
    made.put(f"{module}.weight_scale", (rows, 1), "F32", scheme)
    made.put(f"{module}.scale_bias", (rows, bias), "F32", scheme)


def put_int8(made: Quantised, module: str, shape: tuple[int, ...]) -> None:
    """Tensors of W8A8_DYNAMIC for a weight [out, in]."""
    made.put(f"{module}.weight", shape, "I8", "W8A8_DYNAMIC")
    made.put(f"{module}.weight_scale", (shape[0], 1), "F32", "W8A8_DYNAMIC")
    made.put(f"{module}.weight_offset", (shape[0], 1), "F32", "W8A8_DYNAMIC")


def put_static(made: Quantised, module: str, shape: tuple[int, ...]) -> None:
    """Tensors of W8A8 for a weight [out, in], without what may be left out."""
    made.put(f"{module}.weight", shape, "I8", "W8A8")
    made.put(f"{module}.input_scale", (1,), "F32", "W8A8")
    made.put(f"{module}.input_offset", (1,), "F32", "W8A8")
    made.put(f"{module}.quant_bias", (shape[0],), "I32", "W8A8")
    made.put(f"{module}.deq_scale", (shape[0],), "F32", "W8A8")


def to_float(made: Quantised, module: str, shape: tuple[int, ...]) -> None:
    """Replace a quantised module by a float one."""
    drop_parts(made, module)
    made.put(f"{module}.weight", shape, "BF16", "FLOAT")


def drop_parts(made: Quantised, module: str) -> None:
    """Take everything of a module out of files and description."""
    for name in [n for n in made.stored if n.startswith(f"{module}.")]:
        made.drop(name)


def static_everywhere(made: Quantised) -> None:
    """Static W8A8 for every linear of attention and indexer, as msModelSlim writes it."""
    for name in list(made.stored):
        module = name.removesuffix(".weight")
        if module != name and module.rpartition(".")[2] in _LINEARS:
            shape = made.stored[name][0].shape
            drop_parts(made, module)
            put_static(made, module, shape)


def edit_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    document = json.loads(file.read_text())
    for key, value in changes.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = value
    file.write_text(json.dumps(document))
