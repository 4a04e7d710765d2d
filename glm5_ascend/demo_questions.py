"""The two questions of the demo: a completion and a chat with a tool, streamed to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from glm5_ascend.console import note
from glm5_ascend.demo_http import Piece, pieces, stream

# Ends without a line break: the tokenizer joins it with the indentation that follows.
COMPLETION = '''class Stack:
    """A last-in, first-out container."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Add an item."""
        self.items.append(item)

    def pop(self):'''
QUESTION = "What is the weather in Hangzhou?"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def ask(base_url: str, model: str) -> list[dict[str, str]]:
    """Ask for a completion and for a tool call; print the answers as they arrive, on stderr."""
    greedy = {"model": model, "temperature": 0}
    note("    asking POST /v1/completions to go on with this code:")
    sys.stderr.write(COMPLETION)
    body = {**greedy, "prompt": COMPLETION, "max_tokens": 64}
    code = _print_pieces(pieces(stream(base_url, "/v1/completions", body)))
    note(f"    asking POST /v1/chat/completions, with a tool get_weather: {QUESTION}")
    message = {"role": "user", "content": QUESTION}
    body = {**greedy, "messages": [message], "tools": [TOOL], "max_tokens": 96}
    chat = _print_pieces(pieces(stream(base_url, "/v1/chat/completions", body)))
    return [{"prompt": COMPLETION, **code}, {"prompt": QUESTION, **chat}]


def _print_pieces(answer: Iterator[Piece]) -> dict[str, str]:
    """Print pieces as they arrive, a label before each change of kind; return them joined."""
    joined: dict[str, str] = {}
    kind = "text"
    for piece in answer:
        if piece.kind != kind:
            sys.stderr.write(f"\n[{piece.kind}] ")
            kind = piece.kind
        joined[piece.kind] = joined.get(piece.kind, "") + piece.text
        sys.stderr.write(piece.text)
        sys.stderr.flush()
    sys.stderr.write("\n")
    return joined
