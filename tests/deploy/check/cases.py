"""Commands of ``cases.toml`` with place holders filled in, and the contexts that they make."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from glm5_ascend.deploy.catalogue.hardware import hardware
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.check.checks_flags import completed
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.sites import read_sites

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "cases.toml").read_text("utf-8"))
RULES: dict[str, dict[str, Any]] = TABLE["rule"]


def filled(text: str, base: str = "a3") -> str:
    """The script that a case stands for."""
    words = {**TABLE["word"]}
    words |= {name.upper(): one.replace("\n", " ") for name, one in TABLE["base"].items()}
    while found := re.search(r"<([A-Z0-9]+)>", text):
        text = text.replace(found[0], words[found[1]])
    if "vllm serve" in text:
        return _variables_apart(text)
    variables = re.findall(r"(?:^|(?<= ))[A-Z][A-Z0-9_]*=\S+", text)
    for variable in variables:
        text = text.replace(variable, "", 1)
    before = "".join(f"export {variable}\n" for variable in variables)
    command = TABLE["base"][base].replace("\n", " ")
    for variable in variables:
        command = re.sub(rf"\b{variable.split('=')[0]}=\S+ ", "", command)
    return f"{before}{command} {text}\n"


def _variables_apart(text: str) -> str:
    # Inside docker the shell's leading assignments would be words of the container.
    return re.sub(r"(docker run.*? x) ((?:[A-Z_]+=\S+ )+)", r"\1 ", text)


def contexts(text: str, engine: str = "0.30", hw: str | None = None) -> list[Context]:
    """What ``check`` would look at."""
    found = release(engine)
    machine = hardware(hw) if hw else None
    return [
        Context(completed(site.command, found), found, machine, site.place, site.launch)
        for site in read_sites("case.sh", text, found.switches)
    ]


def of_case(case: dict[str, Any], kind: str) -> list[Context]:
    """The contexts of a case's ``hit``, ``also`` or ``miss``."""
    text = filled(case[kind], case.get("base", "a3"))
    return contexts(text, case.get("for", "0.30"), case.get("hw"))
