"""A client of the served model: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import json
import math
import urllib.request
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from glm5_ascend.deploy.serve import ServerHandle
from glm5_ascend.heldout import heldout_text

SMALL = Path(__file__).parents[2] / "glm5_ascend" / "assets" / "small-glm5"


@dataclass(frozen=True)
class Completion:
    """Greedy ``tokens``; ``gaps`` are the distances of the two best logits at each of them."""

    tokens: list[int]
    gaps: list[float]


def texts(count: int, length: int, shift: int = 0) -> list[list[int]]:
    """Return ``count`` pieces of held-out text, ``length + i`` tokens each, evenly spread."""
    tokenizer = Tokenizer.from_file(str(SMALL / "tokenizer.json"))
    text = heldout_text(0).decode()
    starts = [shift + i * (len(text) - 8192) // count for i in range(count)]
    pieces = [text[start : start + 8 * length + 8 * count] for start in starts]
    ids = [encoded.ids for encoded in tokenizer.encode_batch(pieces, add_special_tokens=False)]
    return [piece[: length + i] for i, piece in enumerate(ids)]


def post(server: ServerHandle, **body: Any) -> dict[str, Any]:
    """Return the answer of ``/v1/completions``."""
    request = urllib.request.Request(
        f"{server.base_url}/v1/completions",
        json.dumps({"model": server.model, "temperature": 0, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


def complete(server: ServerHandle, prompt: list[int], count: int) -> Completion:
    """Return ``count`` greedy tokens after ``prompt``."""
    body = {"ignore_eos": True, "return_token_ids": True, "logprobs": 2}
    choice = post(server, prompt=prompt, max_tokens=count, **body)["choices"][0]
    best = [sorted(step.values(), reverse=True) for step in choice["logprobs"]["top_logprobs"]]
    return Completion(choice["token_ids"], [two[0] - two[1] for two in best])


def complete_all(
    server: ServerHandle, prompts: Sequence[list[int]], count: int, *, at_once: int
) -> list[Completion]:
    """Complete every prompt, ``at_once`` requests in flight."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt, count), prompts))


def score(server: ServerHandle, tokens: list[int]) -> torch.Tensor:
    """Return the log-probabilities [len(tokens) - 1, vocab] that predict tokens[1:]."""
    answer = post(server, prompt=tokens, max_tokens=1, prompt_logprobs=-1)
    rows = answer["choices"][0]["prompt_logprobs"][1:]
    result = torch.full((len(rows), len(rows[0])), math.nan, dtype=torch.float64)
    for row, step in zip(result, rows, strict=True):
        row[[int(token) for token in step]] = torch.tensor(
            [entry["logprob"] for entry in step.values()], dtype=torch.float64
        )
    return result


def metric(server: ServerHandle, name: str) -> float:
    """Return the sum of a counter of ``/metrics``."""
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def decisions_file(tokens: Sequence[int]) -> str:
    """Return the name of the file that ``tests/served/recorded.py`` writes for these tokens."""
    return f"{zlib.crc32(json.dumps(list(tokens)).encode()):08x}.safetensors"
