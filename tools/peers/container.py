"""Put another tool's checkpoint into the container that the offline model reads; values stay.

compressed-tensors keeps int4 codes one per byte, scales in BF16 and the schemes in ``config.json``.
Here codes are packed, scales widened to F32, and ``scale_bias``, which follows from both, is added.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glm5_ascend.ascend_schemes import FLOAT, W4A8_DYNAMIC, W8A8_DYNAMIC
from glm5_ascend.config import read_json_object
from glm5_ascend.errors import CheckpointError
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.quant.packing import offset_bias, pack_rows
from glm5_ascend.quant.verify_values import Values, read_codes
from glm5_ascend.verify.folder import read_folder

_SCHEMES = {4: W4A8_DYNAMIC, 8: W8A8_DYNAMIC}


def from_compressed_tensors(source: Path, target: Path) -> Path:
    """Rewrite a compressed-tensors checkpoint of int codes; returns ``target``.

    A missing MTP layer becomes ``num_nextn_predict_layers`` 0.

    Raises:
        CheckpointError: another compression, or values that did not survive.
    """
    target.mkdir(parents=True)
    config = read_json_object(source / "config.json")
    tensors = _tensors(source)
    mtp = f"model.layers.{config['num_hidden_layers']}."
    if not any(name.startswith(mtp) for name in tensors):
        config["num_nextn_predict_layers"] = 0
    bits = _widths(config.pop("quantization_config"))
    written: dict[str, Tensor] = {}
    description: dict[str, object] = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight_scale"):
            continue
        module = name.removesuffix(".weight")
        stored = {name: tensor}
        scheme = FLOAT
        if tensor.dtype == torch.int8:
            width = next(width for pattern, width in bits if pattern.match(module))
            scheme = _SCHEMES[width]
            stored = _channel(module, tensor, tensors[f"{module}.weight_scale"], width)
        written |= stored
        description |= dict.fromkeys(stored, scheme)
    save_file(written, target / "model.safetensors")
    settings = {"version": "1.0.0", "group_size": 0, "is_rot_used": False}
    (target / DESCRIPTION_FILE).write_text(json.dumps(description | settings))
    (target / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "tokenizer.json", target)
    _require_same_values(tensors, target)
    return target


def weights(directory: Path) -> dict[str, str]:
    """Scheme of every matrix of a checkpoint, by name."""
    folder = read_folder(directory)
    return {
        name: folder.scheme(name) or FLOAT
        for name, tensor in folder.tensors.items()
        if name.endswith(".weight") and len(tensor.spec.shape) == 2
    }


def _tensors(source: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def _widths(document: Any) -> list[tuple[re.Pattern[str], int]]:
    found = []
    for group in document["config_groups"].values():
        weights = group["weights"]
        if weights["strategy"] != "channel" or weights["num_bits"] not in _SCHEMES:
            raise CheckpointError(
                f"{weights['num_bits']} bits per {weights['strategy']} is no scheme of the NPU",
                "compare 4 and 8 bits per channel",
            )
        for target in group["targets"]:
            found.append((re.compile(target.removeprefix("re:")), int(weights["num_bits"])))
    return found


def _channel(module: str, codes: Tensor, scale: Tensor, width: int) -> dict[str, Tensor]:
    wide = scale.float().reshape(-1, 1)
    stored = {f"{module}.weight_scale": wide, f"{module}.weight": codes}
    if width == 4:
        is_down = module.endswith(".down_proj")
        stored[f"{module}.weight"] = pack_rows(codes)
        stored[f"{module}.scale_bias"] = offset_bias(codes, wide, is_down=is_down)
    return stored


def _require_same_values(tensors: Mapping[str, Tensor], target: Path) -> None:
    """Dequantise both: codes times scale as the other tool stores them, and as read here."""
    for name in _differences(tensors, target):
        raise CheckpointError(f"{name} changed its value in another container", "report this")


def _differences(tensors: Mapping[str, Tensor], target: Path) -> Iterator[str]:
    values, schemes = Values(read_folder(target)), weights(target)
    for name, tensor in tensors.items():
        if name.endswith(".weight_scale"):
            continue
        found = values.tensor(name) if name in values else None
        if tensor.dtype == torch.int8:
            scale = tensors[f"{name.removesuffix('.weight')}.weight_scale"]
            tensor = tensor.double() * scale.double().reshape(-1, 1)
            pair = read_codes(values, name, schemes[name])
            found = None if pair is None else pair.dequantised()
        if found is None or found.dtype != tensor.dtype or not torch.equal(found, tensor):
            yield name
