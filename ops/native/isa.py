"""Which instruction set the CPU kernels are compiled for, chosen when they are loaded."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from glm5_ascend import env
from glm5_ascend.errors import BackendUnavailable

_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")

_X86_V3 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """``features`` are names as the Linux kernel lists them in /proc/cpuinfo."""

    name: str
    machines: tuple[str, ...]
    features: frozenset[str]
    flags: tuple[str, ...]


# Best first. Single features instead of -march=x86-64-v3 or znver4, which older compilers lack;
# vbmi packs bytes of two registers.
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt", "-mmovbe")
_AVX512_PARTS = ("f", "bw", "dq", "vl", "cd", "bf16", "vnni", "vbmi")
_AVX512_FLAGS = tuple(f"-mavx512{part}" for part in _AVX512_PARTS)
INSTRUCTION_SETS: tuple[InstructionSet, ...] = (
    InstructionSet(
        "avx512",
        _X86,
        _X86_V3
        | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
        | {"avx512_bf16", "avx512_vnni", "avx512vbmi"},
        (*_AVX2_FLAGS, *_AVX512_FLAGS),
    ),
    InstructionSet("avx2", _X86, _X86_V3, _AVX2_FLAGS),
    InstructionSet("neon", _ARM, frozenset({"asimd", "asimddp"}), ("-march=armv8.2-a+dotprod",)),
    InstructionSet("portable", (), frozenset(), ()),
)
NAMES = tuple(isa.name for isa in INSTRUCTION_SETS)


def selected() -> InstructionSet:
    """The instruction set of ``GLM5_ASCEND_CPU_ISA``, or the best one of this processor.

    Raises:
        BackendUnavailable: the one that was asked for cannot run here.
    """
    return _named(env.read("GLM5_ASCEND_CPU_ISA"))


@cache
def _named(name: str) -> InstructionSet:
    if name == "auto":
        return next(isa for isa in INSTRUCTION_SETS if not missing(isa))
    isa = INSTRUCTION_SETS[NAMES.index(name)]
    lack = missing(isa)
    if lack:
        raise BackendUnavailable(
            f"GLM5_ASCEND_CPU_ISA is '{name}', but this processor lacks {', '.join(lack)}",
            "unset it, or set it to 'portable'",
        )
    return isa


def missing(isa: InstructionSet) -> list[str]:
    """What this machine lacks to run code for ``isa``, empty where it runs."""
    if isa.machines and platform.machine() not in isa.machines:
        return [f"the {isa.machines[0]} architecture"]
    return sorted(isa.features - _features())


@cache
def _features() -> frozenset[str]:
    # The kernel leaves out what the operating system has not enabled, which cpuid alone does not.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return frozenset({"asimd", "asimddp"})
    return frozenset()
