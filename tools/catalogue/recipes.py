"""Judge the recipes that vllm-ascend publishes, and write the verdicts down as data.

``python -m tools.catalogue.recipes --packages FOLDER`` reads the GLM-5 pages and the CI files of a
release's sdist, checks each deployment for its own release, and rewrites
``deploy/check/recipes.toml``. The recipes' text stays where it is: a row names page and number, and
has a digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from glm5_ascend import console
from glm5_ascend.deploy.catalogue.hardware import hardware
from glm5_ascend.deploy.catalogue.releases import Release, release
from glm5_ascend.deploy.check.checks_flags import completed
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.examine import examine, with_peers
from glm5_ascend.deploy.check.finding import Finding
from glm5_ascend.deploy.check.rule import judge
from glm5_ascend.deploy.check.sites import Site, read_sites, script_sites

TARGET = Path(__file__).resolve().parents[2] / "deploy" / "check" / "recipes.toml"
RELEASES = ("0.23.0.post1", "0.30.0rc2")
_FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{2,6} +(.*)$", re.MULTILINE)
_CHIP = re.compile(r"\b(A2|A3|950|A5)\b")
_HW = {"A2": "a2", "A3": "a3", "A5": "950dt", "950": "950dt"}
# Where a page leaves the model to the reader: the smaller format, so that no memory is made up.
_MODELS = {"GLM5": "GLM-5.1-w4a8c8", "GLM5.2": "GLM-5.2-w4a8c8", "GLM5.3": "GLM-5.3-w4a8c8"}
_HEAD = """# Recipes that vllm-ascend publishes for GLM-5 to 5.3, judged for their own release.
# Made by `python -m tools.catalogue.recipes`; do not edit. `good` has no finding of severity error.
# Warnings are not listed where every recipe has them: loading time and interface variables.
"""
_COMMON = ("ready-timeout", "nic-variables")
Row = dict[str, object]


def page_rows(version: str, pages: Mapping[str, str]) -> Iterator[Row]:
    """A row per command of the pages, by name of the page without suffix."""
    found = release(version)
    for page in sorted(set(pages) & set(_MODELS)):
        sections: dict[str, list[tuple[int, str, Site]]] = {}
        number = 0
        for section, text in _blocks(pages[page], _MODELS[page]):
            if "vllm serve" not in text:
                continue  # an answer of the server, say, which need not be a script
            for site in script_sites(page, text, found.switches):
                number += 1
                sections.setdefault(section, []).append((number, text, site))
        for section, members in sections.items():
            is_a5 = any(re.search(r"fp8|w4a4", text) for _, text, _ in members)
            chip = "950dt" if is_a5 else _hardware(section)
            contexts = [_context(site, found, chip) for _, _, site in members]
            for (index, text, _), context in zip(members, with_peers(contexts), strict=True):
                findings = [finding for finding, _ in judge(context)]
                yield _row(version, f"{page} #{index}", chip, text, findings)


def _blocks(text: str, model: str) -> Iterator[tuple[str, str]]:
    """The headings above each block of code, and the block with its model filled in."""
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(text)]
    for block in _FENCE.finditer(text):
        above = [title for start, title in headings if start < block.start()]
        before = text[: block.start()]
        tabs = re.findall(
            r"^:{3,}\{?tab-item\}?\s*(.*)$", before[before.rfind("\n#") :], re.MULTILINE
        )
        title = " | ".join([*above[-1:], *tabs[-1:]])
        nearest = [match[1] for match in _CHIP.finditer(before)]
        shown = title if _CHIP.search(title) else f"{title} | {(nearest or ['A3'])[-1]}"
        yield shown, re.sub(r"<[A-Z_]*MODEL_PATH>", model, block[1])


def _hardware(section: str) -> str:
    match = _CHIP.search(section)
    return _HW[match[1]] if match else "a3"


def ci_rows(version: str, files: Mapping[str, str]) -> Iterator[Row]:
    """A row per CI file, whose commands are judged together (cases each for itself)."""
    found = release(version)
    for name, text in sorted(files.items()):
        sites = read_sites(name, text, found.switches)
        chip = "950dt" if "A5" in name else "a2" if "A2" in name else "a3"
        groups: dict[str, list[Context]] = {}
        for site in sites:
            groups.setdefault(site.group, []).append(_context(site, found, chip))
        findings = [f for group in groups.values() for f in examine(group)]
        yield _row(version, f"ci {name}", chip, text, findings)


def _context(site: Site, found: Release, chip: str) -> Context:
    machine = hardware(f"{chip}:{site.servers or 1}")
    return Context(completed(site.command, found), found, machine, site.place, site.launch)


def _row(version: str, name: str, chip: str, text: str, findings: Iterable[Finding]) -> Row:
    findings = list(findings)
    errors = [finding for finding in findings if finding.severity == "error"]
    warnings = {f.rule for f in findings if f.severity == "warning"} - set(_COMMON)
    return {
        "release": version,
        "id": name,
        "hw": chip,
        "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "verdict": "bad" if errors else "good",
        "rules": sorted({finding.rule for finding in errors}),
        "why": [f"{f.message} ({f.source})" for f in _first_of_each(errors)],
        "warnings": sorted(warnings),
    }


def _first_of_each(findings: Iterable[Finding]) -> list[Finding]:
    return list({finding.rule: finding for finding in reversed(list(findings))}.values())[::-1]


def read_sdist(folder: Path, version: str) -> tuple[dict[str, str], dict[str, str]]:
    """GLM pages and GLM CI files of a release's sdist, by name."""
    pages: dict[str, str] = {}
    files: dict[str, str] = {}
    with tarfile.open(folder / f"vllm_ascend-{version}.tar.gz") as archive:
        for member in archive:
            path = Path(member.name.partition("/")[2])
            is_page = path.match("docs/source/tutorials/models/GLM5*.md")
            is_ci = path.match("tests/e2e/*/*/*/*/GLM*5*.yaml") or path.match(
                "tests/e2e/nightly/**/GLM*5*.yaml"
            )
            if not (member.isfile() and (is_page or is_ci)):
                continue
            stream = archive.extractfile(member)
            assert stream is not None
            (pages if is_page else files)[path.stem if is_page else path.name] = (
                stream.read().decode()
            )
    return pages, files


def text_of(rows: Iterable[Row]) -> str:
    """The file of verdicts."""
    lines = [_HEAD]
    for row in rows:
        lines.append("[[recipe]]")
        for key, value in row.items():
            if isinstance(value, list) and value and len(json.dumps(value)) > 80:
                lines += [f"{key} = [", *(f"    {_quoted(item)}," for item in value), "]"]
            elif isinstance(value, list):
                lines.append(f"{key} = [{', '.join(_quoted(item) for item in value)}]")
            else:
                lines.append(f"{key} = {_quoted(str(value))}")
        lines.append("")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@click.command(help=__doc__)
@click.option("--packages", type=click.Path(path_type=Path, exists=True), required=True)
def main(packages: Path) -> None:
    rows: list[Row] = []
    for version in RELEASES:
        pages, files = read_sdist(packages, version)
        rows += [*page_rows(version, pages), *ci_rows(version, files)]
    TARGET.write_text(text_of(rows), encoding="utf-8")
    bad = sum(row["verdict"] == "bad" for row in rows)
    console.put(f"{len(rows)} recipes, {bad} bad")


if __name__ == "__main__":
    main()
