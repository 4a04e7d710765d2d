"""Yardsticks: the machine's limits, measured in the same rounds as what is held against them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from glm5_ascend.ops.native import library
from glm5_ascend.ops.native.library import threads as native_threads
from tools.bench.machine import last_level_cache

_ROUNDS = 100_000
_KINDS = {"f32": 0, "bf16": 1, "int8": 2}
_INSTRUCTIONS = {"f32": "F32 FMA", "bf16": "vdpbf16ps", "int8": "vpdpbusd"}
# Far above and well below any last-level cache of the processors at hand.
_READ_BYTES = {"dram": 128 << 20, "cache": 4 << 20}


@dataclass(frozen=True, slots=True)
class Yardstick:
    """``run`` does ``amount`` operations, or reads as many bytes, on ``threads`` threads."""

    name: str
    title: str
    unit: str
    amount: float
    run: Callable[[], object]
    threads: int = 1

    def rate(self, microseconds: float) -> float:
        """Giga-operations or gigabytes per second."""
        return self.amount / microseconds / 1e3


def arithmetic(kind: str, threads: int = 1) -> Yardstick | None:
    """Multiplications plus additions with everything in registers, ``kind`` "f32", "bf16", "int8".

    On more than one thread it runs ten times as long, so that waking them hardly counts. None where
    the processor has no instruction for that.
    """
    rounds = _ROUNDS if threads == 1 else 10 * _ROUNDS
    count = ctypes.c_int64()
    where = ctypes.byref(count)

    def run() -> object:
        peak = library("native").g5_peak_everywhere
        peak.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]
        return peak(_KINDS[kind], rounds, where)

    if run() != 0:
        return None
    title = f"peak {kind} ({_INSTRUCTIONS[kind]})"
    amount = count.value * threads / native_threads()
    return Yardstick(kind, title, "GOP/s", amount, run, threads)


def reading(level: str, threads: int = 1) -> Yardstick:
    """Reading once through memory: ``level`` "dram", or "cache" for what fits into it."""
    # amax is torch's fastest reduction: one vector instruction per load.
    buffer = torch.ones(_READ_BYTES[level] // 4)
    title = f"read {_READ_BYTES[level] >> 20} MiB from {level}"
    return Yardstick(level, title, "GB/s", buffer.nbytes, buffer.amax, threads)


def memory_level(nbytes: float) -> str:
    """Which yardstick bounds a function that reads ``nbytes`` in every call.

    Half of the last-level cache, since other cores and the results need room too.
    """
    return "cache" if nbytes <= last_level_cache() / 2 else "dram"


def arithmetic_us(flops: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """Microseconds that ``flops`` take at the measured ``rates`` in GOP/s; 0 without flops."""
    return sum(count / rates[kind] for kind, count in flops.items()) / 1e3


def floor_us(
    flops: Mapping[str, float], nbytes: float, rates: Mapping[str, float], bandwidth: float
) -> float:
    """The least time in microseconds: max(sum of flops / peak, bytes / bandwidth), giga per s."""
    return max(arithmetic_us(flops, rates), nbytes / bandwidth / 1e3)


def ceiling(
    one_us: float,
    flops: Mapping[str, float],
    nbytes: float,
    one: Mapping[str, float],
    two: Mapping[str, float],
    level: str,
) -> float:
    """How many times faster than ``one_us`` two threads can be at most on this machine.

    All that one thread does shrinks as the arithmetic does from the rates ``one`` to ``two``, but
    two threads cannot be done before they have read ``nbytes`` from ``level``.
    """
    arithmetic = one_us * arithmetic_us(flops, two) / arithmetic_us(flops, one)
    return one_us / max(arithmetic, nbytes / two[level] / 1e3)
