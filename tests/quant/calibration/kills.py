"""Calibrated runs that are killed at chosen write points; see test_resume.py and killed_runs.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from glm5_ascend.quant.calibration.options import CalibrationOptions
from glm5_ascend.quant.command import QuantizeOptions, run
from tests.quant.killed_runs import SHARD_BYTES, Events

TOKENS = 320


def options(source: Path, destination: Path, **changes: object) -> QuantizeOptions:
    values: dict[str, object] = {
        "scheme": "w4a8",
        "mtp": "rules",
        "shard_bytes": SHARD_BYTES,
        "calibration": CalibrationOptions(str(source / "text.jsonl"), TOKENS),
    }
    return QuantizeOptions(source, destination, **(values | changes))  # type: ignore[arg-type]


def main() -> None:
    kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind == "count":
        complete = Events(-1)
        complete.install()
        run(options(source, target))
        print(json.dumps(complete.names))
        return
    # Loaded once, not in every child.
    import transformers

    transformers.AutoTokenizer.from_pretrained(source)
    for moment in map(int, sys.argv[4:]):
        destination = target / f"killed-{moment}"
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            Events(moment).install()
            run(options(source, destination))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(json.dumps({"moment": moment, "signal": os.WTERMSIG(status)}))


if __name__ == "__main__":
    main()
