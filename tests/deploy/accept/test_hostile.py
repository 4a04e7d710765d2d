"""``accept`` against servers that answer what no server should."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from glm5_ascend.deploy.accept import probes
from glm5_ascend.deploy.accept.client import Client, Refused
from glm5_ascend.deploy.accept.questions import GLM5
from glm5_ascend.errors import Unhealthy

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n\r\n"
Send = Callable[[socket.socket], None]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def whole(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def is_whole(request: bytes) -> bool:
    """Whether head and body are there: closing on unread bytes resets the connection."""
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head.lower())
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


@contextmanager
def answering(send: Send) -> Iterator[Client]:
    """A server that reads one request, answers by ``send`` and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    data = connection.recv(65_536)
                    # A hello of TLS, which begins with 22, has no end of this kind.
                    while data[:1] != b"\x16" and not is_whole(data):
                        more = connection.recv(65_536)
                        if not more:
                            return
                        data += more
                    send(connection)
                except OSError:
                    return  # the client has left, as it should

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)
        thread.join(10)
        assert not thread.is_alive(), "the client is still connected"


def saying(answer: bytes) -> Send:
    return lambda connection: connection.sendall(answer)


def forever(head: bytes, piece: bytes, pause_s: float = 0.02) -> Send:
    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)

    return send


@pytest.mark.parametrize(
    "send",
    [
        pytest.param(forever(b"HTTP/1.1 200", b" "), id="status line"),
        pytest.param(forever(OPEN, b" "), id="body"),
        pytest.param(forever(CHUNKED, chunk(b": ping\n\n")), id="comments"),
        pytest.param(forever(CHUNKED, event({"choices": [{"text": "a"}]})), id="text"),
    ],
)
def test_an_answer_without_end_is_cut(send: Send) -> None:
    begin = time.monotonic()
    with answering(send) as client, pytest.raises(Unhealthy, match="not answered within 1 s"):
        client.stream("/x", {})
    assert time.monotonic() - begin < 5


def test_an_answer_of_any_size_is_cut() -> None:
    for head, piece in ((OPEN, b"x" * 1_000_000), (CHUNKED, chunk(b"x" * 1_000_000))):
        send = forever(head, piece, 0)
        with answering(send) as client, pytest.raises(Unhealthy, match="more than 16 MiB"):
            client.get("/x")


TEXT = event({"choices": [{"text": "a"}]})
COUNT = event({"choices": [], "usage": {"completion_tokens": 1}})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (CHUNKED + TEXT, "broke off"),
        (CHUNKED + TEXT + COUNT, "broke off"),  # all of it came, but for the end
        (CHUNKED + b"ff\r\ndata: {", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: {}\n\n", "broke off"),
        (CHUNKED + TEXT + event({"error": {"message": "boom"}}), "error in the stream: .*boom"),
        (b"", "does not answer"),
    ],
)
def test_a_stream_that_breaks_off(answer: bytes, said: str) -> None:
    with answering(saying(answer)) as client, pytest.raises(Unhealthy, match=said):
        client.stream("/x", {})


def test_a_reset_within_an_answer_is_one_that_breaks_off() -> None:
    def reset(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + TEXT)
        time.sleep(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with answering(reset) as client, pytest.raises(Unhealthy, match="broke off"):
        client.stream("/x", {})


@pytest.mark.parametrize("count", ["many", None, [], 1e999, -5, True, 0.5])
def test_a_count_of_tokens_that_is_none(count: object) -> None:
    last = event({"usage": {"completion_tokens": count}})
    with answering(saying(CHUNKED + TEXT + last + b"0\r\n\r\n")) as client:
        assert (client.stream("/x", {}).tokens, client.timeout_s) == (0, 0.2)


def test_json_that_no_parser_survives_is_no_answer() -> None:
    with (
        answering(saying(whole(b"[" * 100_000))) as client,
        pytest.raises(Refused, match="answered"),
    ):
        client.get_json("/x")


def test_a_redirection_is_named_and_not_followed() -> None:
    found = whole(b"", b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/")
    with (
        answering(saying(found)) as client,
        pytest.raises(Refused, match="302: see 'http://elsewhere/'"),
    ):
        client.get("/x")


def test_plain_http_where_tls_is_asked_for() -> None:
    with answering(saying(whole(b"{}"))) as client:
        secure = Client(client.url.replace("http", "https"), timeout_s=0.2)
        with pytest.raises(Unhealthy) as raised:
            secure.get("/x")
    assert "speak TLS" in raised.value.hint


@pytest.mark.parametrize("call", ["x", {"function": "x"}, {"function": None}, {}])
def test_a_tool_call_without_a_function(call: object) -> None:
    body = json.dumps({"choices": [{"message": {"tool_calls": [call]}}]}).encode()
    with answering(saying(whole(body))) as client:
        found = probes.tool_call(client, "m", GLM5)
    assert (found.verdict, found.broken) == (probes.FAIL, False)
    assert "has no function" in found.detail


def test_counters_that_are_no_numbers() -> None:
    text = b"vllm:spec_decode_num_draft_tokens nan\nvllm:spec_decode_num_accepted_tokens 1\n"
    with answering(saying(whole(text))) as client:
        assert probes.counters(client) is None
