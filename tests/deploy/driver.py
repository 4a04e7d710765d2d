"""Run the command line in a made-up environment: ``python driver.py SETUP ARGUMENTS…``.

SETUP is a JSON object: ``npu`` or ``cpu`` with changes to the facts of a sound environment, and
optionally ``dummy``, the words of a dummy engine that takes the place of vLLM.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from glm5_ascend.cli import cli
from glm5_ascend.deploy import engine, serve
from glm5_ascend.deploy.command import Launch, cpu_launch
from tests.deploy import facts

DUMMY = Path(__file__).with_name("dummy.py")


def main(setup: dict[str, Any], arguments: list[str]) -> None:
    """Patch the facts and the engine's program, then run the command line."""
    kind = "npu" if "npu" in setup else "cpu"
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in setup[kind].items()
    }
    found = getattr(facts, kind)(**changes)
    engine.detect = lambda: found  # type: ignore[assignment]
    if "dummy" in setup:

        def dummy_launch(*args: Any, **kwargs: Any) -> Launch:
            head = (sys.executable, "-S", str(DUMMY), *setup["dummy"])
            return replace(cpu_launch(*args, **kwargs), head=head, defaults=(), user=())

        serve.cpu_launch = dummy_launch  # type: ignore[attr-defined]
        serve.GRACE_S = 1.0
    cli.main(arguments, prog_name="glm5-ascend")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
