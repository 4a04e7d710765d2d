"""The engine as the demo and the results table run it: flags, prompts, timing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glm5_ascend.console import note
from glm5_ascend.demo_http import Speed, measure
from glm5_ascend.deploy import serve

PROMPTS = 7  # the first one warms up
PROMPT_CHARACTERS = 600
NEW_TOKENS = 48


@contextmanager
def served(checkpoint: Path, *, quantised: bool, log_path: Path) -> Iterator[serve.ServerHandle]:
    """Serve a checkpoint while the block runs; raises as ``running_server``."""
    flags = engine_flags(quantised=quantised)
    with serve.running_server(checkpoint, flags, log_path=log_path, say=note) as server:
        yield server


def timed(server: serve.ServerHandle) -> Speed:
    """Measure decoding speed and MTP acceptance on pieces of held-out text."""
    return measure(server.base_url, server.model, prompts(), NEW_TOKENS)


def engine_flags(*, quantised: bool) -> list[str]:
    """vLLM flags of every variant: F32 for what is not quantised, one MTP token ahead."""
    draft = {"method": "mtp", "num_speculative_tokens": 1}
    flags = ["--dtype", "float32", "--max-model-len", "2048", "--served-model-name", "small-glm5"]
    flags += ["--speculative-config", json.dumps(draft)]
    return [*flags, "--quantization", "ascend"] if quantised else flags


def prompts() -> list[str]:
    """Pieces of held-out source, evenly spread, each longer than ``index_topk`` tokens."""
    from glm5_ascend.heldout import heldout_text

    text = heldout_text(0).decode("utf-8")
    starts = [i * len(text) // PROMPTS for i in range(PROMPTS)]
    return [text[start : start + PROMPT_CHARACTERS] for start in starts]
