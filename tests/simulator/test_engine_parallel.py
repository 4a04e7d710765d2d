"""Tensor, expert and data parallel engines give the tokens of a single one."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.simulator.conftest import StartEngine
from tests.simulator.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Workers and engine cores are processes of their own here.
PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def test_tensor_and_expert_parallel_with_drafts(
    engine: Engine, start: StartEngine, tiny: Path, prompts: list[list[int]]
) -> None:
    parallel = start(
        tiny,
        env=PROCESSES,
        block_size=16,
        tensor_parallel_size=2,
        enable_expert_parallel=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )
    outputs = parallel.generate(prompts, together=True)

    assert [o.tokens for o in outputs] == [o.tokens for o in engine.generate(prompts)]


def test_data_and_expert_parallel_with_uneven_ranks(
    engine: Engine, start: StartEngine, tiny: Path, prompts: list[list[int]]
) -> None:
    """Rank 0 has five prompts, rank 1 three: gathers of different sizes, then idle steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = PROCESSES | {
        "VLLM_DP_SIZE": "2",
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }
    ranks = [
        start(
            tiny,
            env=shared | {"VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank)},
            block_size=16,
            enable_expert_parallel=True,
        )
        for rank in (0, 1)
    ]
    shares = prompts[:5], prompts[5:]
    with ThreadPoolExecutor(2) as pool:
        answers = [
            pool.submit(rank.generate, share, together=True)
            for rank, share in zip(ranks, shares, strict=True)
        ]
    outputs = [output for answer in answers for output in answer.result()]

    assert [o.tokens for o in outputs] == [o.tokens for o in engine.generate(prompts)]
