"""Serves trials: one JSON line in, one JSON line out, each in a process of its own.

The imports of vLLM take ten seconds or more and are made once; every trial is then a fork, because
vllm-ascend keeps its configuration in globals. ``python -m tools.oracle.inside KIND CHIP``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TextIO

from tools.oracle.inside import device, gpu
from tools.oracle.inside.report import Record, Warnings, failure


def main(kind: str, chip: str) -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    (gpu if chip in gpu.GPUS else device).pretend(chip)
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.model_executor.models import registry

    # Another process, where vLLM inspects a model class, would come up without the stand-ins.
    registry._run_in_subprocess = lambda function: function()
    trial = _preload(kind, chip)
    print("{}", file=results, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        record = _in_fork(trial, asked)
        print(json.dumps(record, ensure_ascii=False), file=results, flush=True)


def _preload(kind: str, chip: str) -> Callable[[Record], Record]:
    if chip in gpu.GPUS:
        from tools.oracle.inside import load_gpu

        load_gpu.prepare()
        return load_gpu.try_load
    if kind == "command":
        from tools.oracle.inside.command import try_command

        return try_command
    from tools.oracle.inside.load import prepare, try_load

    prepare()
    return try_load


def _in_fork(trial: Callable[[Record], Record], asked: Record) -> Record:
    started = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as answer:
            _answer(trial, asked, answer)
        os._exit(0)
    os.close(write)
    text = _read_all(read, started + float(asked["timeout"]), child)
    os.close(read)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    record: Record = json.loads(text) if text else {"verdict": "crashed", "message": f"code {code}"}
    return record | {"seconds": round(time.monotonic() - started, 2)}


def _answer(trial: Callable[[Record], Record], asked: Record, answer: TextIO) -> None:
    warnings = Warnings()
    warnings.attach()
    try:
        record = trial(asked)
    except BaseException as error:
        record = failure("oracle", error) | {"verdict": "crashed"}
    json.dump(record | {"warnings": warnings.texts}, answer, ensure_ascii=False)


def _read_all(read: int, deadline: float, child: int) -> str:
    chunks = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            return '{"verdict": "timeout", "message": "no answer within the time limit"}'
        chunk = os.read(read, 65536)
        if not chunk:
            return b"".join(chunks).decode()
        chunks.append(chunk)


if __name__ == "__main__":
    main(*sys.argv[1:])
