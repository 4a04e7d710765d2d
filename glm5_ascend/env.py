"""Every environment variable of the project: name, default, meaning, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass

from glm5_ascend.errors import Glm5Error


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable; ``choices`` is empty where any text is allowed."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()


OP_BACKENDS = ("auto", "reference", "cpu", "emulated", "triton", "ascendc", "torch_npu")

VARIABLES: tuple[Variable, ...] = (
    Variable(
        "GLM5_ASCEND_OP_BACKEND",
        "auto",
        "implementation of the fused operators; one named here never falls back to another",
        OP_BACKENDS,
    ),
    Variable(
        "GLM5_ASCEND_ASCENDC_LIBRARY",
        "",
        "compiled AscendC kernels (default: where `glm5-ascend ops build` puts them)",
    ),
    Variable(
        "GLM5_ASCEND_CPU_ISA",
        "auto",
        "instruction set of the CPU kernels; auto takes the best one that the processor has",
        ("auto", "avx512", "avx2", "neon", "portable"),
    ),
    Variable(
        "GLM5_ASCEND_CACHE",
        "",
        "folder for compiled CPU kernels (default: glm5-ascend in XDG_CACHE_HOME or ~/.cache)",
    ),
    Variable(
        "GLM5_ASCEND_THREADS",
        "",
        "threads of the CPU kernels (default: as many as torch uses)",
    ),
    Variable(
        "GLM5_ASCEND_LATENT_EPS",
        "config",
        "epsilon of the q_a and kv_a norms: rms_norm_eps of config.json as the engines do, or"
        " transformers' 1e-6",
        ("config", "hf"),
    ),
    Variable(
        "GLM5_ASCEND_PLUGIN",
        "1",
        "0 switches the vLLM plugin off, so that the same installation runs stock vLLM; cuda lets"
        " vLLM's CUDA build run it with Triton kernels, which has not been tried on a GPU",
        ("0", "1", "cuda"),
    ),
    Variable(
        "GLM5_ASCEND_INJECT",
        "",
        "tests only: safetensors file of top-k and expert choices that the engine must follow",
    ),
    Variable(
        "TORCH_CPU_INDEX",
        "https://download.pytorch.org/whl/cpu",
        "read by the Makefile: package index of CPU builds of torch, asked only where pip's own"
        " configuration has none",
    ),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


class EnvironmentVariableError(Glm5Error):
    """An environment variable of ours has a value that does not exist."""


def read(name: str) -> str:
    """The value of one of :data:`VARIABLES`, its default where unset or empty.

    Raises:
        EnvironmentVariableError: the value is not one of the choices.
        KeyError: ``name`` is not in the table (a defect of the caller).
    """
    variable = _BY_NAME[name]
    value = os.environ.get(name, "") or variable.default
    if variable.choices and value not in variable.choices:
        raise EnvironmentVariableError(
            f"{name} is {value!r}, which is not one of {', '.join(variable.choices)}",
            f"unset it, or set it to one of these (default {variable.default!r})",
        )
    return value
