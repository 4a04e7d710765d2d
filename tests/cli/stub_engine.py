"""A stand-in for the engine's HTTP server: canned streams and draft counters."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Self

COMPLETION = ["return", " 1", "\n"]
CHAT = [
    {"role": "assistant", "content": ""},
    {"reasoning": "I should call "},
    {"reasoning": "get_weather."},
    {"tool_calls": [{"index": 0, "function": {"name": "get_weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Hangzhou"}'}}]},
]
# Per request four drafted tokens, three of them accepted, over two engines' labels.
COUNTERS = """# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {accepted}.0
vllm:num_requests_running 0.0
"""


class StubEngine:
    """``with StubEngine() as stub`` serves on ``stub.base_url`` until the block ends."""

    status: ClassVar[int] = 200

    def __enter__(self) -> Self:
        self.requests: list[dict[str, object]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.base_url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                count = len(stub.requests)
                self._start()
                self.wfile.write(COUNTERS.format(drafted=4 * count, accepted=3 * count).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.requests.append(body)
                if not self._start():
                    return
                if self.path == "/v1/completions":
                    events = [{"choices": [{"text": text}]} for text in COMPLETION]
                    events.append({"choices": [], "usage": {"completion_tokens": len(COMPLETION)}})
                else:
                    events = [{"choices": [{"delta": delta}]} for delta in CHAT]
                for event in events:
                    time.sleep(0.002)
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")

            def _start(self) -> bool:
                self.send_response(stub.status)
                self.end_headers()
                if stub.status != 200:
                    self.wfile.write(b"the stub refuses")
                return stub.status == 200

            def log_message(self, *_: object) -> None:
                """Keep the test output quiet."""

        return Handler
