"""How fast this machine converts: a few matrices of the model's own shapes, once each."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from glm5_ascend.checkpoint import CheckpointReader, TensorSpec, write_shard
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.convert import convert
from glm5_ascend.quant.plan import Plan
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.rotation import Orthogonal, rotations
from glm5_ascend.quant.workers import one_thread

# A matrix above this many weights takes too long for an estimate.
_LARGEST = 1 << 24
_HASHED_BYTES = 1 << 26
_SEED = 1
_PRODUCT = 1024


def measure(
    config: Glm5Config, plan: Plan, given: Mapping[str, float], backend: Backend = CPU
) -> tuple[dict[str, float], dict[str, str]]:
    """Weights per second of a core by rate, and bytes per second of SHA-256.

    Measured in processor time, so that a busy machine gives the same numbers.

    Args:
        config: of the model.
        plan: whose matrices are tried.
        given: rates that need no measurement.
        backend: what carries out the arithmetic.

    Returns:
        The rates, and ``"given"`` or ``"measured"`` for each.

    Raises:
        BackendUnavailable: the backend cannot run here.
    """
    backend.require()
    steps = {name: step for name, step in _samples(plan).items() if name not in given}
    rates = {name: given[name] for name in ("int4", "int8", "float", "hash") if name in given}
    sources = dict.fromkeys(rates, "given")
    if steps:
        matrices = rotations(config) if plan.recipe.rotate else {}
        rates |= _converted(config, steps, matrices, backend)
    if "hash" not in rates:
        rates["hash"] = _hash_rate()
    return rates, {name: sources.get(name, "measured") for name in rates}


def products(kinds: Iterable[str], size: int = _PRODUCT) -> dict[str, float]:
    """Operations per second of one core in large products of the library.

    Args:
        kinds: of arithmetic: ``f32``, ``f64``, ``int8``.
        size: rows and columns of the matrices.
    """
    wide = torch.randn(size, size, generator=torch.Generator().manual_seed(_SEED))
    codes, double = (wide * 32).clamp(-127, 127).to(torch.int8), wide.double()
    known = {
        "f32": lambda: wide @ wide,
        "f64": lambda: double @ double,
        "int8": lambda: torch._int_mm(codes, codes.T),
    }
    found = {}
    with one_thread():
        for kind in kinds:
            known[kind]()
            started = time.thread_time()
            known[kind]()
            found[kind] = 2.0 * size**3 / (time.thread_time() - started)
    return found


def _samples(plan: Plan) -> dict[str, Step]:
    """The largest matrix of moderate size for each rate."""
    from glm5_ascend.quant.dry_run import rate_of

    chosen: dict[str, Step] = {}
    for shard in plan.shards:
        for step in shard.steps:
            if step.action is not Action.MATRIX or _weights(step) > _LARGEST:
                continue
            name = rate_of(step)
            if name not in chosen or _weights(step) > _weights(chosen[name]):
                chosen[name] = step
    return chosen


def _converted(
    config: Glm5Config,
    steps: Mapping[str, Step],
    matrices: Mapping[str, Orthogonal],
    backend: Backend,
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="glm5-ascend-") as name, one_thread():
        directory = Path(name)
        _write_sources(directory, config, steps.values())
        rates = {}
        with CheckpointReader(directory) as reader:
            for rate, step in steps.items():
                started = time.thread_time()
                for _ in convert(reader, step, matrices, backend=backend):
                    pass
                rates[rate] = _weights(step) / (time.thread_time() - started)
        return rates


def _write_sources(directory: Path, config: Glm5Config, steps: Iterable[Step]) -> None:
    """A checkpoint in BF16 of only what the steps read, with random weights."""
    generator = torch.Generator().manual_seed(_SEED)
    specs: dict[str, TensorSpec] = {}
    for step in steps:
        specs[step.source] = TensorSpec(step.shape, "BF16")
        for norm in step.fold.norms:
            width = step.shape[1] // len(step.fold.norms)
            specs[norm] = TensorSpec((width,), "BF16")

    def bytes_of(spec: TensorSpec) -> memoryview:
        values = torch.randn(spec.shape, generator=generator) * 0.02 + 0.001
        flat: NDArray[np.uint8] = values.bfloat16().view(torch.uint8).reshape(-1).numpy()
        return flat.data

    data = ((name, bytes_of(spec)) for name, spec in specs.items())
    write_shard(directory / "model.safetensors", specs, data, {})
    (directory / "config.json").write_text(json.dumps(_raw(config)))


def _raw(config: Glm5Config) -> dict[str, object]:
    """``config.json`` of a configuration, without FP8."""
    raw = asdict(config)
    del raw["fp8"]
    raw["rope_parameters"] = {"rope_theta": raw.pop("rope_theta"), "rope_type": "default"}
    pattern = "".join(kind[0].upper() for kind in raw.pop("indexer_types"))
    return {**raw, "index_topk_pattern": pattern, "model_type": "glm_moe_dsa"}


def _hash_rate() -> float:
    block = bytes(_HASHED_BYTES)
    started = time.thread_time()
    hashlib.sha256(block).digest()
    return _HASHED_BYTES / (time.thread_time() - started)


def _weights(step: Step) -> int:
    return step.shape[0] * step.shape[1]
