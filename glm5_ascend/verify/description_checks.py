"""The description against model and tensors: which schemes, what is left out, what is too much."""

from __future__ import annotations

import re
from collections.abc import Mapping

from glm5_ascend.ascend_schemes import FLOAT, ROTATION, W4A8_DYNAMIC, W8A8, W8A8_DYNAMIC
from glm5_ascend.checkpoint_inventory import TensorSpec
from glm5_ascend.config import Glm5Config
from glm5_ascend.verify.folder import Folder
from glm5_ascend.verify.inventory import int4_layout, stored_scheme
from glm5_ascend.verify.layouts import (
    A5_SCHEMES,
    CHANNEL,
    EXPERT,
    GROUPS,
    LINEAR,
    UNPACKED,
    schemes_for,
)

QUANT_TYPE = ".indexer.quant_type"
_CACHE_TYPES = ("INT8_DYNAMIC", "W8A8_MXFP8")
# What the engine looks up under its own name while it builds the model.
_FUSED = re.compile(
    r".*\.(self_attn\.(q_a_proj|kv_a_proj_with_mqa)|mlp\.(shared_experts\.)?(gate|up)_proj"
    r"|mlp\.experts\.0\.(gate|up|down)_proj)\.weight"
)
_SINGLE = re.compile(
    r"model\.embed_tokens\.weight|lm_head\.weight|.*\.(embed_tokens|shared_head\.head"
    r"|self_attn\.(q_b_proj|o_proj|kv_b_proj|indexer\.wq_b)|mlp\.(shared_experts\.)?down_proj)\.weight"
)
_GROUPS = (
    (re.compile(r"(.*\.self_attn)\.(?:q_a_proj|kv_a_proj_with_mqa)\.weight"), "{} q_a and kv_a"),
    (re.compile(r"(.*\.mlp\.experts)\.\d+\.(?:gate|up|down)_proj\.weight"), "{}"),
    (re.compile(r"(.*\.mlp(?:\.shared_experts)?)\.(?:gate|up)_proj\.weight"), "{} gate and up"),
)


def resolve_schemes(
    folder: Folder, config: Glm5Config, model: Mapping[str, TensorSpec]
) -> dict[str, str | None]:
    """Scheme of every tensor of the model; what the engine would stumble over becomes a condition.

    A weight without description gets the scheme of its tensors, one with a scheme that is not
    looked into gets None.
    """
    absent = _undescribed_mtp(folder, config, model)
    schemes: dict[str, str | None] = {}
    for name in model:
        scheme = folder.scheme(name)
        if scheme is None:
            schemes[name] = stored_scheme(folder, name)
            if name not in absent:
                _note_undescribed(folder, name, schemes[name] or FLOAT)
            continue
        schemes[name] = _usable(folder, name, scheme)
    return schemes


def check_description(
    folder: Folder, config: Glm5Config, schemes: Mapping[str, str | None], known: set[str]
) -> None:
    """Keys, fused layers, mixtures, and both directions of description against tensors."""
    _check_fused(folder, schemes)
    _check_int4_keys(folder, schemes)
    _check_attention(folder, config, schemes)
    _check_cache_marks(folder, config)
    absent = {c.subject for c in folder.conditions if c.rule == "mtp-undescribed"}
    for name, scheme in schemes.items():
        _check_parts(folder, name, scheme, known, skip=name in absent)
    for key in folder.description or {}:
        if "." not in key or key.endswith(QUANT_TYPE) or key in known or key in folder.tensors:
            continue
        if not key.endswith(".weight_offset"):
            folder.note("described-unknown", key)


def _undescribed_mtp(
    folder: Folder, config: Glm5Config, model: Mapping[str, TensorSpec]
) -> set[str]:
    """Names of MTP layers of which nothing is described; one condition for each layer's tensors."""
    absent: set[str] = set()
    for layer in range(config.num_hidden_layers, config.layer_count):
        prefix = f"model.layers.{layer}."
        names = [name for name in model if name.startswith(prefix)]
        if names and all(folder.scheme(name) is None for name in names):
            absent.update(names)
    for name in sorted(absent):
        folder.note("mtp-undescribed", name)
    return absent


def _note_undescribed(folder: Folder, name: str, scheme: str) -> None:
    if name not in folder.tensors:
        return
    if _FUSED.fullmatch(name):
        folder.note("undescribed-fused", name)
    elif _SINGLE.fullmatch(name):
        folder.note("undescribed-linear" if scheme == FLOAT else "undescribed-int8", name)
    else:
        folder.note("undescribed-other", name)


def _usable(folder: Folder, name: str, scheme: str) -> str | None:
    if scheme in schemes_for(name):
        return scheme
    told = f"has {scheme}"
    if not (EXPERT.fullmatch(name) or LINEAR.fullmatch(name)):
        folder.note("scheme-float-only", name, told)
    elif scheme in A5_SCHEMES:
        folder.note("scheme-a5", name, told)
    elif scheme == W4A8_DYNAMIC:
        folder.note("scheme-int4-linear", name, told)
    else:
        folder.note("scheme-unknown", name, told)
    return None


