"""The wheels of this package and of what it needs, resolved and fetched by pip for the servers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from glm5_ascend.errors import ChildFailed, Glm5Error, PreflightError

NAME = "glm5-ascend"
# glibc of the servers' images is 2.34 and later; wheels are built for these.
_GLIBC = range(17, 29)
_NOT_BUILT = shutil.ignore_patterns(
    ".*", "build", "dist", "tests", "tools", "*.egg-info", "__pycache__", "node_modules"
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """One of them; ``sha256`` is empty where its source does not say it."""

    name: str
    version: str
    file: str
    sha256: str

    @property
    def pin(self) -> str:
        """``click==8.1.8``."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Target:
    """The servers' Python, ``3.11``, and machine, ``aarch64``."""

    python: str
    arch: str

    @property
    def options(self) -> list[str]:
        """For pip. Markers of requirements are still those of the Python that runs pip."""
        tags = [f"manylinux_2_{minor}_{self.arch}" for minor in reversed(_GLIBC)]
        tags += [f"manylinux2014_{self.arch}", f"linux_{self.arch}"]
        words = ["--only-binary", ":all:", "--implementation", "cp"]
        words += ["--python-version", self.python]
        return [*words, *(word for tag in tags for word in ("--platform", tag))]


def project_source(given: Path | None) -> Path:
    """This package as a wheel or a folder with ``pyproject.toml``.

    Raises:
        Glm5Error: what is named is neither, or nothing is named and the installation does not know
            where it came from.
    """
    if given is None:
        given = _installed_from()
    if given.suffix == ".whl" and given.is_file() and given.name.startswith("glm5_ascend-"):
        return given
    if (given / "pyproject.toml").is_file():
        return given
    raise Glm5Error(
        f"{given} is neither a wheel of {NAME} nor its source", "name either with --project"
    )


def _installed_from() -> Path:
    hint = "name its source or wheel with --project"
    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError as error:
        raise Glm5Error(f"{NAME} is not installed as a package", hint) from error
    url = urlparse(json.loads(text)["url"]) if text else None
    if url is None or url.scheme != "file":
        raise Glm5Error(f"it is not known where {NAME} was installed from", hint)
    return Path(unquote(url.path))


@contextmanager
def resolved(source: Path, target: Target) -> Iterator[tuple[Path, list[Wheel]]]:
    """The project's wheel, in a folder that goes away, and everything that is to be installed.

    Raises:
        PreflightError: there is no pip.
        ChildFailed: pip found no solution, or could not reach its index.
    """
    # Not importlib.util: setuptools answers for pip by a warning once distutils is imported.
    if PathFinder.find_spec("pip") is None:
        raise PreflightError("this Python has no pip", "python -m ensurepip, or bundle elsewhere")
    with tempfile.TemporaryDirectory(prefix="glm5-bundle-") as name:
        folder = Path(name)
        wheel = source
        if source.is_dir():
            # A copy, because building leaves files behind, and takes up those left before.
            copy = shutil.copytree(source, folder / "source", symlinks=True, ignore=_NOT_BUILT)
            _pip("wheel", "--no-deps", "--wheel-dir", folder / "own", copy)
            (wheel,) = (folder / "own").glob("glm5_ascend-*.whl")
        report = folder / "report.json"
        where = ("--ignore-installed", "--target", folder / "none", "--report", report)
        _pip("install", "--dry-run", *where, *target.options, wheel)
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
        yield wheel, sorted(map(_wheel, items), key=lambda one: one.name)


def _wheel(item: dict[str, Any]) -> Wheel:
    url = item["download_info"]["url"]
    hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
    file = unquote(urlparse(url).path).rpartition("/")[2]
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    return Wheel(name, item["metadata"]["version"], file, hashes.get("sha256", ""))


def fetch(wheel: Path, wheels: Sequence[Wheel], target: Target, folder: Path) -> None:
    """Fill a folder with the wheels, keep those that are there already, and pin them all.

    Raises:
        ChildFailed: pip failed.
        Glm5Error: a file is not the one that the index announced.
    """
    folder.mkdir(exist_ok=True)
    wanted = {one.file: one for one in wheels}
    for path in folder.iterdir():
        old = wanted.get(path.name)
        if old is None or (old.sha256 and _sum(path) != old.sha256):
            path.unlink()
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    others = [one.pin for one in wheels if one.name != NAME]
    if others:
        _pip("download", "--no-deps", "--dest", folder, *target.options, *others)
    rows = []
    for one in wheels:
        if not (folder / one.file).is_file():
            raise Glm5Error(f"pip did not bring {one.file}", "repeat the command")
        found = _sum(folder / one.file)
        if one.sha256 and found != one.sha256:
            raise Glm5Error(f"{one.file} is not what the index announced", "repeat the command")
        rows.append(f"{one.pin} --hash=sha256:{found}\n")
    (folder / "requirements.txt").write_text("".join(rows), encoding="utf-8")
    (folder / "python.txt").write_text(f"{target.python}\n", encoding="utf-8")
    (folder / "arch.txt").write_text(f"{target.arch}\n", encoding="utf-8")


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command += [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), "no reason")
        raise ChildFailed(
            f"pip {words[0]} ended with {done.returncode}: {reason.removeprefix('ERROR: ')}",
            "pip takes index and proxy from its own configuration; what came is kept",
        )
