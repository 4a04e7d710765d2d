"""Record what the engines' own Python says about repaired checkpoints.

``python -m tools.record_repairs`` breaks a small W4A8 checkpoint in every way of
``tests/quant/broken.py``, repairs it for a release, and has that release load it on this CPU with
the strict oracle (``tools/strict_oracle.py``). No NPU is involved.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from glm5_ascend.engine_releases import find_release
from glm5_ascend.quant.repair import RepairOptions, run
from tests.quant import damage
from tests.quant.broken import CASES
from tests.quant.conftest import quantize
from tests.support.tiny_model import write_tiny
from tools.oracle.install import Environment
from tools.oracle.releases import find_release as oracle_release
from tools.oracle.trials import Oracle

RECORDED = Path(__file__).resolve().parent.parent / "tests/data/oracle/repaired.jsonl"
RELEASES = ("0.23.0.post1", "0.30.0rc2")
_SECONDS = 120.0
_COMMAND = "python -m tools.record_repairs"
# Room for a group of 256 columns, which old releases take for granted.
_SHAPE = {"hidden_size": 384, "head_dim": 16}


def main() -> None:
    """Write the record anew."""
    with tempfile.TemporaryDirectory(prefix="repairs-") as name:
        scratch = Path(name)
        source = write_tiny(scratch / "source", shards=3, tokenizer=True, **_SHAPE)
        good = quantize(source, scratch / "good", "w4a8")
        lines = []
        for release in RELEASES:
            environment = Environment(oracle_release(release))
            with Oracle(environment, "load", "A3") as oracle:
                for number, case in enumerate(CASES):
                    folder = damage.copy_of(good, scratch / f"{release}-{number}")
                    lines.append(_row(oracle, source, folder, case, release))
    RECORDED.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _row(oracle: Oracle, source: Path, folder: Path, case: str, release: str) -> dict[str, object]:
    change, _, needs_source = CASES[case]
    change(folder)
    given = source if needs_source else None
    report = run(RepairOptions(folder, find_release(release), given))
    record = oracle.ask({"directory": str(folder), "mtp": True}, _SECONDS)
    kept = {key: record[key] for key in ("verdict", "stage", "exception") if record.get(key)}
    return {
        "release": release,
        "case": case,
        "repair": report.state,
        **kept,
        "made_by": _COMMAND,
    }


if __name__ == "__main__":
    main()
