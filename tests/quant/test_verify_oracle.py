"""The rules against what the engines' own Python said about damaged checkpoints of this quantiser.

The verdicts are data (``python -m tools.oracle.record checkpoints`` makes them again). A checkpoint
that an engine refuses, or loads with memory that it never wrote, must have an error here; one that
it takes must have none, but for what that oracle cannot see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm5_ascend.engine_releases import find_release
from glm5_ascend.verify.check import check_headers
from tests.quant.broken import CASES
from tools.oracle.mutations import MUTATIONS, MUTATIONS_51
from tools.oracle.sample import Sample, write_sample

RECORDED = Path(__file__).parent.parent / "data" / "oracle" / "checkpoints.jsonl"
# Mutation and release: why the two differ.
DIFFERENT = {
    (
        "index_topk_freq 2 in config.json",
        "0.23.0.post1",
    ): "its pinned transformers derives no indexer_types, newer ones do",
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    scratch = tmp_path_factory.mktemp("samples")
    bases = (("5.2", "w4a8"), ("5.2", "w8a8"), ("5.1", "w4a8"))
    return {f"{style} {scheme}": write_sample(scratch, scheme, style) for style, scheme in bases}


def rows() -> Iterator[tuple[str, str, str, str]]:
    for line in RECORDED.read_text().splitlines():
        row = json.loads(line)
        yield row["base"], row["mutation"], row["release"], row["verdict"]


def test_rules_say_what_the_engines_did(samples: dict[str, Sample], tmp_path: Path) -> None:
    wrong = []
    changes = {"none": lambda made: None, **MUTATIONS, **MUTATIONS_51}
    seen = set()
    for number, (base, mutation, release, verdict) in enumerate(rows()):
        made = samples[base].copy()
        changes[mutation](made)
        folder = made.write(tmp_path / str(number))
        found = check_headers(folder, find_release(release))
        has_error = any(finding.severity == "error" for finding in found)
        seen.add((mutation, release))
        if (has_error == (verdict == "accepted")) != ((mutation, release) in DIFFERENT):
            wrong.append((mutation, release, verdict, [finding.rule for finding in found]))
    assert wrong == []
    assert set(DIFFERENT) <= seen
    assert len(seen) > 70


def test_repaired_checkpoints_were_accepted() -> None:
    """Recorded by ``python -m tools.record_repairs``, one load per case and release."""
    lines = (RECORDED.parent / "repaired.jsonl").read_text().splitlines()
    found = {(row["case"], row["release"]): row for row in map(json.loads, lines)}
    assert {case for case, _ in found} == set(CASES)
    assert {release for _, release in found} == {"0.23.0.post1", "0.30.0rc2"}
    assert len(found) == 2 * len(CASES)
    assert {row["verdict"] for row in found.values()} == {"accepted"}
    assert {row["repair"] for row in found.values()} == {"done", "nothing"}
