"""The compiled AscendC kernels: where they are, and loading them.

``glm5-ascend ops build`` makes the library inside the vllm-ascend image (build.py). Its operators
are ``torch.ops.glm5_ascend_npu.*``; binding.cpp has their signatures.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from glm5_ascend import env
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.ascendc import vendor
from glm5_ascend.ops.native.build import cache_folder

VARIABLE = "GLM5_ASCEND_ASCENDC_LIBRARY"
NAME = "libglm5_ascend_npu.so"
OPS = Path(__file__).resolve().parent.parent
# Operators with kernels; each has a folder ascendc/ with <operator>.asc.
OPERATORS = ("lightning_indexer", "mlapo", "sparse_flash_attention")
_HINT = f"build it inside the vllm-ascend image with `glm5-ascend ops build`, or set {VARIABLE}"


def sources() -> list[Path]:
    """Every file that the library is made from."""
    folders = [OPS / "ascendc", *(OPS / operator / "ascendc" for operator in OPERATORS)]
    endings = {".h", ".cpp", ".asc", ".txt"}
    return sorted(p for folder in folders for p in folder.iterdir() if p.suffix in endings)


def digest() -> str:
    """16 hexadecimal digits that name these sources."""
    total = sha256()
    for path in sources():
        content = path.read_bytes()
        total.update(f"{path.relative_to(OPS)} {len(content)}\n".encode() + content)
    return total.hexdigest()[:16]


def default_path() -> Path:
    """Where ``glm5-ascend ops build`` puts the library of these sources.

    Raises:
        BackendUnavailable: there is no cache folder.
    """
    return cache_folder() / f"ascendc-{digest()}" / NAME


def find() -> Path:
    """Path of the library: GLM5_ASCEND_ASCENDC_LIBRARY, or where the build put it.

    Raises:
        BackendUnavailable: there is no file.
    """
    named = env.read(VARIABLE)
    path = Path(named).expanduser() if named else default_path()
    if not path.is_file():
        where = f"{VARIABLE} names no file: {path}" if named else f"no file {path}"
        raise BackendUnavailable(f"the AscendC kernels are not built ({where})", _HINT)
    return path


@cache
def load() -> Any:
    """``torch.ops.glm5_ascend_npu``, with the library's operators in it.

    Raises:
        BackendUnavailable: not built, not loadable, or made from other sources.
    """
    path = find()
    vendor.operators()
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise BackendUnavailable(f"{path} cannot be loaded: {error}", _HINT) from error
    operators = torch.ops.glm5_ascend_npu
    made_from = operators.sources()
    if made_from != digest():
        raise BackendUnavailable(
            f"{path} was built from other sources ({made_from}) than these ({digest()})", _HINT
        )
    return operators
