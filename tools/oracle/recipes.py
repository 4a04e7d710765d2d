"""Finds the ``vllm serve`` commands in the GLM-5 pages of an installed vllm-ascend.

Their text is not copied: a row names the page, the number of the command in it, and a digest. What
the pages leave to the user gets a value here that fits a single machine.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path

from tools.oracle.trials import Record
from tools.oracle.words import Command, NotServe, read_command

_FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|\S*)\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_MODELS = {
    "GLM5": "GLM-5.1-w8a8c8",
    "GLM5.2": "GLM-5.2-w8a8c8",
    "GLM5.3": "GLM-5.3-w8a8c8",
}
_ENGINE_VARIABLES = ("VLLM_", "DYNAMIC_", "EXPERT_MAP_")


def recipes(pages: Path) -> list[Record]:
    """Entries with ``id``, ``sha256``, ``chip`` and the parsed command; None where it has none."""
    found = []
    for page in sorted(pages.glob("tutorials/models/GLM5*.md")):
        if page.stem not in _MODELS:  # GLM-5.3-Flash is another architecture
            continue
        number = 0
        for block in _FENCE.findall(page.read_text(encoding="utf-8")):
            for start in re.finditer(r"vllm serve", block):
                number += 1
                found.append(
                    _recipe(page.stem, number, block, _one_command(block[start.start() :]))
                )
    return found


def _one_command(text: str) -> str:
    """``text`` up to the end of its first shell command, continuation lines joined."""
    quote = ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "\n" and not text[:position].rstrip(" \t").endswith("\\"):
            text = text[:position]
            break
    return re.sub(r"\\[ \t]*\n", " ", text)


def _recipe(page: str, number: int, block: str, text: str) -> Record:
    variables = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(block)}
    line = _VARIABLE.sub(lambda m: _value(m.group(1) or m.group(2), variables, text, m), text)
    line = re.sub(r"<[A-Z_]*MODEL_PATH>", _MODELS[page], line)
    entry: Record = {
        "id": f"{page} #{number}",
        "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "chip": "A5" if re.search(r"fp8|w4a4", text) else "A3",
    }
    try:
        command = read_command(shlex.split(line, comments=True))
    except (NotServe, ValueError) as error:
        return entry | {"command": None, "message": str(error)}
    env = {k: v for k, v in variables.items() if k.startswith(_ENGINE_VARIABLES)}
    return entry | {"command": Command(env, command.argv)}


def _value(name: str, variables: dict[str, str], text: str, match: re.Match[str]) -> str:
    if name in variables and "$" not in variables[name]:
        return variables[name]
    if name in ("3", "7"):
        return _own_size("dp_size" if name == "3" else "tp_size", text)
    option = "".join(text[: match.start()].split()[-1:])
    if "addr" in option or "ip" in name.lower():
        return "127.0.0.1"
    if "port" in option:
        return "12321"
    return "0" if "rank" in option else "1"


def _own_size(key: str, text: str) -> str:
    """What the command's own KV transfer config says of its side: the third and seventh argument.

    vllm-ascend's launcher for external data parallelism passes the sizes by position.
    """
    side = "prefill" if "kv_producer" in text else "decode"
    found = re.search(rf'"{side}"\s*:\s*{{[^}}]*"{key}"\s*:\s*(\d+)', text)
    return found.group(1) if found else "1"
