"""Talk to a running server over HTTP: streamed requests, speed and draft counters. Stdlib only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urlsplit

from glm5_ascend.errors import Unhealthy

TIMEOUT_S = 120.0
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True, slots=True)
class Piece:
    """One streamed piece of an answer; ``kind`` is text, thinking or tool."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Speed:
    """What the engine did for a set of requests, one at a time.

    Attributes:
        tokens_per_s: tokens after the first of each request, per second of decoding.
        output_tokens: all tokens generated.
        drafted, accepted: MTP tokens proposed and accepted, from the engine's own counters.
    """

    tokens_per_s: float
    output_tokens: int
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


def stream(base_url: str, path: str, body: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Post ``body`` with ``stream`` on and yield the JSON of every server-sent event.

    Raises:
        Unhealthy: the server is gone, refuses the request or breaks off.
    """
    payload = json.dumps({**body, "stream": True})
    with _Reply(base_url, "POST", path, payload) as reply:
        for line in reply:
            field, _, data = line.decode("utf-8").strip().partition(": ")
            if field == "data" and data != "[DONE]":
                yield json.loads(data)


def pieces(events: Iterator[dict[str, object]]) -> Iterator[Piece]:
    """Translate completion or chat events into the pieces that a reader wants to see."""
    for event in events:
        for choice in _objects(event.get("choices")):
            if isinstance(choice.get("text"), str):
                yield Piece("text", str(choice["text"]))
            delta = choice.get("delta")
            if isinstance(delta, dict):
                yield from _delta(delta)


def _delta(delta: Mapping[str, object]) -> Iterator[Piece]:
    thinking = delta.get("reasoning") or delta.get("reasoning_content")
    if thinking:
        yield Piece("thinking", str(thinking))
    if delta.get("content"):
        yield Piece("text", str(delta["content"]))
    for call in _objects(delta.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, dict):
            if function.get("name"):
                yield Piece("tool", str(function["name"]))
            if function.get("arguments"):
                yield Piece("tool", str(function["arguments"]))


def measure(base_url: str, model: str, prompts: Sequence[str], max_tokens: int) -> Speed:
    """Complete ``prompts`` greedily one after another; the first is a warm-up and not counted."""
    _complete(base_url, model, prompts[0], max_tokens)
    before = _counters(base_url)
    tokens, seconds = 0, 0.0
    for prompt in prompts[1:]:
        count, decoding = _complete(base_url, model, prompt, max_tokens)
        tokens, seconds = tokens + count, seconds + decoding
    after = _counters(base_url)
    decoded = tokens - (len(prompts) - 1)
    return Speed(
        tokens_per_s=decoded / seconds,
        output_tokens=tokens,
        drafted=round(after[DRAFTED] - before[DRAFTED]),
        accepted=round(after[ACCEPTED] - before[ACCEPTED]),
    )


def _complete(base_url: str, model: str, prompt: str, max_tokens: int) -> tuple[int, float]:
    """Return (tokens generated, seconds from the first token to the last)."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    first = last = 0.0
    tokens = 0
    for event in stream(base_url, "/v1/completions", body):
        if _objects(event.get("choices")):
            last = time.monotonic()
            first = first or last
        usage = event.get("usage")
        if isinstance(usage, dict):
            tokens = int(usage["completion_tokens"])
    if tokens < 2 or last <= first:
        raise Unhealthy(
            f"the engine generated {tokens} tokens where {max_tokens} were asked for",
            "read the engine's log",
        )
    return tokens, last - first


def _counters(base_url: str) -> dict[str, float]:
    """Sum the engine's draft counters over their labels; both are 0 without speculation."""
    totals = {DRAFTED: 0.0, ACCEPTED: 0.0}
    with _Reply(base_url, "GET", "/metrics", None) as reply:
        for line in reply:
            name, _, value = line.decode("utf-8").strip().rpartition(" ")
            name = name.partition("{")[0]
            if name in totals:
                totals[name] += float(value)
    return totals


class _Reply:
    """An HTTP request as a context manager that yields the lines of a 200 answer."""

    def __init__(self, base_url: str, method: str, path: str, payload: str | None) -> None:
        self._where = f"{base_url}{path}"
        self._method, self._path, self._payload = method, path, payload
        self._connection = HTTPConnection(urlsplit(base_url).netloc, timeout=TIMEOUT_S)

    def __enter__(self) -> HTTPResponse:
        headers = {"Content-Type": "application/json"} if self._payload else {}
        try:
            self._connection.request(self._method, self._path, self._payload, headers)
            response = self._connection.getresponse()
            if response.status != 200:
                text = response.read().decode("utf-8", "replace")
                raise Unhealthy(
                    f"{self._where} answered {response.status}: {text[:300]}",
                    "read the engine's log",
                )
        except BaseException as error:
            self._connection.close()
            if isinstance(error, (OSError, HTTPException)):
                raise self._broken(error) from error
            raise
        return response

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._connection.close()
        if isinstance(error, (OSError, HTTPException)):
            raise self._broken(error) from error

    def _broken(self, error: BaseException) -> Unhealthy:
        return Unhealthy(f"{self._where} broke off: {error}", "read the engine's log")


def _objects(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
