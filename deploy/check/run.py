"""The work of ``glm5-ascend check``: read, judge, repair, and say what was found."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from glm5_ascend.console import one_line
from glm5_ascend.deploy.catalogue.hardware import Hardware, hardware
from glm5_ascend.deploy.catalogue.releases import Release, release
from glm5_ascend.deploy.check.checks_flags import completed
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.examine import examine, mend_all
from glm5_ascend.deploy.check.finding import Finding, exit_code, worst_first
from glm5_ascend.deploy.check.patch import patched, write_with_backup
from glm5_ascend.deploy.check.sarif import sarif
from glm5_ascend.deploy.check.sites import Site, process_site, read_sites
from glm5_ascend.errors import ExitCode, Glm5Error
from glm5_ascend.files import decode, make_folder, read_text, refuse_unwritable

SCHEMA = 1
_MANY_DIES = 16
_MOST_BYTES = 1 << 20
_HINT = "give a script or YAML file"


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        files: paths, ``-`` for standard input.
        engine: release, ``vllm-ascend==0.30``.
        hw: SKU and servers, or None.
        model: folder of the checkpoint, or None.
        pids: running servers.
        strict: warnings count as errors.
        fix: also repair.
        in_place: change the files.
    """

    files: tuple[str, ...]
    engine: str
    hw: str | None = None
    model: Path | None = None
    pids: tuple[int, ...] = ()
    strict: bool = False
    fix: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Report:
    """What was found, and what would repair it."""

    release: Release
    findings: list[Finding]
    commands: int
    strict: bool
    fixed: list[ServeCommand] = field(default_factory=list)
    remaining: list[Finding] = field(default_factory=list)
    backups: list[Path] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """1 where an error is left (or a warning, if strict); files changed in place count as
        repaired."""
        left = self.remaining if self.backups else self.findings
        return exit_code(left, strict=self.strict)

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "schema": SCHEMA,
            "engine": self.release.text,
            "commands": self.commands,
            "passed": self.exit_code is ExitCode.DONE,
            "findings": [finding.as_dict() for finding in self.findings],
            "fixed": [command.render() for command in self.fixed],
            "remaining": [finding.as_dict() for finding in self.remaining],
        }

    def as_text(self) -> str:
        """Findings for people; after ``--fix`` the repaired commands alone."""
        if self.fixed and not self.backups:
            return "\n\n".join(command.render() for command in self.fixed)
        return text_of(self.findings, self.commands, self.release.text)


def run(options: Options) -> Report:
    """Check everything that was given.

    Raises:
        Glm5Error: a file that cannot be read, unknown release or hardware.
    """
    found = release(options.engine)
    machine = hardware(options.hw) if options.hw else None
    texts = {name: _read(name) for name in options.files}
    sites = [
        s for name, text in texts.items() for s in read_sites(_shown(name), text, found.switches)
    ]
    sites += [process_site(pid, found.switches) for pid in options.pids]
    sites = [replace(site, command=completed(site.command, found)) for site in sites]
    groups = _groups(sites, len(texts))
    contexts = [[_context(s, found, machine, options) for s in group] for group in groups]
    findings = worst_first(f for group in contexts for f in examine(group))
    report = Report(found, findings, len(sites), options.strict)
    if not (options.fix or options.in_place):
        return report
    fixed = [mend_all(group) for group in contexts]
    again = [
        [replace(old, command=new) for old, new in zip(group, new_group, strict=True)]
        for group, new_group in zip(contexts, fixed, strict=True)
    ]
    report = replace(
        report,
        fixed=[command for group in fixed for command in group],
        remaining=worst_first(f for group in again for f in examine(group)),
    )
    if options.in_place:
        pairs = [
            pair for g, new in zip(groups, fixed, strict=True) for pair in zip(g, new, strict=True)
        ]
        report = replace(report, backups=_write(texts, pairs))
    return report


def _write(texts: dict[str, str], pairs: list[tuple[Site, ServeCommand]]) -> list[Path]:
    changed: dict[str, str] = {}
    for name, text in texts.items():
        if name == "-":
            raise Glm5Error("standard input cannot be changed in place", "use --fix")
        own = [(site, command) for site, command in pairs if site.place.file == name]
        new = patched(text, own)
        if new != text:
            changed[name] = new
    refuse_unwritable(*map(Path, changed))
    return [write_with_backup(Path(name), text) for name, text in changed.items()]


def _groups(sites: Sequence[Site], files: int) -> list[list[Site]]:
    """Sites by deployment: by group, and those of several scripts together."""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        is_case = " case " in site.group
        groups.setdefault(site.group if is_case or files == 1 else "files", []).append(site)
    return list(groups.values())


def _context(site: Site, found: Release, machine: Hardware | None, options: Options) -> Context:
    if machine is None and site.npus == _MANY_DIES:
        machine = hardware(f"a3:{site.servers or 1}")
    directory = options.model
    named = Path(site.command.model or "")
    if directory is None and (named / "config.json").is_file() and named.is_absolute():
        directory = named
    return Context(site.command, found, machine, site.place, site.launch, directory=directory)


def _read(name: str) -> str:
    if name == "-":
        return decode(sys.stdin.buffer.read(_MOST_BYTES + 1), _shown(name), _MOST_BYTES, _HINT)
    return read_text(Path(name), _MOST_BYTES, _HINT)


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name


def text_of(findings: Sequence[Finding], commands: int, engine: str) -> str:
    """Findings as paragraphs, then the counts."""
    lines = []
    for finding in findings:
        place = str(finding.where)
        lines.append(f"{finding.severity} [{finding.rule}] {one_line(finding.message)}")
        lines += [
            f"    {name}: {one_line(text)}" for name, text in _details(finding, place) if text
        ]
    counts = [finding.severity for finding in findings]
    errors, warnings, notes = (
        _counted(counts.count(kind), kind) for kind in ("error", "warning", "note")
    )
    what = _counted(commands, "command")
    lines.append(f"{what} checked for vllm-ascend {engine}: {errors}, {warnings}, {notes}")
    return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _details(finding: Finding, place: str) -> list[tuple[str, str]]:
    return [
        ("where", place),
        ("why", finding.why),
        ("fix", finding.fix),
        ("source", finding.source),
    ]


def write_sarif(report: Report, target: Path) -> None:
    """Write the findings as SARIF."""
    text = json.dumps(sarif(report.findings), indent=2, ensure_ascii=False) + "\n"
    make_folder(target)
    target.write_text(text, encoding="utf-8")
