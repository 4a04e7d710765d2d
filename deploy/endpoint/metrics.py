"""Names of the metrics of vLLM, per version."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from glm5_ascend.errors import Glm5Error

_FILE = Path(__file__).with_name("metrics.toml")
_NAME = re.compile(r"vllm:[a-z0-9_]+")
# What Prometheus sees of a metric of each kind.
_SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


@cache
def series(version: str) -> frozenset[str]:
    """Names that Prometheus finds at an API server of a vLLM, ``vllm:prompt_tokens_total``.

    Raises:
        Glm5Error: a version that was not read.
    """
    table: dict[str, Any] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    versions: list[str] = table["versions"]
    if version not in versions:
        raise Glm5Error(
            f"the metrics of vLLM {version} are not known", "run python -m tools.catalogue.metrics"
        )
    place = versions.index(version)
    return frozenset(
        name + suffix
        for kind, suffixes in _SUFFIXES.items()
        for name, (first, last) in table[kind].items()
        if versions.index(first) <= place <= versions.index(last)
        for suffix in suffixes
    )


def used(expression: str) -> set[str]:
    """Names of vLLM's series in a PromQL expression."""
    return set(_NAME.findall(expression))
