"""The proxy of a simulated split plan: a prompt to prefill, then its cache's name to decode."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_GENERATES = ("/v1/completions", "/v1/chat/completions")
_NOT_FOR_PREFILL = ("stream_options", "min_tokens", "max_completion_tokens")
_LARGEST = 64 << 20
_TIMEOUT_S = 600.0
_PIECE = 1 << 16


def transferable(path: str, body: Mapping[str, Any]) -> bool:
    """Whether a request makes one sequence from one prompt; others are computed by decode alone."""
    prompt = body.get("prompt", "")
    single = isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and all(isinstance(one, int) for one in prompt)
    )
    return path in _GENERATES and single and body.get("n") in (None, 1)


def for_prefill(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The request that only computes the prompt and saves its cache under ``key``."""
    kept = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
    return {**kept, "max_tokens": 1, "stream": False, "kv_transfer_params": {"save": key}}


class Proxy(ThreadingHTTPServer):
    """Listens on 127.0.0.1:``port`` from its making, answers from :meth:`start` on."""

    daemon_threads = True

    def __init__(self, port: int, prefill: int, decode: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.prefill, self.decode = prefill, decode
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)

    def start(self) -> None:
        """Answer requests in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        """Models, metrics and health are decode's; health is of both."""
        if self.path == "/health":
            connection, answer = self._ask(self.server.prefill, None)
            connection.close()
            if answer is None or answer.status != 200:
                self._reply(503, b"prefill is not healthy")
                return
        self._pass_on(self.server.decode, None)

    def do_POST(self) -> None:
        """A request goes to prefill first, where it can, then to decode."""
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit() and int(size) <= _LARGEST):
            self._reply(411, b"Content-Length is missing or too large")
            return
        data = self.rfile.read(int(size))
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if isinstance(body, dict) and transferable(self.path, body):
            key = uuid.uuid4().hex
            if not self._prefilled(for_prefill(body, key)):
                return
            data = json.dumps({**body, "kv_transfer_params": {"load": key}}).encode()
        self._pass_on(self.server.decode, data)

    def _prefilled(self, body: Mapping[str, Any]) -> bool:
        """Whether prefill computed the prompt; if not, the client has its answer."""
        connection, answer = self._ask(self.server.prefill, json.dumps(body).encode())
        try:
            if answer is None:
                self._reply(502, b"prefill does not answer")
                return False
            said = answer.read()
            if answer.status != 200:
                self._reply(answer.status, said, answer.getheader("Content-Type"))
            return answer.status == 200
        except (OSError, HTTPException):
            self._reply(502, b"prefill broke off")
            return False
        finally:
            connection.close()

    def _ask(self, port: int, data: bytes | None) -> tuple[HTTPConnection, HTTPResponse | None]:
        connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        names = ("Content-Type", "Authorization", "Accept")
        headers = {name: self.headers[name] for name in names if name in self.headers}
        try:
            connection.request(self.command, self.path, data, headers)
            return connection, connection.getresponse()
        except (OSError, HTTPException):
            return connection, None

    def _pass_on(self, port: int, data: bytes | None) -> None:
        """Give the client the answer in the pieces in which it comes."""
        connection, answer = self._ask(port, data)
        try:
            if answer is None:
                self._reply(502, b"decode does not answer")
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "text/plain")
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := answer.read1(_PIECE):
                self.wfile.write(piece)
                self.wfile.flush()
        except (OSError, HTTPException):
            self.close_connection = True  # one of both sides is gone: the answer ends here
        finally:
            connection.close()

    def _reply(self, status: int, text: bytes, kind: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
