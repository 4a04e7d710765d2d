"""Times of one case on cold files, and the rates of everything that is not arithmetic."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from glm5_ascend.checkpoint import CheckpointReader, TensorSpec, tensor_bytes, write_shard
from glm5_ascend.quant.backend import CPU, REFERENCE, Backend
from glm5_ascend.quant.convert import convert
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.rotation import Orthogonal
from tools.bench.timing import quantile
from tools.quant_bench.cases import Case, config_file, inputs

TENSORS = 3
_PATTERN = 1 << 22
_BLOCK = 128 << 20
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds per weight: processor time of the thread, and by the clock on the wall."""

    cpu: list[float]
    wall: list[float]

    def as_dict(self) -> dict[str, float]:
        """Median and spread for a row."""
        return {
            "ns": quantile(self.cpu, 0.5),
            "p20": quantile(self.cpu, 0.2),
            "p80": quantile(self.cpu, 0.8),
            "wall_ns": quantile(self.wall, 0.5),
            "n": len(self.cpu),
        }


@contextmanager
def checkpoints(case: Case, config: str, home: Path) -> Iterator[list[Path]]:
    """Folders with what the case reads, each with other values, for as long as they are needed."""
    folders = [home / f"{case.name}-{case.dtype}-{seed}" for seed in range(TENSORS)]
    try:
        for seed, folder in enumerate(folders):
            folder.mkdir()
            shutil.copy(config_file(config), folder / "config.json")
            specs = inputs(case)
            write_shard(
                folder / "model.safetensors",
                specs,
                ((name, _values(spec, seed)) for name, spec in specs.items()),
                {},
            )
        yield folders
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def times(
    step: Step,
    folders: Sequence[Path],
    matrices: Mapping[str, Orthogonal],
    backend: Backend = CPU,
    rounds: int = 2,
) -> Times:
    """Convert the step from every folder in turn; no file is in the cache when its turn comes."""
    found = Times([], [])
    for _ in range(rounds):
        for folder in folders:
            _forget(folder / "model.safetensors")
            with CheckpointReader(folder) as reader:
                cpu, wall = _timed(lambda: _drain(convert(reader, step, matrices, backend=backend)))
            count = step.shape[0] * step.shape[1]
            found.cpu.append(1e9 * cpu / count)
            found.wall.append(1e9 * wall / count)
    return found


def reference(step: Step, folders: Sequence[Path], matrices: Mapping[str, Orthogonal]) -> Times:
    """The same by the path in torch, once."""
    return times(step, folders[:1], matrices, REFERENCE, 1)


def limits() -> dict[str, float]:
    """Bytes per second of copying memory (read and written together), hashing, writing, reading.

    All in processor time: a disk takes no core, and neither do other processes.
    """
    source, target = np.ones(_BLOCK // 4, np.float32), np.empty(_BLOCK // 4, np.float32)
    np.copyto(target, source)
    copies = [_timed(lambda: np.copyto(target, source))[0] for _ in range(7)]
    data = target.view(np.uint8).data
    hashing = [_timed(lambda: hashlib.sha256(data).digest())[0] for _ in range(3)]
    with tempfile.TemporaryDirectory(prefix="glm5-ascend-") as name:
        file = Path(name) / "block.safetensors"
        specs = {"block": TensorSpec((_BLOCK,), "I8")}
        writing = [
            _timed(lambda: write_shard(file, specs, iter([("block", data)]), {}))[0]
            for _ in range(3)
        ]
        reading = [_timed(lambda: _read(file))[0] for _ in range(3)]
    return {
        "copy": 2 * _BLOCK / quantile(copies, 0.5),
        "hash": _BLOCK / quantile(hashing, 0.5),
        "write": _BLOCK / quantile(writing, 0.5),
        "read": _BLOCK / quantile(reading, 0.5),
    }


def stored_bytes(step: Step) -> int:
    """Bytes that a step writes."""
    return sum(map(tensor_bytes, step.stored.values()))


def source_bytes(case: Case) -> int:
    """Bytes that a case reads."""
    return sum(map(tensor_bytes, inputs(case).values()))


def _read(file: Path) -> None:
    with file.open("rb") as stream:
        while stream.read(_CHUNK):
            pass


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of this thread's processor time, and by the clock."""
    cpu, wall = time.thread_time(), time.perf_counter()
    run()
    return time.thread_time() - cpu, time.perf_counter() - wall


def _drain(results: Iterator[object]) -> None:
    for _ in results:
        pass


def _forget(file: Path) -> None:
    """Have the system drop the file from its cache, so that it comes from the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _values(spec: TensorSpec, seed: int) -> memoryview:
    """Normal numbers that repeat after some millions; positive ones for scales and norms."""
    count = int(np.prod(spec.shape))
    pattern = torch.randn(_PATTERN, generator=torch.Generator().manual_seed(seed))
    if spec.dtype == "F32" or len(spec.shape) == 1:
        pattern = pattern.abs() + 0.5
    dtype = {"F32": torch.float32, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}
    scale = 60.0 if spec.dtype == "F8_E4M3" else 1e-2
    bits: NDArray[np.uint8] = (pattern * scale).to(dtype[spec.dtype]).view(torch.uint8).numpy()
    return np.resize(bits, tensor_bytes(spec)).data if count else memoryview(b"")
