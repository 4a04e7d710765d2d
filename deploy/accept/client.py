"""Requests to an OpenAI endpoint. Standard library only; proxy variables are ignored."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from glm5_ascend.errors import Glm5Error, Unhealthy, brief

_LARGEST = 16 << 20
# An answer may take this many times as long as the next bytes may.
_WHOLE = 5


class Refused(Glm5Error):
    """The server answered with a status of 400 to 499, or with something else than JSON."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer.

    Attributes:
        text: what came, thinking included.
        tokens: completion tokens by the server's count, 0 where it gives none.
        pieces: events with text.
        first_s, last_s: seconds from the request to the first and the last of them.
    """

    text: str
    tokens: int
    pieces: int
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Client:
    """One endpoint.

    Attributes:
        url: ``http://HOST:PORT``, without ``/v1``.
        timeout_s: longest wait for the next bytes; an answer is cut after five times that.
        key: API key, or nothing.
    """

    url: str
    timeout_s: float = 120.0
    key: str = field(default="", repr=False)
    _open: set[socket.socket] = field(default_factory=set, init=False, repr=False, compare=False)
    _ended: threading.Event = field(
        default_factory=threading.Event, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, url: str, timeout_s: float = 120.0, key: str = "") -> Client:
        """Read an URL with or without ``/v1``.

        Raises:
            Glm5Error: it is none.
        """
        try:
            parts = urlsplit(url)
            named = bool(parts.hostname) and parts.port != 0
            plain = not (parts.query or parts.fragment or parts.username)
            is_server = named and plain and parts.scheme in ("http", "https")
        except ValueError:
            is_server = False
        if not is_server or not url.isascii() or any(char.isspace() for char in url):
            raise Glm5Error(f"{brief(url)} is no URL of a server", "write http://HOST:PORT")
        return cls(re.sub(r"(/v1)?/*$", "", url), timeout_s, key)

    def get(self, path: str) -> str:
        """Text of a GET."""
        with self._answer("GET", path, None) as answer:
            return b"".join(_pieces(answer)).decode("utf-8", "replace")

    def get_json(self, path: str) -> dict[str, Any]:
        """Object of a GET."""
        return self._object(path, self.get(path))

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Object of a POST."""
        with self._answer("POST", path, body) as answer:
            text = b"".join(_pieces(answer)).decode("utf-8", "replace")
        return self._object(path, text)

    def cut(self) -> None:
        """End every connection, those to come too; whoever reads from one gets ``Unhealthy``."""
        self._ended.set()
        for sock in list(self._open):
            _shut(sock)

    def stream(
        self, path: str, body: Mapping[str, object], came: Callable[[], None] = lambda: None
    ) -> Streamed:
        """A streamed POST, to its end; ``came`` is called for every piece of text.

        Raises:
            Unhealthy: as :meth:`post`, or an error came in the stream.
        """
        begin = time.monotonic()
        first = last = 0.0
        text, tokens = [], 0
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._answer("POST", path, asked) as answer:
            for data in _events(answer):
                event = self._object(path, data)
                if event.get("error"):
                    said = brief(event["error"])
                    message = f"{self.url}{path} sent an error in the stream: {said}"
                    raise Unhealthy(message, "read the log of the server")
                piece = _piece(event)
                if piece:
                    last = time.monotonic() - begin
                    first = first or last
                    text.append(piece)
                    came()
                usage = event.get("usage")
                count = usage.get("completion_tokens") if isinstance(usage, dict) else None
                if type(count) is int:
                    tokens = max(0, count)
        return Streamed("".join(text), tokens, len(text), first, last)

    def _object(self, path: str, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Refused(
                f"{self.url}{path} answered {brief(text)}", "give the URL of an OpenAI endpoint"
            )
        return value

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> Iterator[HTTPResponse]:
        """A 200 answer.

        Raises:
            Unhealthy: no connection, it breaks off, takes too long, or a status from 500.
            Refused: another status.
        """
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = HTTPSConnection if secure else HTTPConnection
        connection = kind(parts.netloc, timeout=self.timeout_s)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        where = f"{self.url}{path}"
        late = threading.Event()
        watch = answer = None
        try:
            connection.connect()
            self._open.add(connection.sock)
            if self._ended.is_set():
                _shut(connection.sock)
            watch = threading.Timer(_WHOLE * self.timeout_s, _cut, (connection.sock, late))
            watch.daemon = True
            watch.start()
            data = None if body is None else json.dumps(body)
            connection.request(method, f"{parts.path}{path}", data, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                said = brief(answer.read(2000).decode("utf-8", "replace"))
                message = f"{where} answered {answer.status}: {said}"
                leads = answer.getheader("Location")
                if 300 <= answer.status < 400 and leads:
                    message = f"{where} answered {answer.status}: see {brief(leads)}"
                    raise Refused(message, "give the URL that answers itself")
                if answer.status >= 500:
                    raise Unhealthy(message, "read the log of the server")
                raise Refused(message, "see what the message says; is it an OpenAI endpoint?")
            yield answer
            if late.is_set():
                raise TimeoutError  # cut, where only the end of the connection ends an answer
            if self._ended.is_set():
                raise ConnectionAbortedError
        except (OSError, HTTPException) as error:
            if late.is_set():
                message = f"{where} has not answered within {_WHOLE * self.timeout_s:g} s"
                raise Unhealthy(message, "read the log of the server, or give --timeout") from error
            said = f"does not answer: {error or type(error).__name__}"
            if isinstance(error, IncompleteRead | ConnectionError) and answer is not None:
                said = "broke off in the middle of an answer"
            raise Unhealthy(f"{where} {said}", _hint(error)) from error
        finally:
            if watch is not None:
                watch.cancel()
            self._open.discard(connection.sock)
            if answer is not None:
                answer.close()  # holds the socket where only its end ends the answer
            connection.close()


def _cut(sock: socket.socket, late: threading.Event) -> None:
    """End a connection under its reader."""
    late.set()
    _shut(sock)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        # Not SSLSocket's own, which takes the session away from the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _hint(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "set SSL_CERT_FILE to the certificate of its authority"
    if isinstance(error, ssl.SSLError):
        return "does the server speak TLS there? Otherwise write http://"
    return "is the server up, and reachable from here?"


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    """The bytes of an answer as they come.

    Raises:
        IncompleteRead: the connection ended before the answer did.
        HTTPException: it is larger than 16 MiB.
    """
    total, size = answer.length, 0
    while total is None or size < total:
        piece = answer.read1(65_536 if total is None else min(65_536, total - size))
        if not piece:
            if total is not None:
                raise IncompleteRead(b"", total - size)
            return
        size += len(piece)
        if size > _LARGEST:
            raise HTTPException(f"more than {_LARGEST >> 20} MiB in one answer")
        yield piece


def _events(answer: HTTPResponse) -> Iterator[str]:
    """Data of the server-sent events of an answer, without the last, ``[DONE]``."""
    rest = b""
    for piece in chain(_pieces(answer), (b"\n",)):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, data = line.decode("utf-8", "replace").strip().partition(":")
            if name == "data" and data.strip() not in ("", "[DONE]"):
                yield data


def first_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The first of an answer's choices; empty where there is none."""
    choices = answer.get("choices")
    found = choices[0] if isinstance(choices, list) and choices else {}
    return found if isinstance(found, dict) else {}


def _piece(event: Mapping[str, Any]) -> str:
    choice = first_choice(event)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return str(choice.get("text") or "")
    thinking = delta.get("reasoning") or delta.get("reasoning_content")
    return str(thinking or delta.get("content") or "")
