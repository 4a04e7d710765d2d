"""``glm5-ascend repair``: make a checkpoint load without quantising again, or undo that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader, require_free_space
from glm5_ascend.checkpoint_writer import write_bytes
from glm5_ascend.console import progress
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import CheckpointError, ExitCode, Glm5Error, PreflightError
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.quant.destination import locked
from glm5_ascend.quant.files import refusals, sha256_of
from glm5_ascend.quant.journal import MANIFEST
from glm5_ascend.quant.repair_draft import RepairPlan
from glm5_ascend.quant.repair_files import BACKUP, Backup, add, rewrite
from glm5_ascend.quant.repair_mends import CONFIG
from glm5_ascend.quant.repair_plan import make_plan
from glm5_ascend.verify.check import check_headers
from glm5_ascend.verify.findings import Finding

_OWN_INDEX = "quant_model_weights.safetensors.index.json"
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What the command line was asked for.

    Attributes:
        directory: the checkpoint.
        release: the engine that must load it; None only with ``undo``.
        source: what it was made from; some repairs need it.
        dry_run: print the plan and touch nothing.
        undo: put back what earlier repairs changed.
    """

    directory: Path
    release: Release | None
    source: Path | None = None
    dry_run: bool = False
    undo: bool = False


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was planned, whether it was done, and what the check says afterwards."""

    plan: RepairPlan | None
    release: Release | None
    state: str
    left: list[Finding]

    @property
    def exit_code(self) -> ExitCode:
        """1 if something cannot be mended, or was not."""
        bad = self.state == "refused" or any(f.severity == "error" for f in self.left)
        return ExitCode.INPUT if bad else ExitCode.DONE

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        plan = {"schema": 1} if self.plan is None else self.plan.as_dict()
        return {
            **plan,
            "engine": None if self.release is None else self.release.text,
            "state": self.state,
            "findings_left": [finding.as_dict() for finding in self.left],
        }

    def as_text(self) -> str:
        """The same for people."""
        if self.plan is None:
            return _STATES[self.state]
        head = f"{self.plan.folder.directory} for {self.release}"
        left = [f"  left    {finding.rule}: {finding.message}" for finding in self.left]
        return "\n".join([head, self.plan.as_text(), *left, _STATES[self.state]])


_STATES = {
    "planned": "nothing was touched (--dry-run)",
    "refused": "nothing was touched: what cannot be mended would keep the engine from loading it",
    "done": f"mended; the originals are in {BACKUP}, repair --undo puts them back",
    "nothing": "nothing to mend",
    "undone": "everything is as it was before the first repair",
}


def run(options: RepairOptions) -> RepairReport:
    """Plan, and unless told otherwise carry out, a repair.

    Raises:
        Glm5Error: the directory cannot be read, or its configuration is beyond repair.
    """
    if find_spec("torch") is None:
        raise PreflightError(
            "repair needs torch, which is not installed", "pip install 'glm5-ascend[cpu]'"
        )
    if options.undo:
        return _undo(options.directory)
    if options.release is None:
        raise Glm5Error("the engine is not named", "add --for vllm-ascend==0.30 or another release")
    with ExitStack() as held:
        source = None
        if options.source is not None:
            source = held.enter_context(CheckpointReader(options.source))
        plan = make_plan(options.directory, options.release, source)
        if plan is None:
            found = check_headers(options.directory, options.release)
            raise CheckpointError(
                f"{options.directory} is beyond repair: {found[0].message}", found[0].fix
            )
        state = "refused" if plan.refusals else "planned" if options.dry_run else "done"
        if state == "done" and not plan.mends:
            state = "nothing"
        if state in ("done", "nothing"):
            held.enter_context(locked(options.directory))
            if plan.mends:
                apply(plan)
            _finish(options.directory)
    checked = state in ("done", "nothing")
    left = check_headers(options.directory, options.release) if checked else []
    return RepairReport(plan, options.release, state, left)


def apply(plan: RepairPlan) -> None:
    """Carry out a plan; a kill at any moment leaves a state that the same command continues."""
    directory = plan.folder.directory
    backup = Backup(directory)
    shard = _new_shard(directory)
    largest = max((file.stat().st_size for file in plan.rewritten), default=0)
    replaced = {name: plan.folder.tensors[name].nbytes for name in plan.replaced}
    require_free_space(
        directory, plan.added_bytes + largest + sum(replaced.values()) + _SPARE_BYTES
    )
    texts = _texts(plan, shard.name)
    for name in (*texts, *sorted(plan.remove), *([shard.name] if plan.added else [])):
        backup.keep_small(name)
    if (directory / MANIFEST).exists():
        backup.keep_small(MANIFEST)
    for file in plan.rewritten:
        backup.keep_weights(file, [n for n in replaced if plan.folder.tensors[n].file == file])
    backup.save(finished=False)
    work = plan.added_bytes + sum(file.stat().st_size for file in plan.rewritten)
    with progress("mending", work) as advance:
        if plan.added:
            add(shard, plan.added, advance)
        for file in plan.rewritten:
            here = {n: t for n, t in plan.replaced.items() if plan.folder.tensors[n].file == file}
            rewrite(file, here, advance)
    for name, content in texts.items():
        write_bytes(directory / name, content)
    with refusals(f"remove an index from {directory}", "check the directory's permissions"):
        for name in plan.remove:
            (directory / name).unlink(missing_ok=True)


def _finish(directory: Path) -> None:
    """Bring the manifest up to date with a repair that came to its end, maybe after a kill."""
    backup = Backup(directory)
    if not backup.exists or backup.finished:
        return
    names = [*backup.small, *backup.created, *backup.rewritten]
    _update_manifest(directory, [name for name in names if name != MANIFEST])
    backup.save(finished=True)


def _texts(plan: RepairPlan, shard: str) -> dict[str, bytes]:
    """New content of every small file."""
    texts: dict[str, bytes] = {}
    if plan.raw_config is not None:
        texts[CONFIG] = _as_json(plan.raw_config)
    if plan.description is not None:
        texts[DESCRIPTION_FILE] = _as_json(plan.description)
    if plan.reindex:
        weight_map = {name: t.file.name for name, t in plan.folder.tensors.items()}
        weight_map |= dict.fromkeys(plan.added, shard)
        total = sum(t.nbytes for t in plan.folder.tensors.values()) + plan.added_bytes
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        names = [name for name in plan.folder.indexes if name not in plan.remove]
        texts |= dict.fromkeys(names or [_OWN_INDEX], _as_json(document))
    return texts


def _new_shard(directory: Path) -> Path:
    number = 1
    while (path := directory / f"repair-{number:05d}.safetensors").exists():
        number += 1
    return path


def _update_manifest(directory: Path, names: list[str]) -> None:
    """Bring the checksums of changed files up to date; the provenance stays."""
    path = directory / MANIFEST
    if not path.exists():
        return
    document = json.loads(path.read_bytes())
    for name in names:
        kind = "weights" if name.endswith(".safetensors") else "texts"
        records = document.setdefault(kind, {})
        records.pop(name, None)
        if (directory / name).exists():
            size = (directory / name).stat().st_size
            records[name] = {"bytes": size, "sha256": sha256_of(directory / name, lambda _: None)}
    document["repaired"] = sorted(names)
    write_bytes(path, json.dumps(document, indent=1).encode() + b"\n")


def _undo(directory: Path) -> RepairReport:
    backup = Backup(directory)
    if not backup.exists:
        raise CheckpointError(
            f"{directory} has no {BACKUP}: there is nothing to undo", "check the directory's name"
        )
    with locked(directory):
        work = sum((directory / name).stat().st_size for name in backup.rewritten)
        with progress("undoing", work) as advance:
            backup.undo(advance)
    return RepairReport(None, None, "undone", [])


def _as_json(document: Mapping[str, object]) -> bytes:
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")
