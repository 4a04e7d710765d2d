"""One server per configuration and session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from glm5_ascend.deploy.serve import ServerHandle, running_server
from tests.served.client import SMALL

Serve = Callable[..., ServerHandle]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers that end with the test."""
    with ExitStack() as stack:

        def start(model: Path, *flags: str, **environ: str) -> ServerHandle:
            common = ("--dtype", "float32", "--max-model-len", "1024", "--max-logprobs", "-1")
            return stack.enter_context(
                running_server(
                    model,
                    [*common, *flags],
                    log_path=tmp_path / "log",
                    environ={"PYTHONPATH": str(ROOT), **environ},
                )
            )

        yield start


@pytest.fixture(scope="session")
def w4a8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model as ``glm5-ascend quantize --scheme w4a8`` writes it."""
    from glm5_ascend.quant.command import QuantizeOptions, run

    target = tmp_path_factory.mktemp("w4a8") / "small"
    run(QuantizeOptions(SMALL, target, "w4a8", True))
    return target
