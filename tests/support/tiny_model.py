"""Random tiny ``glm_moe_dsa`` checkpoints in the published layout, without glm5_ascend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.fp8 import FP8_KEPT, fp8_config, quantise_blocks
from tests.support.tiny_config import tiny_config
from tests.support.tiny_tensors import random_tensors
from tests.support.tiny_tokenizer import write_tokenizer

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def write_tiny(
    directory: Path,
    *,
    style: str = "5.2",
    seed: int = 0,
    dtype: str = "bfloat16",
    mtp: bool = True,
    shards: int = 1,
    index: bool = True,
    tokenizer: bool = False,
    fp8: bool = False,
    outlier_channels: int = 0,
    dead_expert: bool = False,
    **overrides: Any,
) -> Path:
    """Write a random checkpoint with ``config.json`` to ``directory`` and return the directory.

    Args:
        directory: created if absent.
        style: "5.2" (IndexShare, theta 8e6) or "5.1" (an indexer in every layer, theta 1e6).
        dtype: "bfloat16" or "float32" for all tensors but the correction bias.
        mtp: write the MTP layer (index ``num_hidden_layers``).
        shards: number of safetensors files; ``index`` adds ``model.safetensors.index.json``.
        tokenizer: also write a byte-level tokenizer with GLM's special tokens and chat template.
        fp8: store the linear layers as FP8 in 128 x 128 blocks with ``weight_scale_inv``.
        overrides: keys of ``config.json``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(style, mtp=mtp, **{"dtype": dtype, **overrides})
    tensors = random_tensors(
        config,
        seed=seed,
        dtype=_DTYPES[dtype],
        outlier_channels=outlier_channels,
        dead_expert=dead_expert,
    )
    if fp8:
        kept = [name for name in tensors if name.endswith(FP8_KEPT)]
        config["quantization_config"] = fp8_config(kept)
        tensors = dict(_as_fp8(tensors))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_shards(directory, tensors, shards, index)
    if tokenizer:
        write_tokenizer(directory, config["vocab_size"])
    return directory


def _as_fp8(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, values in tensors.items():
        if name.endswith(FP8_KEPT):
            yield name, values
            continue
        codes, scales = quantise_blocks(values)
        yield name, codes
        yield f"{name}_scale_inv", scales


def _write_shards(
    directory: Path, tensors: dict[str, torch.Tensor], shards: int, index: bool
) -> None:
    names = list(tensors)
    step = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = names[number * step : (number + 1) * step]
        file = (
            "model.safetensors"
            if shards == 1
            else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        )
        save_file({n: tensors[n].contiguous() for n in part}, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if index:
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(content, indent=2))
