"""The tensors that a quantised checkpoint for vllm-ascend must hold, from its description.

vllm-ascend's loader leaves what is missing uninitialised and copies int8 into float parameters
without a word, so everything it needs is demanded here: names both ways, shapes, dtypes, schemes
that the engine can run, and the modules that it reads as float only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from glm5_ascend.ascend_schemes import (
    FLOAT,
    FLOAT_BYTES_ALSO,
    ROTATION,
    W4A8_DYNAMIC,
    W8A8,
    optional_tensors,
    required_tensors,
    schemes_for,
)
from glm5_ascend.checkpoint import CheckpointReader, TensorSpec, expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.description_file import DescriptionFile
from glm5_ascend.errors import CheckpointError

__all__ = ["check_ascend_inventory"]

_HINT = "quantise the checkpoint again, or copy all of its files again"
# Matrices that the engine fuses into one; it can hold them in one scheme only.
_FUSED = (
    (re.compile(r"(.*\.self_attn)\.(?:q_a_proj|kv_a_proj_with_mqa)\.weight"), "{}.fused_qkv_a"),
    (re.compile(r"(.*\.mlp\.experts)\.\d+\.(?:gate|up|down)_proj\.weight"), "{}"),
    (re.compile(r"(.*\.mlp(?:\.shared_experts)?)\.(?:gate|up)_proj\.weight"), "{}.gate_up"),
)


def check_ascend_inventory(
    reader: CheckpointReader, description: DescriptionFile
) -> dict[str, str]:
    """Compare files, description and configuration of a quantised checkpoint; no weights are read.

    Args:
        reader: the checkpoint.
        description: its ``quant_model_description.json``.

    Returns:
        Scheme of every weight and bias of the model, in model order.

    Raises:
        CheckpointError: the first difference; the message names tensor and file.
    """
    config = reader.config
    if config.fp8 is not None:
        raise CheckpointError(
            f"{reader.directory / 'config.json'} still declares FP8 weights beside {description}",
            "remove quantization_config: an engine would take the int8 weights for FP8",
        )
    model = _model_tensors(config)
    schemes = _schemes(model, description)
    _check_fused(schemes, description)
    expected = _expected(model, reader, description, schemes)
    described = set(expected) - {ROTATION}
    for name in expected:
        if name in described and name not in description.tensors:
            raise CheckpointError(f"{description} does not describe tensor {name}", _HINT)
    for name in description.tensors:
        if name not in described and (name, description.tensors[name]) != (ROTATION, FLOAT):
            where = "which the model does not have"
            if name not in reader:
                where = "but no file of the checkpoint holds it and " + where
            raise CheckpointError(f"{description} describes tensor {name}, {where}", _HINT)
    reader.check_inventory(expected, FLOAT_BYTES_ALSO)
    _check_shared_inputs(reader, schemes)
    return schemes


def _schemes(model: Mapping[str, TensorSpec], description: DescriptionFile) -> dict[str, str]:
    schemes: dict[str, str] = {}
    for name in model:
        scheme = description.tensors.get(name)
        if scheme is None:
            raise CheckpointError(f"{description} does not describe tensor {name}", _HINT)
        known = schemes_for(name)
        if scheme not in known:
            only = "FLOAT only" if known == (FLOAT,) else " or ".join(known)
            raise CheckpointError(
                f"{description} gives {name} the scheme {scheme}; this tensor can be {only}", _HINT
            )
        schemes[name] = scheme
    if W4A8_DYNAMIC in schemes.values():
        description.require("version", "1.0.0", "packed int4")
        description.require("group_size", 0, "int4 with one scale per channel")
    return schemes


def _model_tensors(config: Glm5Config) -> dict[str, TensorSpec]:
    """Tensors of the model before quantisation, and the MTP layers' own embedding and head."""
    tensors = expected_tensors(config)
    vocabulary = tensors["lm_head.weight"]
    for layer in range(config.num_hidden_layers, config.layer_count):
        for copy in ("embed_tokens", "shared_head.head"):
            tensors[f"model.layers.{layer}.{copy}.weight"] = vocabulary
    return tensors


def _check_fused(schemes: Mapping[str, str], description: DescriptionFile) -> None:
    first: dict[str, str] = {}
    for name, scheme in schemes.items():
        for pattern, key in _FUSED:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            other = first.setdefault(key.format(match[1]), name)
            if schemes[other] != scheme:
                raise CheckpointError(
                    f"{description} gives {name} the scheme {scheme}, but {other} the scheme"
                    f" {schemes[other]}; the engine fuses the two",
                    _HINT,
                )
            break


def _expected(
    model: Mapping[str, TensorSpec],
    reader: CheckpointReader,
    description: DescriptionFile,
    schemes: Mapping[str, str],
) -> dict[str, TensorSpec]:
    expected: dict[str, TensorSpec] = {}
    for name, spec in model.items():
        scheme = schemes[name]
        tensors = required_tensors(name, spec, scheme)
        for extra, extra_spec in optional_tensors(name, spec, scheme).items():
            if extra in reader or extra in description.tensors:
                tensors[extra] = extra_spec
        for stored in tensors:
            given = description.tensors.get(stored, scheme)
            if given != scheme:
                raise CheckpointError(
                    f"{description} gives {stored} the scheme {given}, but {name} the scheme"
                    f" {scheme}",
                    _HINT,
                )
        expected |= tensors
    for name in list(_scalars(expected)):
        # One number may be stored without an axis, and the offset as the float that other tools
        # write; the engine converts both.
        if name in reader:
            held = reader.spec(name)
            integer = expected[name].dtype == "I8" and held.dtype != "F32"
            expected[name] = TensorSpec(
                () if held.shape == () else (1,), "I8" if integer else "BF16"
            )
    if description.rotated:
        norm = model["model.norm.weight"]
        expected[ROTATION] = TensorSpec(norm.shape * 2, norm.dtype)
    return expected


def _scalars(expected: Mapping[str, TensorSpec]) -> Iterator[str]:
    yield from (name for name in expected if name.endswith((".input_scale", ".input_offset")))


def _check_shared_inputs(reader: CheckpointReader, schemes: Mapping[str, str]) -> None:
    """The fused static q_a and kv_a have one input: the loader keeps the last scale it reads."""
    for name, scheme in schemes.items():
        if scheme != W8A8 or not name.endswith(".q_a_proj.weight"):
            continue
        for part in ("input_scale", "input_offset"):
            query = f"{name.removesuffix('weight')}{part}"
            latent = query.replace("q_a_proj", "kv_a_proj_with_mqa")
            if reader.raw(query) != reader.raw(latent):
                raise CheckpointError(
                    f"{reader.file_of(query)}: tensor {query} differs from {latent}, but the"
                    " engine has one for both",
                    _HINT,
                )
