"""Record what vLLM alone says about exports: ``python -m tools.oracle.record_gpu``.

Replaces ``tests/data/oracle/compressed_tensors.jsonl``: every case of ``exports.py``, which are in
compressed-tensors format, on the CUDA platform of several releases, whose kernels are stand-ins.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from glm5_ascend import console
from glm5_ascend.errors import Glm5Error
from tools.oracle.exports import CASES, write_export
from tools.oracle.install import vllm_alone
from tools.oracle.record import CHECKPOINTS, compact
from tools.oracle.trials import GPUS, Oracle, Record

EXPORTS = CHECKPOINTS.with_name("compressed_tensors.jsonl")
VERSIONS = ("0.23.0", "0.30.0", "0.32.0")
_MADE_BY = "python -m tools.oracle.record_gpu"


def main() -> None:
    """Load every export with every release and write the verdicts."""
    rows: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        made = {
            name: write_export(Path(folder), case, f"export-{number}")
            for number, (name, case) in enumerate(CASES.items())
        }
        for version in VERSIONS:
            with Oracle(vllm_alone(version), "load", GPUS[0]) as oracle:
                for name, target in made.items():
                    asked = {"directory": str(target), "mtp": True, "env": CASES[name].env}
                    record = compact(oracle.ask(asked))
                    about = {"vllm": version, "chip": GPUS[0], "case": name}
                    rows.append({**about, **record, "made_by": _MADE_BY})
                    console.note(f"{version} {name}: {record['verdict']}")
    EXPORTS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except Glm5Error as error:
        console.report(error)
        sys.exit(error.exit_code)
