"""Every quantiser of the comparison, and how its checkpoint is made ready for the offline model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from glm5_ascend.console import note
from tools.peers.container import from_compressed_tensors
from tools.peers.install import CACHE, PEERS
from tools.peers.source import with_all_indexers, write_calibration

OURS = "glm5-ascend"
# Stands for the file in the options.
_TEXT = "CALIBRATION"
_TEXT_OPTION = ("--calibration", _TEXT)
_INSIDE = Path(__file__).resolve().parent / "inside"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took: seconds of wall time and of processor time, peak resident bytes."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class Contestant:
    """One tool with one set of options for one scheme ("w4a8", "w8a8" or "w8a8-static")."""

    tool: str
    scheme: str
    variant: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """File-system name, unique."""
        return f"{self.tool}-{self.scheme}-{self.variant}"


class Skipped(Exception):
    """A contestant that has no result; the message says why."""


def contestants() -> list[Contestant]:
    """All of them, ours first."""
    found = [
        Contestant(OURS, scheme, name, ("--scheme", preset, "--mtp", "float", *options))
        for scheme in ("w4a8", "w8a8")
        for name, preset, options in (
            ("data-free", scheme, ()),
            ("calibrated", scheme, _TEXT_OPTION),
            ("thorough", f"{scheme}-thorough", _TEXT_OPTION),
            ("thorough-unrotated", f"{scheme}-thorough", (*_TEXT_OPTION, "--no-rotate")),
        )
    ]
    for rope in ("config", "tool"):
        for scheme, options in _SLIM.items():
            more = ("--recipe", f"glm_5_{scheme[:4]}", "--rope", rope, *options)
            found.append(Contestant("msmodelslim", scheme, f"rope-{rope}", more))
    for scheme, bits in (("w4a8", "4"), ("w8a8", "8")):
        for method in ("model-free", "rtn", "gptq", "smoothquant-rtn", "smoothquant-gptq"):
            options = ("--bits", bits, "--method", method)
            found.append(Contestant("llm-compressor", scheme, method, options))
    return found


_SLIM: dict[str, tuple[str, ...]] = {"w4a8": (), "w8a8": ("--dynamic",), "w8a8-static": ()}


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where checkpoints are made: what exists in ``work`` is used again.

    Attributes:
        source: the BF16 checkpoint.
        work: folder of everything that is made.
        venvs: environments of the other tools.
        samples: pieces of calibration text.
    """

    source: Path
    work: Path
    venvs: Path = CACHE
    samples: int = 16

    @property
    def calibration(self) -> Path:
        """The calibration text as a JSON list; beside it, as JSON lines, the same."""
        file = self.work / "calibration.json"
        return file if file.is_file() else write_calibration(file, self.samples)

    def build(self, contestant: Contestant) -> tuple[Path, Cost]:
        """Run a contestant unless its result is there; return it ready to be loaded.

        Raises:
            Skipped: it is not installed, or it failed.
        """
        raw, record = self.work / contestant.name, self.work / f"{contestant.name}.cost.json"
        if not record.is_file():
            note(f"running {contestant.name}")
            cost = _run(self._command(contestant, raw), self.work / f"{contestant.name}.log")
            record.write_text(json.dumps(asdict(cost)))
        cost = Cost(**json.loads(record.read_text()))
        if contestant.tool != "llm-compressor":
            return raw, cost
        ready = self.work / f"{contestant.name}-container"
        return (ready if ready.is_dir() else from_compressed_tensors(raw, ready)), cost

    def _command(self, contestant: Contestant, output: Path) -> list[str]:
        if contestant.tool == OURS:
            command = [sys.executable, "-m", "glm5_ascend", "quantize", str(self.source)]
            lines = str(self.calibration.with_suffix(".jsonl"))
            options = [lines if option == _TEXT else option for option in contestant.options]
            return [*command, str(output), "--overwrite", *options]
        peer = PEERS[contestant.tool]
        if not peer.is_installed(self.venvs):
            raise Skipped(f"not installed: python -m tools.peers.install {peer.name}")
        source = self.source
        if contestant.tool == "msmodelslim":
            source = self.work / "source-all-indexers"
            if not source.is_dir():
                with_all_indexers(self.source, source)
        script = [str(peer.python(self.venvs)), str(_INSIDE / peer.script)]
        calibration = ("--calibration", str(self.calibration))
        return [*script, str(source), str(output), *contestant.options, *calibration]


def _run(command: Sequence[str], log: Path) -> Cost:
    """Run to the end with output in ``log``.

    Raises:
        Skipped: it ended with an error.
    """
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        told = [line for line in lines if re.match(r"[\w.]*Error\b", line)] or lines
        raise Skipped(f"exit code {process.returncode}: {told[0][:200]}")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(round(time.monotonic() - started, 1), round(cpu, 1), usage.ru_maxrss << 10)
