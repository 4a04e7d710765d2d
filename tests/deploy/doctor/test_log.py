"""Causes of failed runs: every known text by its sample, and what is not one."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_ascend.deploy.doctor.log import causes, failures, memory_line
from glm5_ascend.deploy.doctor.run import diagnose_log
from glm5_ascend.errors import ExitCode

# As the engine prints it; the numbers are those of a run of GLM-5.1 on two A2 servers.
MEMORY = (
    "Free memory on device (60.6/60.96 GiB) on startup. Desired GPU memory utilization is"
    " (0.92, 56.08 GiB). Actual usage: 30.16 GiB for weights, 2.0 GiB for peak activation,"
    " 2.07 GiB for non-torch memory, 0.44 GiB for NPU graph memory."
    " Current KV cache memory: 21.26 GiB."
)
HARMLESS = [
    "INFO 11-30 10:00:00 loading weights took 503.9 seconds, 107 files",
    "WARNING method `deepseek_mtp` is deprecated and replaced with mtp.",
    "INFO: 10.0.0.1:60000 - POST /v1/chat/completions 200",
]


@pytest.mark.parametrize("name", failures())
def test_each_sample_names_its_cause(name: str) -> None:
    row = failures()[name]
    found = causes([*HARMLESS, f"ERROR worker 3: {row['sample']}"])
    assert [cause.name for cause in found] == [name]
    assert found[0].line == len(HARMLESS) + 1
    assert "{" not in found[0].cause + found[0].remedy
    assert row["source"]


def test_harmless_lines_name_none() -> None:
    assert causes(HARMLESS) == []


def test_symptoms_hide_behind_their_cause() -> None:
    lines = [failures()[name]["sample"] for name in ("broadcast", "soc", "soc")]
    found = causes(lines)
    assert [(cause.name, cause.line, cause.count) for cause in found] == [("soc", 2, 2)]
    assert [cause.name for cause in causes(lines[:1])] == ["broadcast"]


def test_memory_as_logged(tmp_path: Path) -> None:
    wanted = {"weights": 30.16, "activation": 2.0, "other": 2.07, "graph": 0.44, "cache": 21.26}
    assert memory_line([MEMORY]) == wanted
    assert memory_line(HARMLESS) == {}
    log = tmp_path / "run.log"
    log.write_bytes(MEMORY.encode() + b"\n\xff broken bytes\n")
    found = diagnose_log(log)
    assert found.exit_code is ExitCode.DONE
    assert "weights 30.16 GiB" in found.as_text()
    log.write_text(failures()["soc"]["sample"])
    assert diagnose_log(log).exit_code is ExitCode.INPUT
