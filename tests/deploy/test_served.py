"""The real server: health, streaming chat, a streamed tool call and the reasoning split."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.deploy.serve import ServerHandle, running_server
from tests.deploy.processes import in_session

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
ASSET = ROOT / "glm5_ascend" / "assets" / "small-glm5"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ASK = [{"role": "user", "content": "How is the weather in Paris?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    log = tmp_path_factory.mktemp("served") / "log"
    flags = ["--max-model-len", "1024", "--logits-processors", "tests.deploy.forced:ForcedTokens"]
    with running_server(
        ASSET, flags, log_path=log, timeout_s=600, environ={"PYTHONPATH": str(ROOT)}
    ) as handle:
        yield handle
    assert in_session(handle.pid) == []


def post(server: ServerHandle, path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        server.base_url + path,
        json.dumps({"model": server.model, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=120)


def stream(server: ServerHandle, **body: Any) -> list[dict[str, Any]]:
    """Return the choices of a streamed chat completion, one per event."""
    with post(server, "/v1/chat/completions", stream=True, temperature=0, **body) as answer:
        events = [
            line[6:] for line in answer.read().decode().splitlines() if line.startswith("data")
        ]
    assert events.pop() == "[DONE]"
    return [choice for event in events for choice in json.loads(event)["choices"]]


def joined(choices: list[dict[str, Any]], field: str) -> str:
    return "".join(choice["delta"].get(field) or "" for choice in choices)


def saying(server: ServerHandle, text: str) -> dict[str, str]:
    """Return request fields that make the model say ``text`` and stop."""
    with post(server, "/tokenize", prompt=f"{text}<|user|>", add_special_tokens=False) as answer:
        tokens = json.load(answer)["tokens"]
    return {"forced": ",".join(map(str, tokens))}


def test_health_and_model_names(server: ServerHandle) -> None:
    with urllib.request.urlopen(f"{server.base_url}/health", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{server.base_url}/v1/models", timeout=10) as answer:
        names = [model["id"] for model in json.load(answer)["data"]]
    assert names == [ASSET.name, str(ASSET)]


def test_streamed_chat_equals_the_whole_answer(server: ServerHandle) -> None:
    body: dict[str, Any] = {"messages": ASK, "max_tokens": 24, "ignore_eos": True}
    choices = stream(server, **body)
    with post(server, "/v1/chat/completions", temperature=0, **body) as answer:
        whole = json.load(answer)
    message = whole["choices"][0]["message"]
    assert whole["usage"]["completion_tokens"] == 24
    assert len(choices) > 10
    assert joined(choices, "content") == (message["content"] or "")
    assert joined(choices, "reasoning") == (message["reasoning"] or "")
    assert joined(choices, "content") + joined(choices, "reasoning") != ""
    assert choices[-1]["finish_reason"] == "length"


def test_streamed_tool_call(server: ServerHandle) -> None:
    text = (
        "The user wants weather.</think><tool_call>get_weather<arg_key>city</arg_key>"
        '<arg_value>Paris, "7e"</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>'
        "</tool_call>"
    )
    choices = stream(
        server, messages=ASK, tools=[WEATHER], max_tokens=200, vllm_xargs=saying(server, text)
    )
    calls = [call for c in choices for call in c["delta"].get("tool_calls") or []]
    names = [call["function"]["name"] for call in calls if call["function"].get("name")]
    arguments = [call["function"].get("arguments") or "" for call in calls]
    assert names == ["get_weather"]
    assert json.loads("".join(arguments)) == {"city": 'Paris, "7e"', "days": 3}
    assert sum(map(bool, arguments)) > 1  # really streamed
    assert joined(choices, "reasoning") == "The user wants weather."
    assert joined(choices, "content") == ""
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_reasoning_is_split_from_the_answer(server: ServerHandle) -> None:
    forced = saying(server, "First think.</think>Then answer.")
    choices = stream(server, messages=ASK, max_tokens=60, vllm_xargs=forced)
    assert joined(choices, "reasoning") == "First think."
    assert joined(choices, "content") == "Then answer."
    assert choices[-1]["finish_reason"] == "stop"
    with post(
        server, "/v1/chat/completions", messages=ASK, max_tokens=60, vllm_xargs=forced
    ) as answer:
        message = json.load(answer)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("First think.", "Then answer.")


def test_without_thinking_everything_is_the_answer(server: ServerHandle) -> None:
    choices = stream(
        server,
        messages=ASK,
        max_tokens=60,
        chat_template_kwargs={"enable_thinking": False},
        vllm_xargs=saying(server, "Just an answer."),
    )
    assert joined(choices, "content") == "Just an answer."
    assert joined(choices, "reasoning") == ""


def test_a_text_without_tool_tags_is_no_call(server: ServerHandle) -> None:
    choices = stream(
        server,
        messages=ASK,
        tools=[WEATHER],
        max_tokens=60,
        vllm_xargs=saying(server, "No.</think>I call get_weather later."),
    )
    assert joined(choices, "content") == "I call get_weather later."
    assert not any(c["delta"].get("tool_calls") for c in choices)


def test_unknown_model_is_refused(server: ServerHandle) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, "/v1/completions", model="other", prompt="x")
    caught.value.close()
    assert caught.value.code == 404


def test_listens_on_loopback_only(server: ServerHandle) -> None:
    port = int(server.base_url.rpartition(":")[2])
    listening = [
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if re.search(rf":{port:04X} \S+ 0A ", line)
    ]
    assert listening == [f"0100007F:{port:04X}"]
