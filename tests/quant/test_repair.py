"""Broken checkpoints load after a repair, as they were made, and undo restores every byte."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.engine_releases import find_release
from glm5_ascend.quant.repair import RepairOptions, RepairReport, run
from glm5_ascend.quant.repair_mends import MENDS
from glm5_ascend.quant.verify import VerifyOptions
from glm5_ascend.quant.verify import run as verify
from glm5_ascend.verify.rules import RULES
from tests.quant import damage
from tests.quant.broken import (
    ATT,
    CASES,
    CONFIG,
    DESCRIPTION,
    EXPERT,
    FP8,
    MTP,
    described,
    edited,
    one_column,
    without,
)
from tests.quant.conftest import json_of, nearly_equal, quantize, tensors_of
from tests.support.tiny_ascend import write_tiny_ascend


def everything(directory: Path) -> dict[str, str]:
    """SHA-256 of every file, also in sub-directories."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def repair(directory: Path, engine: str = "0.23", **options: Any) -> RepairReport:
    return run(RepairOptions(directory, find_release(engine), **options))


def undo(directory: Path) -> None:
    run(RepairOptions(directory, None, undo=True))


@pytest.mark.parametrize("case", CASES)
def test_repaired(case: str, w4a8: Path, source: Path, tmp_path: Path) -> None:
    change, rule, needs_source = CASES[case]
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    change(broken)
    before = everything(broken)
    planned = repair(broken, dry_run=True, source=source if needs_source else None)
    assert everything(broken) == before
    assert rule in {name for name, _ in planned.plan.mends} if planned.plan else False
    if needs_source:
        refused = repair(broken)
        assert refused.state == "refused"
        assert refused.exit_code == 1
        assert everything(broken) == before
    report = repair(broken, source=source if needs_source else None)
    assert report.state == "done"
    assert report.left == []
    found = verify(VerifyOptions(broken, source, find_release("0.23"), manifest=True, full=True))
    # Only what the test itself did to files that the repair had no reason to touch.
    assert {finding.rule for finding in found.findings} <= {"manifest-file"}
    if case != "MTP layer lost":
        wanted, restored = tensors_of(w4a8), tensors_of(broken)
        assert wanted.keys() == restored.keys()
        # A repair works in float64, the kernels in float32.
        for name, tensor in wanted.items():
            same = nearly_equal if tensor.dtype == torch.bfloat16 else torch.equal
            assert same(restored[name], tensor), name
    assert repair(broken).state == "nothing"
    undo(broken)
    assert everything(broken) == before


def test_every_mend_has_a_case_and_every_mendable_rule_a_mend() -> None:
    tested = {rule for _, rule, _ in CASES.values()} | {"static-missing", "static-norm-bias"}
    assert tested | {"indexer-unused"} == set(MENDS)
    assert set(MENDS) == {name for name, rule in RULES.items() if rule.mendable}


def test_static_parts(source: Path, tmp_path: Path) -> None:
    whole = write_tiny_ascend(source, tmp_path / "whole", scheme="w8a8", static=True)
    broken = damage.copy_of(whole, tmp_path / "broken")
    damage.drop(broken, f"{ATT}o_proj.deq_scale", f"{ATT}q_b_proj.quant_bias")
    biases = [name for name in tensors_of(broken) if "norm.bias" in name]
    damage.edit_json(broken / DESCRIPTION, **dict.fromkeys(biases))
    report = repair(broken)
    assert report.plan is not None
    assert {rule for rule, _ in report.plan.mends} >= {"static-missing", "static-norm-bias"}
    assert report.left == []
    wanted, found = tensors_of(whole), tensors_of(broken)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    lost = damage.copy_of(whole, tmp_path / "lost")
    damage.drop(lost, f"{ATT}o_proj.input_scale")
    refused = repair(lost)
    assert refused.plan is not None
    assert [(r.rule, r.subject) for r in refused.plan.refusals] == [
        ("static-missing", f"{ATT}o_proj.input_scale")
    ]


def test_unused_indexers(tmp_path: Path) -> None:
    from tests.support.tiny_model import write_tiny

    plain = write_tiny(tmp_path / "plain", style="5.1")
    out = quantize(plain, tmp_path / "out", "w8a8")
    damage.edit_json(out / CONFIG, index_topk_freq=2)
    assert repair(out, "0.30").state == "nothing"
    report = repair(out)
    assert report.plan is not None
    assert [rule for rule, _ in report.plan.mends] == ["indexer-unused"]
    assert "index_topk_freq" not in json_of(out / CONFIG)


