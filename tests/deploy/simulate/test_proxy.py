"""The proxy of a simulated split plan, between a client and two small servers."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.deploy.command import Launch
from glm5_ascend.deploy.preflight import free_port
from glm5_ascend.deploy.simulate.proxy import Proxy
from glm5_ascend.deploy.simulate.split import Prefill
from glm5_ascend.errors import ChildFailed
from tests.deploy.processes import running, until

CHAT = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 9}


class Side(ThreadingHTTPServer):
    """Remembers what it was asked; answers with ``status``, streams in two pieces."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.status = name, 200
        self.asked: list[tuple[str, Any]] = []
        self.go_on = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Side

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append((self.path, None))
        self.answer(b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        self.answer(b" more")

    def answer(self, rest: bytes) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(self.server.name.encode())
        self.wfile.flush()
        if rest and self.server.name == "decode":
            self.server.go_on.wait(10)
            self.wfile.write(rest)


@contextmanager
def running_side(name: str) -> Iterator[Side]:
    side = Side(name)
    thread = threading.Thread(target=side.serve_forever, args=(0.02,))
    thread.start()
    yield side
    side.shutdown()
    thread.join()
    side.server_close()


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side, str]]:
    """Prefill, decode, and the proxy's URL."""
    with running_side("prefill") as prefill, running_side("decode") as decode:
        decode.go_on.set()
        proxy = Proxy(0, prefill.server_port, decode.server_port)
        proxy.start()
        yield prefill, decode, f"http://127.0.0.1:{proxy.server_port}"
        proxy.stop()


def ask(url: str, body: Any = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_prompt_goes_to_prefill_and_the_name_of_its_cache_to_decode(
    sides: tuple[Side, Side, str],
) -> None:
    prefill, decode, url = sides
    body = {**CHAT, "stream_options": {"include_usage": True}, "min_tokens": 5}
    assert ask(f"{url}/v1/chat/completions", body) == (200, "decode more")
    ((path, first),) = prefill.asked
    ((same, second),) = decode.asked
    assert path == same == "/v1/chat/completions"
    key = first.pop("kv_transfer_params")["save"]
    assert first == {"messages": CHAT["messages"], "stream": False, "max_tokens": 1}
    assert second == {**body, "kv_transfer_params": {"load": key}}
    assert len(key) == 32
    ask(f"{url}/v1/completions", {"prompt": [1, 2]})
    assert prefill.asked[1][1]["kv_transfer_params"]["save"] != key


def test_pieces_come_at_once(sides: tuple[Side, Side, str]) -> None:
    _, decode, url = sides
    decode.go_on.clear()
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(CHAT).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.read(6) == b"decode"  # while the rest is held back
        decode.go_on.set()
        assert answer.read() == b" more"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [[1], [2]]}),
        ("/v1/completions", {"prompt": "a", "n": 2}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
def test_what_decode_does_alone(
    path: str, body: dict[str, Any], sides: tuple[Side, Side, str]
) -> None:
    prefill, decode, url = sides
    assert ask(url + path, body) == (200, "decode more")
    assert prefill.asked == []
    assert decode.asked == [(path, body)]


def test_errors_reach_the_client(sides: tuple[Side, Side, str]) -> None:
    prefill, decode, url = sides
    assert ask(f"{url}/health")[0] == 200
    prefill.status = 400
    assert ask(f"{url}/v1/chat/completions", CHAT) == (400, "prefill")
    assert not [one for one in decode.asked if one[0] != "/health"]
    assert ask(f"{url}/health")[0] == 503
    assert ask(f"{url}/metrics") == (200, "decode")


def test_sides_that_are_gone() -> None:
    with running_side("prefill") as prefill:
        proxy = Proxy(0, prefill.server_port, free_port())
        proxy.start()
        url = f"http://127.0.0.1:{proxy.server_port}/v1/completions"
        assert ask(url, {"prompt": "a"}) == (502, "decode does not answer")
        proxy.prefill = free_port()
        assert ask(url, {"prompt": "a"}) == (502, "prefill does not answer")
        proxy.stop()


ENGINE = """import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def started(tmp_path: Path, text: str) -> tuple[Prefill, int]:
    (tmp_path / "engine.py").write_text(text)
    port, public = free_port(), free_port()
    head = (sys.executable, str(tmp_path / "engine.py"), str(port))
    launch = Launch({}, head, (), (), {})
    return Prefill(launch, public, port, free_port(), 20), public


def test_prefill_opens_the_proxy_and_ends_with_it(tmp_path: Path) -> None:
    prefill, public = started(tmp_path, ENGINE)
    child = prefill._child
    try:
        prefill.start(lambda: False)
        prefill.watch()
        assert ask(f"http://127.0.0.1:{public}/metrics") == (502, "decode does not answer")
        child._process.kill()
        until(lambda: child.ended)
        with pytest.raises(ChildFailed, match="the prefill engine ended with signal 9"):
            prefill.watch()
    finally:
        prefill.stop()
        prefill.stop()  # once more does no harm
    assert not running(child.pid)


def test_prefill_that_does_not_start(tmp_path: Path) -> None:
    prefill, _ = started(tmp_path, "raise SystemExit(9)")
    try:
        with pytest.raises(ChildFailed, match="exit code 9"):
            prefill.start(lambda: False)
    finally:
        prefill.stop()
