"""The findings of several launches for people, with the lines of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from glm5_ascend.ops.emulator.report import Finding, Order, Site
from glm5_ascend.ops.emulator.sidecar import Sidecar
from glm5_ascend.ops.emulator.trial import Result


def text(
    sidecar: Sidecar,
    seconds: float,
    results: Sequence[Result],
    mutants: int,
    survivors: Sequence[Order],
) -> str:
    """The whole listing."""
    compiled = f"compiled in {seconds:.1f} s" if seconds else "compiled before"
    blocks = "1 block" if sidecar.blocks == 1 else f"{sidecar.blocks} blocks"
    lines = [f"{sidecar.kernel}: {sidecar.core}, {blocks}, {compiled}"]
    width = max(len(result.name) for result in results)
    for result in results:
        report = result.report
        lines.append(
            f"  {result.name:<{width}}  {report.instructions:>9,} instructions"
            f"  {report.seconds:6.2f} s  {_verdict(result)}"
        )
    for finding, names in _merged(results):
        lines += ["", *_finding(finding, names, len(results))]
    for result in results:
        lines += [f"{result.name}: {difference}" for difference in result.differences]
    if mutants:
        lines.append(f"  {mutants - len(survivors)} of {mutants} mutants are reported")
    for order in survivors:
        lines.append(f"nothing depends on {order}")
        lines += _source(order.first)
    if all(result.passed for result in results) and sidecar.reference is None:
        lines.append("no reference: the values were not compared")
    return "\n".join(lines)


def _verdict(result: Result) -> str:
    found = len(result.report.findings)
    if found:
        return "1 finding" if found == 1 else f"{found} findings"
    return "differs from the reference" if result.differences else "clean"


def _merged(results: Sequence[Result]) -> list[tuple[Finding, list[str]]]:
    """Each finding once, with the launches that had it."""
    seen: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for result in results:
        for finding in result.report.findings:
            other = finding.other.site if finding.other else None
            key = (finding.kind, finding.pipe, finding.site, other)
            seen.setdefault(key, (finding, []))[1].append(result.name)
    return list(seen.values())


def _finding(finding: Finding, names: Sequence[str], runs: int) -> list[str]:
    where = f"{finding.core}.{finding.pipe}" if finding.pipe else finding.core
    lines = [f"{finding.kind}: {finding.text}", f"  {finding.site} {finding.site.api} ({where})"]
    lines += _source(finding.site)
    if finding.place:
        lines.append(f"  at {finding.place}")
    if finding.other is not None:
        side = finding.other
        who = f"{side.core}.{side.pipe}" if side.pipe else side.core
        lines.append(f"  other side: {side.site} {side.site.api} ({who})")
        lines += _source(side.site)
    times = f"{finding.count} times, first shown" if finding.count > 1 else ""
    seen = f"only in {', '.join(names)}" if len(names) < runs else ""
    if times or seen:
        lines.append(f"  {'; '.join(part for part in (times, seen) if part)}")
    return lines


@cache
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _source(site: Site) -> list[str]:
    lines = _lines(site.file)
    return [f"  {site.line:>5} | {lines[site.line - 1]}"] if 0 < site.line <= len(lines) else []
