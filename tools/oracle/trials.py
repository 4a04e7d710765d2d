"""Starts the environment of a release and puts trials to it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from glm5_ascend.errors import ChildFailed
from tools.oracle.install import Engine

Record = dict[str, Any]

CHIPS = ("A2", "A3", "A5")
GPUS = ("H200",)
# Read when vLLM or vllm-ascend is imported, so a server must start with them.
IMPORT_TIME = (
    "ASCEND_RT_VISIBLE_DEVICES",
    "DYNAMIC_EPLB",
    "EXPERT_MAP_RECORD",
    "VLLM_BATCH_INVARIANT",
    "VLLM_USE_BREAKABLE_CUDAGRAPH",
)
_ENV = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "ascend,ascend_kv_connector,ascend_model,ascend_model_loader",
}
_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 300.0


class Oracle:
    """A running release: imports made once, every trial a process of its own.

    Args:
        environment: an installed release, or the vLLM of a Python.
        kind: "command" or "load".
        chip: "A2", "A3" or "A5", as vllm-ascend's images are built, or a GPU for vLLM alone.
        env: variables of :data:`IMPORT_TIME`.
    """

    def __init__(
        self, environment: Engine, kind: str, chip: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._name = environment.name
        self._scratch = Path(tempfile.mkdtemp(prefix="oracle-"))
        self._log = (self._scratch / "log").open("w+")
        plugins = {} if chip in CHIPS else {"VLLM_PLUGINS": ""}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "ASCEND_"))}
        self._server = subprocess.Popen(
            [environment.python, "-m", "tools.oracle.inside", kind, chip],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self._scratch,
            env={**kept, **_ENV, **plugins, **_places(self._scratch), **(env or {})},
            text=True,
        )

    def __enter__(self) -> Oracle:
        try:
            self._read(_START_SECONDS)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._pipe(self._server.stdin).close()
        self._server.terminate()
        self._server.wait()
        self._pipe(self._server.stdout).close()
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def ask(self, trial: Record, timeout: float = 120.0) -> Record:
        """The verdict on one trial: see ``inside/report.py``.

        Raises:
            ChildFailed: the server itself ended.
        """
        stdin = self._pipe(self._server.stdin)
        print(json.dumps({**trial, "timeout": timeout}), file=stdin, flush=True)
        return self._read(timeout + 30)

    def _read(self, seconds: float) -> Record:
        stdout = self._pipe(self._server.stdout)
        line = stdout.readline() if select.select([stdout], [], [], seconds)[0] else ""
        if not line:
            self._log.seek(0)
            lines = [text for text in self._log.read().splitlines() if text.strip()]
            raise ChildFailed(
                f"{self._name} did not start here: {(lines or ['no message'])[-1]}",
                "make its environment anew with `install --again`",
            )
        record: Record = json.loads(line)
        return record

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _places(scratch: Path) -> dict[str, str]:
    # vLLM keeps what it found out about model classes; each server finds out for itself.
    return {"PYTHONPATH": str(_ROOT), "VLLM_CACHE_ROOT": str(scratch / "cache")}


def run_commands(
    environment: Engine, commands: Iterable[Record], chip: str, timeout: float = 120.0
) -> Iterator[tuple[Record, Record]]:
    """Pairs of command and verdict, in groups that can share a server.

    A command has ``argv`` (from "serve" on), ``env``, and may have a ``chip`` of its own.
    """
    groups: dict[tuple[str, frozenset[tuple[str, str]]], list[Record]] = {}
    for command in commands:
        early = {k: v for k, v in command["env"].items() if k in IMPORT_TIME}
        groups.setdefault((command.get("chip") or chip, frozenset(early.items())), []).append(
            command
        )
    for (device, early_items), members in groups.items():
        with Oracle(environment, "command", device, dict(early_items)) as oracle:
            for command in members:
                asked = {"argv": command["argv"], "env": command["env"]}
                yield command, oracle.ask(asked, timeout)
