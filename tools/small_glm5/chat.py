"""Seeded synthetic chats: tool calls with random names and short answers about Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from small_glm5.chat_tables import BUILTINS, CITIES, SYLLABLES, WORDS

Tool = dict[str, Any]


def _tool(name: str, description: str, props: dict[str, str]) -> Tool:
    """Return an OpenAI-style function tool; ``props`` maps parameter name to JSON type."""
    schema = {
        "type": "object",
        "properties": {k: {"type": t} for k, t in props.items()},
        "required": list(props),
    }
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _place(rng: random.Random) -> str:
    """A real city or an invented name, so that arguments have to be copied."""
    if rng.random() < 0.5:
        return rng.choice(CITIES)
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()


def _phrase(rng: random.Random) -> str:
    return " ".join(rng.sample(WORDS, rng.randint(1, 3)))


def _weather(rng: random.Random) -> tuple[Tool, str, dict[str, Any], str, str]:
    city, temp = _place(rng), rng.randint(-9, 38)
    ask = rng.choice(
        (
            "What is the weather in {}?",
            "What's the weather like in {}?",
            "Weather in {}, please.",
            "How is the weather in {} today?",
            "Tell me the weather in {}.",
        )
    ).format(city)
    sky = rng.choice(("sunny", "cloudy", "rainy", "windy"))
    tool = _tool("get_weather", "Get the current weather of a city.", {"city": "string"})
    return tool, ask, {"city": city}, f"{temp} C, {sky}", f"It is {temp} C and {sky} in {city}."


def _time(rng: random.Random) -> tuple[Tool, str, dict[str, Any], str, str]:
    city, now = _place(rng), f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    ask = rng.choice(
        ("What time is it in {}?", "Tell me the time in {}.", "Current time in {}?")
    ).format(city)
    tool = _tool("get_time", "Get the local time of a city.", {"city": "string"})
    return tool, ask, {"city": city}, now, f"It is {now} in {city}."


def _add(rng: random.Random) -> tuple[Tool, str, dict[str, Any], str, str]:
    a, b = rng.randint(1, 999), rng.randint(1, 999)
    ask = rng.choice(("What is {} plus {}?", "Add {} and {}.", "Compute {} + {}.")).format(a, b)
    tool = _tool("add", "Add two integers.", {"a": "integer", "b": "integer"})
    return tool, ask, {"a": a, "b": b}, str(a + b), f"The sum is {a + b}."


def _search(rng: random.Random) -> tuple[Tool, str, dict[str, Any], str, str]:
    query, hit = _phrase(rng), _phrase(rng)
    ask = rng.choice(("Search for {}.", "Find {} for me.", "Look up {}.")).format(query)
    tool = _tool("search", "Search the documentation.", {"query": "string"})
    return tool, ask, {"query": query}, hit, f"I found this: {hit}."


KINDS: tuple[Callable[[random.Random], tuple[Tool, str, dict[str, Any], str, str]], ...] = (
    _weather,
    _weather,
    _time,
    _add,
    _search,
)


def tool_chat(rng: random.Random) -> tuple[list[dict[str, Any]], list[Tool], bool]:
    """Return (messages, tools, thinking) of one tool-calling conversation."""
    tool, ask, args, result, answer = rng.choice(KINDS)(rng)
    name = tool["function"]["name"]
    tools = {name: tool}
    for kind in rng.sample(KINDS, rng.choice((0, 0, 1, 1, 2))):
        other = kind(rng)[0]
        tools.setdefault(other["function"]["name"], other)
    listed = list(tools.values())
    rng.shuffle(listed)
    thinking = rng.random() < 0.8
    call: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": args}}],
    }
    final: dict[str, Any] = {"role": "assistant", "content": answer}
    if thinking:
        call["reasoning_content"] = f"I should call {name}."
        final["reasoning_content"] = "The tool has answered."
    messages = [{"role": "user", "content": ask}, call]
    if rng.random() < 0.5:
        messages += [{"role": "tool", "content": result}, final]
    return messages, listed, thinking


def plain_chat(rng: random.Random) -> tuple[list[dict[str, Any]], list[Tool], bool]:
    """Return (messages, no tools, thinking) of a question about a builtin or a greeting."""
    thinking = rng.random() < 0.7
    if rng.random() < 0.12:
        ask = rng.choice(("Hello!", "Hi!", "Hi there.", "Good morning!"))
        answer, thought = "Hello! How can I help you?", "The user greets me."
    else:
        name, what = rng.choice(sorted(BUILTINS.items()))
        ask = rng.choice(
            (
                "What does {}() do in Python?",
                "What does {}() do?",
                "Explain {}() in Python.",
                "What is {} in Python?",
                "How does {}() work in Python?",
            )
        ).format(name)
        answer, thought = f"{name}() {what}.", f"The user asks about {name}()."
    final: dict[str, Any] = {"role": "assistant", "content": answer}
    if thinking:
        final["reasoning_content"] = thought
    messages = [{"role": "user", "content": ask}, final]
    if rng.random() < 0.2:
        messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    return messages, [], thinking


def chat_documents(render: Callable[..., str], count: int, seed: int) -> list[str]:
    """Render ``count`` conversations, each ending with the token that stops generation."""
    rng = random.Random(seed)
    out: list[str] = []
    for _ in range(count):
        messages, tools, _ = (tool_chat if rng.random() < 0.65 else plain_chat)(rng)
        text = render(messages, tools=tools or None, tokenize=False)
        out.append(text + ("<|observation|>" if messages[-1].get("tool_calls") else "<|user|>"))
    return out
