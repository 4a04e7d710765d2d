"""The questions that are put to an endpoint, and what is wrong with the answers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from glm5_ascend.deploy.accept.client import Client, Refused, Streamed, first_choice
from glm5_ascend.deploy.accept.questions import Questions
from glm5_ascend.deploy.accept.text import fault
from glm5_ascend.errors import Glm5Error, Unhealthy, brief

CHAT, COMPLETE, METRICS = "/v1/chat/completions", "/v1/completions", "/metrics"
PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
Ask = Callable[[], "Check"]
_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
# Beyond the 2048 keys that sparse attention reads, so that the indexer has to choose.
_FILLER, _LONG_NEEDS = 400, 16_384
_CODE = "amber-7319"

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Check:
    """One result.

    Attributes:
        verdict: ``pass``, ``fail`` or ``skipped``.
        broken: the server failed, rather than its answer.
    """

    name: str
    verdict: str
    detail: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Mean limits in milliseconds.

    Attributes:
        drafts: whether they are expected.
        why_not: why the times are not compared with the limits, or nothing.
    """

    ttft_ms: float
    tpot_ms: float
    drafts: bool = False
    why_not: str = ""


def guarded(name: str, error: Glm5Error) -> Check:
    """A check whose request failed."""
    return Check(name, FAIL, error.message, broken=isinstance(error, Unhealthy))


def _body(model: str, question: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        # Answers without thinking are short, and the same for every run.
        "chat_template_kwargs": {"enable_thinking": False},
        **more,
    }


def _ask(client: Client, model: str, question: str, tokens: int, **more: Any) -> dict[str, Any]:
    return first_choice(client.post(CHAT, _body(model, question, tokens, **more)))


