"""Write the generated blocks of the documents, or with ``--check`` fail where they are stale.

A block lies between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.env import VARIABLES
from glm5_ascend.exit_codes import MEANINGS
from glm5_ascend.quant.recipe_file import preset, preset_names

_ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (_ROOT / "README.md", _ROOT / "glm5_ascend" / "COMMANDS.md")
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def exit_codes() -> str:
    """Markdown table of the exit codes."""
    rows = [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


def environment() -> str:
    """Markdown table of the environment variables."""
    rows = []
    for variable in VARIABLES:
        choices = f" ({', '.join(variable.choices)})" if variable.choices else ""
        default = f"`{variable.default}`" if variable.default else "unset"
        rows.append(f"| `{variable.name}` | {default} | {variable.meaning}{choices} |")
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows]) + "\n"


def command_help() -> str:
    """The help text of every command and sub-command."""
    blocks = []
    for words in _commands(cli):
        result = CliRunner().invoke(
            cli, [*words, "--help"], prog_name="glm5-ascend", terminal_width=90
        )
        blocks.append(f"```text\n$ glm5-ascend {' '.join(words)} --help\n{result.stdout}```\n")
    return "\n".join(blocks)


def _commands(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    for name, command in sorted(group.commands.items()):
        yield (*before, name)
        if isinstance(command, click.Group):
            yield from _commands(command, *before, name)


def presets() -> str:
    """Markdown table of the quantiser's presets."""
    rows = [f"| `{name}` | {preset(name).use_when} |" for name in preset_names()]
    return "\n".join(["| `--scheme` | when |", "|---|---|", *rows]) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "exit-codes": exit_codes,
    "environment": environment,
    "help": command_help,
    "presets": presets,
}


def render(text: str) -> str:
    """``text`` with every known generated block brought up to date."""
    return _filled(text, BLOCKS)


def with_block(text: str, name: str, body: str) -> str:
    """``text`` with one generated block replaced; ``SystemExit`` if it has none of this name."""
    if all(match[2] != name for match in _BLOCK.finditer(text)):
        raise SystemExit(f"error: there is no <!-- generated: {name} --> block")
    return _filled(text, {name: lambda: body})


def _filled(text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    def fill(match: re.Match[str]) -> str:
        make = blocks.get(match[2])
        return match[0] if make is None else match[1] + make() + match[3]

    return _BLOCK.sub(fill, text)


def main(argv: list[str]) -> int:
    """Command line entry."""
    stale = 0
    for document in DOCUMENTS:
        current = document.read_text(encoding="utf-8")
        wanted = render(current)
        if argv == ["--check"] and current != wanted:
            print(f"{document.name} is stale: run python -m tools.check_docs", file=sys.stderr)
            stale = 1
        elif argv != ["--check"]:
            document.write_text(wanted, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
