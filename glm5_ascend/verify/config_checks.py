"""Traps in ``config.json``, found by comparing it with the tensors that are stored."""

from __future__ import annotations

import re
from dataclasses import replace

from glm5_ascend.config import Glm5Config
from glm5_ascend.config_schedule import FULL, SHARED
from glm5_ascend.errors import ConfigError
from glm5_ascend.verify.folder import Folder, parse_config

SCHEDULE_KEYS = (
    "index_topk_freq",
    "index_skip_topk_offset",
    "index_topk_pattern",
    "indexer_types",
)
# Of GLM-5.2 and 5.3.
FREQUENCY, OFFSET = 4, 3
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_INDEXER = re.compile(r"model\.layers\.(\d+)\.self_attn\.indexer\.")


def resolve_config(folder: Folder) -> Glm5Config | None:
    """The configuration that the stored tensors are of; None if there is none to be had.

    Where ``config.json`` contradicts the tensors in a way that is known, the contradiction becomes
    a condition and the tensors win, so that what follows is compared with what was meant.
    """
    raw = dict(folder.raw_config)
    _strip_quantization(folder, raw)
    try:
        config = parse_config(folder, raw)
    except ConfigError as error:
        recovered = _without_schedule(folder, raw)
        if recovered is None:
            folder.note("config-invalid", "config.json", f"({error.message})")
            return None
        folder.note("config-schedule", "config.json", f"({error.message})")
        return _with_mtp(folder, recovered)
    _check_old_keys(folder, config)
    return _with_mtp(folder, _with_stored_indexers(folder, config))


def _check_old_keys(folder: Folder, config: Glm5Config) -> None:
    """Keys that newer engines do without or ignore."""
    widths = (None, config.qk_rope_head_dim, config.qk_nope_head_dim)
    head = folder.raw_config.get("head_dim")
    if head not in widths:
        folder.note("config-head-dim", "config.json", f"(head_dim {head})")
    shares = SHARED in stored_schedule(folder, config.num_hidden_layers)
    is_given = folder.raw_config.get("indexer_types") is not None
    if shares and SHARED in config.indexer_types and not is_given:
        folder.note("config-indexer-types", "config.json")


def published_schedule(layers: int) -> tuple[str, ...]:
    """``full`` or ``shared`` per layer of GLM-5.2 and 5.3."""
    return tuple(
        FULL if max(layer - OFFSET + 1, 0) % FREQUENCY == 0 else SHARED for layer in range(layers)
    )


def stored_schedule(folder: Folder, layers: int) -> tuple[str, ...]:
    """``full`` for each decoder layer that has tensors of an indexer."""
    owners = {int(match[1]) for name in folder.tensors if (match := _INDEXER.match(name))}
    return tuple(FULL if layer in owners else SHARED for layer in range(layers))


def _strip_quantization(folder: Folder, raw: dict[str, object]) -> None:
    quant = raw.get("quantization_config")
    if folder.description is None or quant is None:
        return
    method = quant.get("quant_method") if isinstance(quant, dict) else None
    if method == "ascend":
        return
    rule = "config-quantization" if method == "fp8" else "config-compressed-tensors"
    folder.note(rule, "config.json", f"(quant_method {method})")
    del raw["quantization_config"]


def _without_schedule(folder: Folder, raw: dict[str, object]) -> Glm5Config | None:
    """The configuration with the tensors' schedule, if the schedule's keys are at fault."""
    rest = {key: value for key, value in raw.items() if key not in SCHEDULE_KEYS}
    try:
        config = parse_config(folder, rest)
    except ConfigError:
        return None
    stored = stored_schedule(folder, config.num_hidden_layers)
    known = (published_schedule(len(stored)), (FULL,) * len(stored))
    return replace(config, indexer_types=stored) if stored in known else None


def _with_stored_indexers(folder: Folder, config: Glm5Config) -> Glm5Config:
    stored = stored_schedule(folder, config.num_hidden_layers)
    layers = range(config.num_hidden_layers)
    if stored == config.indexer_types:
        return config
    if SHARED in stored and stored == published_schedule(len(stored)):
        differ = [i for i in layers if stored[i] != config.indexer_types[i]]
        detail = f"has another schedule than the stored indexers, first at layer {differ[0]}"
        folder.note("config-schedule", "config.json", detail)
        return replace(config, indexer_types=stored)
    unused = [i for i in layers if not config.has_indexer(i) and stored[i] == FULL]
    for layer in unused:
        folder.note("indexer-unused", f"model.layers.{layer}.self_attn.indexer")
    kinds = tuple(FULL if i in unused else kind for i, kind in enumerate(config.indexer_types))
    return replace(config, indexer_types=kinds)


def _with_mtp(folder: Folder, config: Glm5Config) -> Glm5Config:
    first = config.num_hidden_layers
    layers = {int(match[1]) for name in folder.tensors if (match := _LAYER.match(name))}
    is_stored = first in layers
    if config.num_nextn_predict_layers == 0 and is_stored:
        folder.note("config-mtp", "config.json", f"(layer {first} is stored)")
        return replace(config, num_nextn_predict_layers=1)
    if config.num_nextn_predict_layers and not is_stored:
        folder.note("mtp-absent", f"model.layers.{first}")
        return replace(config, num_nextn_predict_layers=0)
    return config