def _content(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    return str(message.get("content") or "") if isinstance(message, dict) else ""


def golden(client: Client, model: str, questions: Questions) -> Iterator[tuple[str, Ask]]:
    """Short questions with one right answer, texts with one right continuation, and prose."""
    for number, (question, wanted) in enumerate(questions.golden, start=1):
        name = f"golden {number}"
        yield name, partial(_told, client, model, name, question, wanted)
    for number, (text, wanted) in enumerate(questions.continued, start=1):
        name = f"continued {number}"
        yield name, partial(_continued, client, model, name, text, wanted)
    if questions.prose:
        yield "prose", partial(_prose, client, model, questions.prose)


def _prose(client: Client, model: str, question: str) -> Check:
    try:
        text = _content(_ask(client, model, question, 320))
    except Glm5Error as error:
        return guarded("prose", error)
    found = fault(text) or (None if len(text) >= 200 else f"only {brief(text)}")
    return Check("prose", FAIL if found else PASS, found or f"{len(text)} characters")


def _continued(client: Client, model: str, name: str, prompt: str, wanted: str) -> Check:
    body = {"model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0}
    try:
        text = str(first_choice(client.post(COMPLETE, body)).get("text") or "")
    except Glm5Error as error:
        return guarded(name, error)
    return _judged(name, text, wanted, wanted in text)


def long_prompt(client: Client, model: str, longest: int | None, questions: Questions) -> Check:
    """A word in the middle of some thousand tokens must be found."""
    if not questions.searches:
        return Check("long prompt", SKIPPED, "the small model has never seen one")
    if longest is not None and longest < _LONG_NEEDS:
        return Check("long prompt", SKIPPED, f"the server takes {longest} tokens")
    lines = [f"Entry {n}: the shelf holds {n * 7 % 90 + 10} boxes." for n in range(_FILLER)]
    lines[_FILLER // 2] = f"Entry {_FILLER // 2}: the code word is {_CODE}."
    question = "\n".join([*lines, "Which code word is in the list? Answer with it only."])
    return _told(client, model, "long prompt", question, _CODE)


def _told(client: Client, model: str, name: str, question: str, wanted: str) -> Check:
    try:
        text = _content(_ask(client, model, question, 64))
    except Glm5Error as error:
        return guarded(name, error)
    return _judged(name, text, wanted, wanted in text.lower())


def _judged(name: str, text: str, wanted: str, right: bool) -> Check:
    found = fault(text) or (None if right else f"{brief(text)} where {wanted} is right")
    return Check(name, FAIL if found else PASS, found or brief(text))


def tool_call(client: Client, model: str, questions: Questions) -> Check:
    """The model must call a function with arguments that are JSON."""
    try:
        choice = _ask(client, model, questions.weather, 256, tools=[TOOL])
    except Glm5Error as error:
        return guarded("tool call", error)
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not calls:
        said = brief(_content(choice))
        return Check("tool call", FAIL, f"no call but {said}: are tool calls switched on?")
    function = calls[0].get("function") if isinstance(calls[0], dict) else None
    if not isinstance(function, dict):
        return Check("tool call", FAIL, f"the call {brief(calls[0])} has no function")
    name, text = str(function.get("name")), str(function.get("arguments"))
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return Check("tool call", FAIL, f"arguments {brief(text)} are no JSON")
    city = arguments.get("city") if isinstance(arguments, dict) else None
    right = name == "get_weather" and any(one in str(city).lower() for one in questions.city)
    return Check("tool call", PASS if right else FAIL, f"{name}({brief(text)})")


def speed(
    client: Client,
    model: str,
    limits: Limits,
    questions: Questions,
    came: Callable[[], None] = lambda: None,
) -> tuple[list[Check], dict[str, float]]:
    """Four streamed answers at once against the limits; a short one before them warms up.

    Args:
        came: called for every piece of an answer, from several threads.
    """
    path = CHAT if questions.chat else COMPLETE
    first, *bodies = [_streamed_body(model, text, questions) for text in questions.streamed]
    try:
        before = counters(client)
        client.stream(path, {**first, "max_tokens": 16}, came)
        streams = _at_once(client, path, bodies, came)
        after = counters(client)
    except Glm5Error as error:
        return [guarded("stream", error)], {}
    checks = [_whole(streams, questions.tokens)]
    measured = _measured(streams)
    if checks[0].verdict == PASS:
        checks.append(_timed(measured, len(streams), limits))
    drafts, rate = _drafts(before, after, limits, questions)
    if rate is not None:
        measured["accepted_per_draft"] = round(rate, 3)
    return [*checks, drafts], measured


def _at_once(
    client: Client, path: str, bodies: Sequence[dict[str, Any]], came: Callable[[], None]
) -> list[Streamed]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        try:
            return list(pool.map(lambda body: client.stream(path, body, came), bodies))
        except BaseException:
            client.cut()  # else the pool waits for answers that nobody wants
            raise


def _streamed_body(model: str, text: str, questions: Questions) -> dict[str, Any]:
    if questions.chat:
        return _body(model, text, questions.tokens, ignore_eos=True)
    fixed = {"max_tokens": questions.tokens, "temperature": 0, "ignore_eos": True}
    return {"model": model, "prompt": text, **fixed}


def _measured(streams: Sequence[Streamed]) -> dict[str, float]:
    if any(one.tokens < 2 or one.last_s <= one.first_s for one in streams):
        return {}
    steps = [(one.last_s - one.first_s) / (one.tokens - 1) for one in streams]
    longest = max(one.last_s for one in streams)
    return {
        "ttft_ms": round(1e3 * statistics.fmean(one.first_s for one in streams), 1),
        "tpot_ms": round(1e3 * statistics.fmean(steps), 2),
        "tokens_per_s": round(sum(one.tokens for one in streams) / longest, 1),
    }


def _whole(streams: Sequence[Streamed], tokens: int) -> Check:
    """Whether the streamed answers are texts, complete, and came in pieces."""
    for one in streams:
        found = fault(one.text)
        if found:
            return Check("stream", FAIL, f"the answers cannot be used: {found}")
        if not one.tokens:
            return Check("stream", FAIL, "no count of tokens came with the stream: was it cut off?")
        if one.tokens != tokens:
            return Check("stream", FAIL, f"{one.tokens} tokens where {tokens} were asked for")
    if not _measured(streams):
        said = "answers come in one piece: is something buffering the stream?"
        return Check("stream", FAIL, said)
    return Check("stream", PASS, f"{len(streams)} answers of {tokens} tokens at once")


def _timed(measured: dict[str, float], requests: int, limits: Limits) -> Check:
    said = f"TTFT {measured['ttft_ms']:.0f} ms, TPOT {measured['tpot_ms']:.1f} ms"
    said += f", {measured['tokens_per_s']:.0f} tokens/s of {requests} requests"
    if limits.why_not:
        return Check("speed", SKIPPED, f"{limits.why_not}; measured: {said}")
    slow = [
        f"{name} {measured[key]:.0f} ms, {limit:.0f} allowed"
        for name, key, limit in (
            ("TTFT", "ttft_ms", limits.ttft_ms),
            ("TPOT", "tpot_ms", limits.tpot_ms),
        )
        if measured[key] > limit
    ]
    return Check("speed", FAIL if slow else PASS, "; ".join(slow) or said)


def counters(client: Client) -> tuple[float, float] | None:
    """Draft tokens proposed and accepted, of all engines; None without usable metrics."""
    try:
        text = client.get(METRICS)
    except Refused:
        return None
    totals = {_DRAFTED: 0.0, _ACCEPTED: 0.0}
    for line in text.splitlines():
        name, _, value = line.strip().rpartition(" ")
        name = name.partition("{")[0].removesuffix("_total")
        if name in totals:
            try:
                totals[name] += float(value)
            except ValueError:
                return None
    if not all(map(math.isfinite, totals.values())):
        return None
    return totals[_DRAFTED], totals[_ACCEPTED]


def _drafts(
    before: tuple[float, float] | None,
    after: tuple[float, float] | None,
    limits: Limits,
    questions: Questions,
) -> tuple[Check, float | None]:
    if before is None or after is None:
        return Check(
            "drafts", SKIPPED, "the endpoint has no usable /metrics; ask an engine itself"
        ), None
    drafted, accepted = (new - old for old, new in zip(before, after, strict=True))
    if drafted <= 0:
        said = "the server makes no drafts"
        return Check("drafts", FAIL if limits.drafts else SKIPPED, said), None
    rate = accepted / drafted
    said = f"{rate:.2f} of the drafts accepted ({questions.known})"
    return Check("drafts", PASS if rate >= questions.accepted else FAIL, said), rate
