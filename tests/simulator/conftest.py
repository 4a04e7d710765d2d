"""Checkpoints and engines of the simulator's tests; each engine starts once per session."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from glm5_ascend.simulator.__main__ import version_or_cpu_build
from tests.simulator.engine import Engine
from tests.support.tiny_ascend import write_tiny_ascend
from tests.support.tiny_model import write_tiny

VOCAB = 320
StartEngine = Callable[..., Engine]


def tokens(count: int, seed: int) -> list[int]:
    """``count`` random tokens."""
    made = torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))
    return [int(token) for token in made]


@pytest.fixture(scope="module")
def vllm() -> Iterator[None]:
    """vLLM is imported, whatever it warns about, as the CPU build that it is."""
    stock = metadata.version
    metadata.version = version_or_cpu_build
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import glm5_ascend.simulator.platform
        import glm5_ascend.simulator.quant_config  # noqa: F401
    yield
    metadata.version = stock


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Eight prompts of 41 to 90 tokens, where index_topk is 16; two share their first 64."""
    made = [tokens(41 + 7 * i, seed=i) for i in range(8)]
    made[7][:64] = made[6][:64]
    return made


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Starts engines that end with the test module."""
    engines: list[Engine] = []

    def begin(checkpoint: Path, **options: Any) -> Engine:
        log = tmp_path_factory.mktemp("engine") / "log"
        engines.append(Engine(checkpoint, log, **options))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM-5.2 style, BF16: layers 0-2 own an indexer, layer 3 shares, layer 4 is MTP."""
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_51(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM-5.1 style: every layer owns an indexer; no moe_router_dtype in config.json."""
    return write_tiny(tmp_path_factory.mktemp("tiny51"), style="5.1")


@pytest.fixture(scope="session")
def tiny_static(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Static W8A8 attention, W8A8 experts."""
    return write_tiny_ascend(tiny, tmp_path_factory.mktemp("static"), scheme="w8a8", static=True)


@pytest.fixture(scope="session")
def engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The F32 engine of ``tiny``: chunked prefill, prefix caching, blocks of 16."""
    made = Engine(tiny, tmp_path_factory.mktemp("engine") / "log", block_size=16)
    yield made
    made.close()
