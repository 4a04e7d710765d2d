"""Stands in for the benchmark's worker: plays a script of events, faults and hangs.

``python gpu_worker.py FOLDER OPTIONS``: ``N.json`` in the folder holds what the Nth process of a
run does, and ``N.options`` is written with the options that it got. A step is an event, or
``{"do": "die"}``, ``{"do": "hang"}``, ``{"do": "exit", "code": N}``, ``{"do": "noise"}``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(folder: Path, options: str) -> None:
    number = len(list(folder.glob("*.options")))
    (folder / f"{number}.options").write_text(options)
    for step in json.loads((folder / f"{number}.json").read_text()):
        if step.get("do") == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif step.get("do") == "hang":
            time.sleep(600)
        elif step.get("do") == "exit":
            sys.exit(step["code"])
        elif step.get("do") == "noise":
            print("half a line of", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            print(json.dumps(step), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
