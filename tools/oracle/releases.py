"""Releases of vllm-ascend that the oracle knows, each with the vLLM and transformers it names."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.errors import ExitCode, Glm5Error

# What vLLM and vllm-ascend import and the `cpu` extra of this project does not bring.
_PACKAGES = (
    "diskcache==5.6.3",
    "fastokens==0.2.0",
    "gguf==0.19.0",
    "openai-harmony==0.0.8",
    "scipy>=1.15,<1.18",
)
# transformers refuses to start beside newer ones; the bounds are those of the pinned releases.
_HUB = ("huggingface-hub>=1.5,<2", "tokenizers>=0.22,<0.23")


class UnknownRelease(Glm5Error):
    """No catalogued release of vllm-ascend has this name."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Release:
    """One row of vllm-ascend's version table.

    Args:
        version: of vllm-ascend on PyPI.
        vllm: the vLLM it belongs to.
        transformers: the version that its ``requirements.txt`` pins.
    """

    version: str
    vllm: str
    transformers: str

    @property
    def packages(self) -> tuple[str, ...]:
        """What goes into the environment besides vLLM and vllm-ascend, without dependencies."""
        return (f"transformers=={self.transformers}", *_HUB, *_PACKAGES)


RELEASES = (
    Release("0.23.0.post1", "0.23.0", "5.5.4"),
    Release("0.26.0rc1", "0.26.0", "5.14.1"),
    Release("0.27.1rc1", "0.27.1", "5.14.1"),
    Release("0.28.0rc1", "0.28.0", "5.14.1"),
    Release("0.29.0rc1", "0.29.0", "5.14.1"),
    Release("0.30.0rc2", "0.30.0", "5.14.1"),
)


def find_release(name: str) -> Release:
    """The release called ``name``: a version, ``vllm-ascend==VERSION`` or a series such as 0.30.

    Of a series, the newest catalogued release.

    Raises:
        UnknownRelease: none is.
    """
    wanted = name.removeprefix("vllm-ascend").removeprefix("==")
    matches = [r for r in RELEASES if r.version == wanted or r.version.startswith(f"{wanted}.")]
    if not wanted or not matches:
        known = ", ".join(release.version for release in RELEASES)
        raise UnknownRelease(f"unknown release of vllm-ascend: {name}", f"choose one of {known}")
    return matches[-1]
