"""A small OpenAI endpoint whose answers are right, or wrong in one way that is asked for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import Any

from glm5_ascend.deploy.simulate import MARK
from tests.deploy.http_server import QuietHandler, running

PROSE = (
    "A rolling bicycle stays upright because its front wheel steers into a fall. When the frame"
    " leans to the left, trail and the gyroscopic torque of the wheel turn the fork to the left,"
    " which brings the points of contact back below the centre of mass. The rider adds small"
    " corrections with arms and hips. At walking speed these corrections must be large, while at"
    " higher speed the machine needs almost none of them."
)
WORDS = [f" word{n}" for n in range(128)]
LOOP = " and so on" * 60
ANSWERS = {
    **{"France": "Paris.", "17 times 23": "391", "首都": "北京", "bicycle": PROSE},
    # What the small model says.
    "len()": "len() returns the number of items in a container.",
    "open()": "open() opens a file and returns a file object.",
    "sorted()": "sorted() returns a new sorted list from an iterable.",
    "Hello": "Hello! How can I help you?",
    "class Queue": " self.items.popleft()",
    "class Point": " self.x == other.x and self.y == other.y",
}


class Endpoint(ThreadingHTTPServer):
    """Serves with one fault; ``drafted`` and ``accepted`` grow with each stream."""

    daemon_threads = True

    def __init__(self, fault: str, key: str = "", simulated: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault, self.key = fault, key
        self.names = ["glm", *([MARK] if simulated else [])]
        self.lock = threading.Lock()
        self.streams = 0
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(QuietHandler):
    """One request."""

    server: Endpoint

    def do_GET(self) -> None:
        fault = self.server.fault
        if fault == "web page":
            self.send(200, "<html>hello</html>")
        elif fault == "down":
            self.send(503, "loading")
        elif self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.send(401, '{"error": "Unauthorized"}')
        elif self.path == "/v1/models":
            length = 4096 if fault == "short" else 65_536
            names = [] if fault == "no models" else self.server.names
            models = [{"id": name, "max_model_len": length} for name in names]
            self.send(200, json.dumps({"object": "list", "data": models}))
        elif self.path == "/metrics" and fault != "no metrics":
            self.send(200, self.metrics())
        else:
            self.send(404, '{"detail": "Not Found"}')

    def metrics(self) -> str:
        with self.server.lock:
            drafted = 0 if self.server.fault == "no drafts" else 300 * self.server.streams
        share = 0.05 if self.server.fault == "bad drafts" else 0.75
        name = 'vllm:spec_decode_num_{}_tokens_total{{engine="{}"}} {}\n'
        lines = [name.format("draft", n, 1000 + drafted / 2) for n in (0, 1)]
        # All of it by the first engine, so that a reader who takes one line is wrong.
        lines += [name.format("accepted", n, 10 + drafted * share * (1 - n)) for n in (0, 1)]
        return "# HELP x\n" + "".join(lines)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(body)
        if self.server.fault == "500":
            self.send(500, '{"error": "EngineDeadError"}')
        elif body.get("stream"):
            with suppress(ConnectionError):  # whoever asked may be gone
                self.stream(body)
        elif "tools" in body:
            self.send(200, self.called())
        elif "prompt" in body:
            text = self.said(body["prompt"])
            self.send(200, json.dumps({"choices": [{"text": text}]}))
        else:
            text = self.said(body["messages"][0]["content"])
            message = {"role": "assistant", "content": text}
            self.send(200, json.dumps({"choices": [{"message": message}]}))

    def said(self, question: str) -> str:
        fault = self.server.fault
        text = next((a for word, a in ANSWERS.items() if word in question), "")
        if "code word" in question:
            text = "orange-1" if fault == "lost" else "The code word is amber-7319."
        if fault == "garbled":
            text = "!" * 40
        elif fault == "repeating" and text == PROSE:
            text = PROSE[:100] + LOOP
        elif fault == "wrong" and text == "391":
            text = "392"
        elif fault == "empty":
            text = ""
        elif fault == "repeating code" and text.startswith(" self"):
            text = " self.items" * 12
        elif fault == "wrong code" and text.startswith(" self"):
            text = " None"
        elif fault == "wrong small" and "sorted list" in text:
            text = "sorted() adds up the items of an iterable."
        return text

    def called(self) -> str:
        fault = self.server.fault
        arguments = '{"city": Hangzhou}' if fault == "bad arguments" else '{"city": "Hangzhou"}'
        name = "get_time" if fault == "wrong tool" else "get_weather"
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        message: dict[str, Any] = {"content": None, "tool_calls": [call]}
        if fault == "no tools":
            message = {"content": "<tool_call>get_weather"}
        return json.dumps({"choices": [{"message": message}]})

    def stream(self, body: dict[str, Any]) -> None:
        fault = self.server.fault
        count = body["max_tokens"]
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        words = ["!" for _ in WORDS] if fault == "garbled stream" else WORDS
        if fault == "early end":
            count //= 2
        step = 0.012 if fault == "slow" else 0.0005
        time.sleep(0.5 if fault == "slow start" else 0)
        if fault == "buffered":
            self.event({"choices": [{"delta": {"content": "".join(words[:count])}}]})
        else:
            for number, word in enumerate(words[:count]):
                time.sleep(60 if fault == "stalls" and number == 20 else step)
                piece = {"text": word} if "prompt" in body else {"delta": {"content": word}}
                self.event({"choices": [piece]})
                if fault == "breaks off":
                    self.wfile.write(b'data: {"choi\n\n')
                    return
        self.event({"choices": [], "usage": {"completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")
        with self.server.lock:
            self.server.streams += 1

    def event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def endpoint(fault: str = "", key: str = "", simulated: bool = False) -> Iterator[Endpoint]:
    """Run one while the block runs."""
    server = Endpoint(fault, key, simulated)
    with running(server):
        yield server
