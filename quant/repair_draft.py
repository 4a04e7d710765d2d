"""A repair in the making: every change that it consists of, and nothing done yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader, TensorSpec, tensor_bytes
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import format_bytes
from glm5_ascend.verify.findings import Condition
from glm5_ascend.verify.folder import Folder

Bytes = Callable[[], memoryview]


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: its spec and where its bytes come from."""

    spec: TensorSpec
    data: Bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that is wrong and stays wrong, and why."""

    rule: str
    subject: str
    reason: str


@dataclass(slots=True)
class RepairPlan:
    """Every change, and nothing done yet.

    Attributes:
        folder: the checkpoint as it is.
        config: its configuration.
        description: the new description; None leaves the file alone.
        raw_config: the new ``config.json``; None leaves it alone.
        remove: small files to take away.
        reindex: whether indexes must be written again.
        added: new tensors, for a file of their own.
        replaced: tensors to exchange in their file.
        mends: rule and what is done, in words.
        refusals: what cannot be mended; with one of them nothing is touched.
    """

    folder: Folder
    config: Glm5Config
    description: dict[str, object] | None = None
    raw_config: dict[str, object] | None = None
    remove: set[str] = field(default_factory=set)
    reindex: bool = False
    added: dict[str, NewTensor] = field(default_factory=dict)
    replaced: dict[str, NewTensor] = field(default_factory=dict)
    mends: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def rewritten(self) -> list[Path]:
        """Files of weights that hold replaced tensors."""
        return sorted({self.folder.tensors[name].file for name in self.replaced})

    @property
    def added_bytes(self) -> int:
        """Size of the new tensors."""
        return sum(tensor_bytes(tensor.spec) for tensor in self.added.values())

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "schema": 1,
            "directory": str(self.folder.directory),
            "mends": [{"rule": rule, "what": what} for rule, what in self.mends],
            "refusals": [
                {"rule": r.rule, "subject": r.subject, "reason": r.reason} for r in self.refusals
            ],
            "added_tensors": list(self.added),
            "added_bytes": self.added_bytes,
            "rewritten_files": [file.name for file in self.rewritten],
            "rewritten_bytes": sum(file.stat().st_size for file in self.rewritten),
        }

    def as_text(self) -> str:
        """The same for people."""
        lines = [f"  mend    {rule}: {what}" for rule, what in self.mends]
        lines += [f"  refuse  {r.rule}: {r.subject}: {r.reason}" for r in self.refusals]
        if self.added:
            size = format_bytes(self.added_bytes)
            lines.append(f"  adds    {len(self.added):,} tensors, {size}, in a file of their own")
        if self.rewritten:
            size = format_bytes(sum(file.stat().st_size for file in self.rewritten))
            lines.append(f"  writes  {len(self.rewritten):,} files of weights again, {size}")
        return "\n".join(lines) or "  nothing to mend"


@dataclass(slots=True)
class Draft:
    """A plan in the making."""

    plan: RepairPlan
    schemes: Mapping[str, str | None]
    source: CheckpointReader | None

    @property
    def folder(self) -> Folder:
        """The checkpoint."""
        return self.plan.folder

    def describe(self, changes: Mapping[str, object]) -> None:
        """Set keys of the description; None removes one."""
        if self.plan.description is None:
            self.plan.description = dict(self.folder.description or {})
        _edit(self.plan.description, changes)

    def configure(self, changes: Mapping[str, object]) -> None:
        """Set keys of ``config.json``; None removes one."""
        if self.plan.raw_config is None:
            self.plan.raw_config = dict(self.folder.raw_config)
        _edit(self.plan.raw_config, changes)

    def mend(self, rule: str, what: str) -> None:
        """Note what is done."""
        self.plan.mends.append((rule, what))

    def refuse(self, condition: Condition, reason: str) -> None:
        """Note what cannot be done."""
        self.plan.refusals.append(Refusal(condition.rule, condition.subject, reason))


def _edit(document: dict[str, object], changes: Mapping[str, object]) -> None:
    for key, value in changes.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = value