def _check_fused(folder: Folder, schemes: Mapping[str, str | None]) -> None:
    first: dict[str, str] = {}
    for name, scheme in schemes.items():
        for pattern, key in _GROUPS:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            other = first.setdefault(key.format(match[1]), name)
            if schemes[other] != scheme:
                folder.note("fused-mixed", name, f"has {scheme}, but {other} has {schemes[other]}")
            break


def _check_int4_keys(folder: Folder, schemes: Mapping[str, str | None]) -> None:
    if W4A8_DYNAMIC not in schemes.values():
        return
    layout, _ = int4_layout(folder, schemes)
    if layout == GROUPS:
        folder.note("int4-groups", f"group_size {folder.setting('group_size')}")
    elif layout == UNPACKED:
        folder.note("int4-version-0", "version", "is 0 or absent, and there is no scale_bias")
    if layout != UNPACKED and folder.setting("version") != "1.0.0":
        folder.note("version-key", "version", f"is {folder.setting('version')!r}")
    size = folder.setting("group_size")
    if layout != CHANNEL:
        return
    if size is None:
        folder.note("group-size-missing", "group_size")
    elif size != 0 or isinstance(size, bool):
        folder.note("group-size", "group_size", f"is {size!r}")


def _check_attention(folder: Folder, config: Glm5Config, schemes: Mapping[str, str | None]) -> None:
    is_static = False
    for layer in range(config.layer_count):
        attention = f"model.layers.{layer}.self_attn."
        down, up, index = (
            schemes.get(f"{attention}{part}.weight")
            for part in ("q_a_proj", "q_b_proj", "indexer.wq_b")
        )
        if down not in (W8A8, W8A8_DYNAMIC):
            continue
        is_static |= down == W8A8 and up == W8A8
        if up == FLOAT:
            folder.note("query-up-float", f"{attention}q_b_proj.weight")
        elif up != down and up is not None:
            folder.note("trunk-mixed", f"{attention}q_b_proj.weight", f"has {up}, q_a has {down}")
        if index == FLOAT and down == W8A8_DYNAMIC:
            folder.note("index-query-float", f"{attention}indexer.wq_b.weight")
        if down == W8A8:
            _check_shared_input(folder, attention)
    if is_static and not any("norm.bias" in key for key in folder.description or {}):
        folder.note("static-norm-bias", "quant_model_description.json")


def _check_shared_input(folder: Folder, attention: str) -> None:
    for part in ("input_scale", "input_offset"):
        query, latent = (
            f"{attention}{module}.{part}" for module in ("q_a_proj", "kv_a_proj_with_mqa")
        )
        if query in folder.tensors and latent in folder.tensors:
            if folder.spec(query).dtype != folder.spec(latent).dtype:
                folder.note("dtype", query, f"differs from that of {latent}")
            elif folder.bytes_of(query) != folder.bytes_of(latent):
                folder.note("shared-input", query, f"differs from {latent}")


def _check_cache_marks(folder: Folder, config: Glm5Config) -> None:
    for key, value in (folder.description or {}).items():
        if not key.endswith(QUANT_TYPE):
            continue
        words = key.split(".")
        layer = int(words[2]) if len(words) > 2 and words[2].isdecimal() else -1
        if not 0 <= layer < config.layer_count or not config.has_indexer(layer):
            folder.note("cache-mark", key, "is on a layer without an indexer")
        elif value not in _CACHE_TYPES:
            folder.note("cache-mark", key, f"is {value!r}")
    announced = folder.setting("indexer_quant_type")
    if announced is not None and not any(
        name.endswith(".indexer.q_rot") for name in folder.tensors
    ):
        folder.note("cache-rotations", "indexer_quant_type", f"is {announced!r}")


def _check_parts(
    folder: Folder, name: str, scheme: str | None, known: set[str], *, skip: bool
) -> None:
    """Auxiliary tensors of a weight: described, and with the weight's scheme."""
    if scheme in (None, FLOAT) or skip or folder.scheme(name) is None:
        return
    module = name.removesuffix("weight")
    for suffix in _AUXILIARY:
        part = module + suffix
        if part not in folder.tensors or part not in known or part == ROTATION:
            continue
        given = folder.scheme(part)
        if given is None:
            folder.note("undescribed-other", part)
        elif given != scheme:
            folder.note("description-part", part, f"has {given}, its weight {scheme}")


_AUXILIARY = (
    "weight_scale",
    "weight_offset",
    "scale_bias",
    "weight_scale_second",
    "weight_offset_second",
    "input_scale",
    "input_offset",
    "quant_bias",
    "deq_scale",
)
