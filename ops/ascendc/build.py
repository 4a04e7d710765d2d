"""``glm5-ascend ops build``: the AscendC kernels as a library for this machine's NPU.

Wants CANN with its ASC compiler, torch_npu and cmake, as in the vllm-ascend image. Neither the
compiler nor an NPU was at hand when this was written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.ascendc import library

SCHEMA = 1
_IMAGE = "run inside the vllm-ascend image"


@dataclass(frozen=True, slots=True)
class Built:
    """Where the library is, the digest of its sources, and whether it was made now."""

    path: Path
    sources: str
    new: bool

    def as_dict(self) -> dict[str, object]:
        """The document of ``--json``."""
        return {
            "schema": SCHEMA,
            "library": str(self.path),
            "sources": self.sources,
            "new": self.new,
        }

    def as_text(self) -> str:
        """One line, and how to use it."""
        state = "built" if self.new else "is up to date"
        return (
            f"{self.path} {state}\n"
            "use it: --op-backend ascendc, backend='ascendc', or GLM5_ASCEND_OP_BACKEND=ascendc"
        )


def build() -> Built:
    """Configure and compile, unless the library of these sources is there already.

    Raises:
        BackendUnavailable: something that it needs is missing, or the compiler refuses a source.
    """
    target, sources = library.default_path(), library.digest()
    if target.is_file():
        return Built(target, sources, new=False)
    cmake = _needed()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as folder:
        configure = [
            f"-DGLM5_SOURCES={sources}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        source = Path(library.__file__).parent
        _run([cmake, "-S", str(source), "-B", folder, *configure], "configure")
        _run([cmake, "--build", folder, "--parallel"], "compile")
        os.replace(Path(folder) / library.NAME, target)
    return Built(target, sources, new=True)


def _needed() -> str:
    if find_spec("torch_npu") is None:
        raise BackendUnavailable("package torch_npu is not installed", _IMAGE)
    home = os.environ.get("ASCEND_HOME_PATH", "")
    if not home or not Path(home).is_dir():
        raise BackendUnavailable(
            "no CANN toolkit: ASCEND_HOME_PATH names no folder", f"{_IMAGE}, or source set_env.sh"
        )
    cmake = shutil.which("cmake")
    if cmake is None:
        raise BackendUnavailable("cmake is not on PATH", "pip install cmake")
    return cmake


def _run(command: list[str], step: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        text = (done.stderr or done.stdout).strip()
        sys.stderr.write(text[-4000:] + "\n")
        raise BackendUnavailable(
            f"the AscendC kernels do not {step}: cmake ended with code {done.returncode}",
            "report the messages above; meanwhile use backend 'torch_npu' or 'reference'",
        )
