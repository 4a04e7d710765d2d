"""Prefill in one engine, decode in another: the tokens are those of one engine that does both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.simulator.conftest import StartEngine
from tests.simulator.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DRAFTS = {"method": "mtp", "num_speculative_tokens": 2}


def transfer(role: str, folder: Path) -> dict[str, Any]:
    return {
        "kv_connector": "FolderConnector",
        "kv_connector_module_path": "glm5_ascend.simulator.transfer",
        "kv_role": role,
        "kv_connector_extra_config": {"folder": str(folder)},
    }


def test_caches_move_from_prefill_to_decode(
    engine: Engine, start: StartEngine, tiny: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    """Chunks of 32 tokens, blocks of 16, of which the last is partly filled; with drafts."""
    prefill, decode = (
        start(
            tiny,
            block_size=16,
            speculative_config=DRAFTS,
            kv_transfer_config=transfer(role, tmp_path),
        )
        for role in ("kv_producer", "kv_consumer")
    )
    keys = [f"{number:032x}" for number in range(len(prompts))]
    firsts = prefill.generate(prompts, 1, together=True, transfer=[{"save": key} for key in keys])
    assert sorted(path.name for path in tmp_path.iterdir()) == keys
    stored = torch.load(tmp_path / keys[0], weights_only=True)
    # Five layers with latents, the four of them that own an indexer with keys.
    assert len(stored) == 9
    assert {len(blocks) for blocks in stored.values()} == {3}

    outputs = decode.generate(prompts, together=True, transfer=[{"load": key} for key in keys])
    expected = engine.generate(prompts)
    assert [o.tokens for o in outputs] == [o.tokens for o in expected]
    assert [o.tokens for o in firsts] == [o.tokens[:1] for o in expected]
    # Nothing of a prompt was computed again, and the files are gone.
    assert [o.cached for o in outputs] == [len(prompt) for prompt in prompts]
    assert list(tmp_path.iterdir()) == []

    # A cache that never came: decode computes the prompt.
    prompt = list(reversed(prompts[1]))
    (alone,) = decode.generate([prompt], transfer=[{"load": "f" * 32}])
    assert (alone.tokens, alone.cached) == (engine.generate([prompt])[0].tokens, 0)

    # What arrives is what is used: a file of zeros changes the answer.
    prompt = list(reversed(prompts[0]))
    prefill.generate([prompt], 1, transfer=[{"save": keys[0]}])
    held = torch.load(tmp_path / keys[0], weights_only=True)
    torch.save({name: blocks * 0 for name, blocks in held.items()}, tmp_path / keys[0])
    (planted,) = decode.generate([prompt], transfer=[{"load": keys[0]}])
    (right,) = engine.generate([prompt])
    assert planted.tokens != right.tokens
