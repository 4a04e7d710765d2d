"""Releases of vllm-ascend: what each accepts, and what goes with it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from glm5_ascend import engine_releases
from glm5_ascend.deploy.catalogue.tables import read

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Release:
    """One release with the vLLM it goes with.

    Attributes:
        release: version, ordered as pip orders it.
        date: of publication, ``2026-10-13``.
        vllm: version of vLLM.
        c8: how int8 caches are switched on: ``none``, ``sparse_c8``, ``split`` or ``dtype``.
        software: validated versions: ``python``, ``cann``, ``torch``, ``torch_npu`` and others.
        strict: unknown keys of ``--additional-config`` are refused instead of ignored.
        additional: keys of ``--additional-config``, each with the keys below it, dotted where they
            are deeper; empty where what is below is not known.
        flags: long name and kind: ``switch``, ``json``, ``text``, ``list``, ``whole``, ``number``.
        choices: accepted words of some flags.
        keys: keys of some JSON flags.
        limits: of a flag, or of keys of a JSON flag (``key`` dotted in front), kind and bounds of
            what it takes: ``whole > 0``; kinds are those of :mod:`tools.catalogue.limits`.
        short: long name of short flags.
        connectors: names of KV connectors.
        variables: names that vLLM or vllm-ascend read from the environment.
        sources: where each part is from.
    """

    release: engine_releases.Release
    date: str
    vllm: str
    c8: str
    software: Mapping[str, str]
    strict: bool
    additional: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, tuple[str, ...]]
    short: Mapping[str, str]
    connectors: frozenset[str]
    variables: frozenset[str]
    sources: Mapping[str, str]

    @property
    def text(self) -> str:
        """The version, ``0.30.0rc2``."""
        return self.release.text

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor number."""
        return self.release.series

    @property
    def switches(self) -> frozenset[str]:
        """Flags that take no value."""
        return frozenset(flag for flag, kind in self.flags.items() if kind == "switch")


def release(request: str) -> Release:
    """The release that ``vllm-ascend==0.30`` and the like name.

    Raises:
        Glm5Error: there is none of that name.
    """
    return _load(engine_releases.find_release(request))


@cache
def _load(found: engine_releases.Release) -> Release:
    row: Any = read("matrix.toml", _FOLDER)[f"release {found.text}"]
    own = _read(f"vllm_ascend-{found.text}.toml")
    base = _read(f"vllm-{row['vllm']}.toml")
    return Release(
        release=found,
        date=row["date"],
        vllm=row["vllm"],
        c8=row["c8"],
        software=row["software"],
        strict=own["strict"],
        additional=_tuples(own["additional_config"]),
        flags={name: kind for kind, names in base["flags"].items() for name in names},
        choices=_tuples(base["choices"]),
        keys=_tuples(base["keys"]),
        limits=_tuples(base["limits"] | own["limits"]),
        short=base["short"],
        connectors=frozenset(own["connectors"]) | frozenset(base["connectors"]),
        variables=frozenset(own["variables"]["vllm_ascend"]) | {*base["variables"]["vllm"]},
        sources={"matrix": row["source"], "ascend": own["source"], "vllm": base["source"]},
    )


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_FOLDER / name).read_text(encoding="utf-8"))


def _tuples(table: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(items) for name, items in table.items()}


def images() -> dict[str, Any]:
    """Repository, pattern of tags and chip of each suffix of vllm-ascend's images."""
    table: Any = read("matrix.toml", _FOLDER)["images"]
    return dict(table)


def releases_with_key(key: str) -> list[str]:
    """Versions whose ``--additional-config`` knows ``key`` at the top, oldest first."""
    return [known.text for known in engine_releases.RELEASES if key in _ascend(known.text)[0]]


def releases_with_variable(name: str) -> list[str]:
    """Versions that read the variable, or whose vLLM does, oldest first."""
    return [known.text for known in engine_releases.RELEASES if name in _variables(known.text)]


def _variables(version: str) -> frozenset[str]:
    table: Any = read("matrix.toml", _FOLDER)[f"release {version}"]
    return _ascend(version)[1] | _vllm_variables(table["vllm"])


@cache
def _vllm_variables(version: str) -> frozenset[str]:
    return frozenset(_read(f"vllm-{version}.toml")["variables"]["vllm"])


@cache
def _ascend(version: str) -> tuple[frozenset[str], frozenset[str]]:
    table = _read(f"vllm_ascend-{version}.toml")
    return frozenset(table["additional_config"]), frozenset(table["variables"]["vllm_ascend"])
