"""The releases of vllm-ascend that rules are written for, and how a user names one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from glm5_ascend.errors import Glm5Error

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(rc|\.post)(\d+))?")
_REQUEST = re.compile(
    r"(?:vllm[-_]ascend\s*(?:==|=|:)?\s*)?v?(\d+\.\d+(?:\.\d+(?:(?:rc|\.post)\d+)?)?)"
)
_STAGE = {"rc": -1, None: 0, ".post": 1}


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One release; ordered as pip orders versions."""

    order: tuple[int, int, int, int, int] = field(repr=False)
    text: str = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> Release:
        """Read ``X.Y.Z``, ``X.Y.ZrcN`` or ``X.Y.Z.postN``; ``ValueError`` for anything else."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise ValueError(text)
        stage = _STAGE[match[4]]
        return cls((int(match[1]), int(match[2]), int(match[3]), stage, int(match[5] or 0)), text)

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor number; rules hold for whole series."""
        return self.order[:2]

    def __str__(self) -> str:
        return f"vllm-ascend {self.text}"


# From the first release that documents GLM-5. PyPI and the project's release notes.
RELEASES: tuple[Release, ...] = tuple(
    Release.parse(text)
    for text in (
        "0.17.0rc1",
        "0.18.0rc1",
        "0.18.0",
        "0.19.1rc1",
        "0.20.2rc1",
        "0.21.0rc1",
        "0.22.1rc1",
        "0.23.0rc1",
        "0.23.0",
        "0.23.0.post1",
        "0.24.0rc1",
        "0.25.1rc1",
        "0.26.0rc1",
        "0.27.1rc1",
        "0.28.0rc1",
        "0.29.0rc1",
        "0.30.0rc1",
        "0.30.0rc2",
    )
)
SERIES: tuple[tuple[int, int], ...] = tuple(sorted({release.series for release in RELEASES}))


def find_release(request: str) -> Release:
    """The release that ``vllm-ascend==0.30``, ``0.30``, ``0.23.0.post1`` and the like name.

    A series gives its newest release here.

    Raises:
        Glm5Error: the text names no release, or one without rules.
    """
    known = ", ".join(release.text for release in RELEASES)
    match = _REQUEST.fullmatch(request.strip())
    if match is None:
        raise Glm5Error(
            f"{request!r} names no release of vllm-ascend",
            "write --for vllm-ascend==0.30 or the exact version, for example 0.23.0.post1",
        )
    words = match[1].split(".")
    if len(words) == 2:
        found = [release for release in RELEASES if release.series == tuple(map(int, words))]
    else:
        found = [release for release in RELEASES if release.text == match[1]]
    if not found:
        raise Glm5Error(f"there are no rules for vllm-ascend {match[1]}", f"known are {known}")
    return max(found)