def test_unrotated_head_is_the_main_one(source: Path, tmp_path: Path) -> None:
    out = quantize(source, tmp_path / "out", "w8a8", rotate=False)
    wanted = tensors_of(out)
    damage.drop(out, f"{MTP}shared_head.head.weight", f"{MTP}embed_tokens.weight")
    assert repair(out).left == []
    found = tensors_of(out)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    # An engine that shares the main model's needs no copies.
    damage.drop(out, f"{MTP}shared_head.head.weight")
    assert repair(out, "0.30").state == "nothing"


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "scale lost": (without(f"{EXPERT}up_proj.weight_scale"), f"{EXPERT}up_proj.weight_scale"),
    "norm lost": (without("model.norm.weight"), "model.norm.weight"),
    "int4 called float": (
        described(**{f"{EXPERT}up_proj.weight": "FLOAT"}),
        f"{EXPERT}up_proj.weight",
    ),
    "one column of other numbers": (
        edited(f"{EXPERT}down_proj.scale_bias", lambda bias: 2 * bias.sum(1, keepdim=True)),
        f"{EXPERT}down_proj.scale_bias",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, w4a8: Path, tmp_path: Path) -> None:
    change, subject = REFUSED[case]
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    change(broken)
    damage.edit_json(broken / DESCRIPTION, group_size=256)
    before = everything(broken)
    report = repair(broken)
    assert report.state == "refused"
    assert report.exit_code == 1
    assert report.plan is not None
    assert subject in {refusal.subject for refusal in report.plan.refusals}
    assert everything(broken) == before


def test_only_what_must_be_written_is_written(w4a8: Path, tmp_path: Path) -> None:
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    one_column(broken)
    before = everything(broken)
    report = repair(broken)
    assert report.plan is not None
    after = everything(broken)
    rewritten = {file.name for file in report.plan.rewritten}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == rewritten | {"quantize_manifest.json"}
    assert rewritten != {file.name for file in broken.glob("*.safetensors")}


def test_two_repairs_are_undone_together(w4a8: Path, tmp_path: Path) -> None:
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    damage.edit_json(broken / DESCRIPTION, group_size=256)
    before = everything(broken)
    repair(broken)
    damage.edit_json(broken / CONFIG, quantization_config=FP8)
    repair(broken)
    undo(broken)
    assert everything(broken)[DESCRIPTION] == before[DESCRIPTION]
    assert not (broken / "repair_backup").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from glm5_ascend.cli import cli
moments = {"left": int(sys.argv[1])}

def killer(function):
    def wrapper(*arguments, **options):
        moments["left"] -= 1
        if moments["left"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return wrapper

os.replace, os.fsync, os.unlink = killer(os.replace), killer(os.fsync), killer(os.unlink)
cli.main(sys.argv[2:], standalone_mode=False)
"""


def killed_at(moment: int, *arguments: str) -> bool:
    """Run the command in a process that kills itself before its ``moment``-th change on disk."""
    command = [sys.executable, "-c", KILLED, str(moment), *arguments]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": "."})
    if done.returncode == -signal.SIGKILL:
        return True
    assert done.returncode == 0, done.stderr.decode()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("moment", [3, 10, 17, 23, 28, 33])
def test_killed(moment: int, w4a8: Path, tmp_path: Path) -> None:
    """Killed, then continued or undone: the same files as without the kill."""
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    one_column(broken)
    damage.drop(broken, f"{MTP}embed_tokens.weight", f"{EXPERT}up_proj.scale_bias")
    damage.edit_json(broken / CONFIG, quantization_config=FP8)
    before = everything(broken)
    straight = damage.copy_of(broken, tmp_path / "straight")
    repair(straight)
    wanted = tensors_of(straight)
    assert killed_at(moment, "repair", str(broken), "--for", "0.23")
    undone = damage.copy_of(broken, tmp_path / "undone")
    report = repair(broken)
    assert report.left == []
    found = tensors_of(broken)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    options = VerifyOptions(broken, None, find_release("0.23"), manifest=True, full=True)
    assert {f.rule for f in verify(options).findings} <= {"manifest-file"}
    undo(broken)
    assert everything(broken) == before
    if (undone / "repair_backup" / "journal.json").exists():
        killed_at(moment // 2, "repair", str(undone), "--undo")
        if (undone / "repair_backup" / "journal.json").exists():
            undo(undone)
    left = {n: d for n, d in everything(undone).items() if not n.startswith("repair_backup")}
    assert {n: d for n, d in left.items() if not n.endswith(".part")} == before


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["repair", *arguments])


def test_command(w4a8: Path, tmp_path: Path) -> None:
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    damage.edit_json(broken / DESCRIPTION, group_size=None)
    result = invoke(str(broken), "--for", "vllm-ascend==0.23", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "set group_size to 0" in result.stdout
    assert "nothing was touched" in result.stdout
    result = invoke(str(broken), "--for", "0.30")
    assert "nothing to mend" in result.stdout
    result = invoke(str(broken), "--for", "0.23", "--json")
    document = json.loads(result.stdout)
    assert (document["state"], document["engine"]) == ("done", "0.23.0.post1")
    assert document["findings_left"] == []
    assert invoke(str(broken), "--undo").exit_code == 0
    assert invoke(str(broken), "--undo").exit_code == 1
    assert invoke(str(broken)).exit_code == 2
    assert invoke(str(broken), "--undo", "--dry-run").exit_code == 2
    damage.edit_json(broken / CONFIG, model_type="deepseek_v3")
    result = invoke(str(broken), "--for", "0.23")
    assert result.exit_code == 1
    assert "beyond repair" in result.stderr
