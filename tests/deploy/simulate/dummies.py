"""The command line with dummy engines: ``python -m … SETUP ARGUMENTS…``.

SETUP is a JSON object from the role of an engine to the words of its dummy, ``{port}`` filled in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from glm5_ascend.cli import cli
from glm5_ascend.deploy import engine
from glm5_ascend.deploy.command import Launch
from glm5_ascend.deploy.simulate import run
from glm5_ascend.deploy.vllm_args import VllmArgs
from tests.deploy import facts
from tests.deploy.driver import DUMMY

_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def main(setup: dict[str, list[str]], arguments: list[str]) -> None:
    """Patch the facts and the engines' program, then run the command line."""

    def launch(
        model: Path, words: Sequence[str], environ: Mapping[str, str], op_backend: str
    ) -> Launch:
        args = VllmArgs.parse(words)
        transfer = json.loads(args.value("--kv-transfer-config", "{}"))
        role = _ROLES.get(transfer.get("kv_role"), "mixed")
        behaviour = [word.format(port=args.port) for word in setup[role]]
        return Launch({}, (sys.executable, "-S", str(DUMMY), *behaviour), (), (), {})

    found = facts.cpu()
    engine.detect = lambda: found  # type: ignore[assignment]
    run.cpu_launch = launch  # type: ignore[attr-defined]
    cli.main(arguments, prog_name="glm5-ascend")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
