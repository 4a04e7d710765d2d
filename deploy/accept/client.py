"""Requests to an OpenAI endpoint. Standard library only; proxy variables are ignored."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from glm5_ascend.errors import Glm5Error, Unhealthy, brief

_LARGEST = 16 << 20


class Refused(Glm5Error):
    """The server answered with a status of 400 to 499, or with something else than JSON."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer.

    Attributes:
        text: what came, thinking included.
        tokens: completion tokens by the server's count.
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
        timeout_s: longest wait for the next bytes.
        key: API key, or nothing.
    """

    url: str
    timeout_s: float = 120.0
    key: str = field(default="", repr=False)

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
            return answer.read(_LARGEST).decode("utf-8", "replace")

    def get_json(self, path: str) -> dict[str, Any]:
        """Object of a GET."""
        return self._object(path, self.get(path))

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Object of a POST."""
        with self._answer("POST", path, body) as answer:
            return self._object(path, answer.read(_LARGEST).decode("utf-8", "replace"))

    def stream(self, path: str, body: Mapping[str, object]) -> Streamed:
        """A streamed POST, to its end."""
        begin = time.monotonic()
        first = last = 0.0
        text, tokens, count = "", 0, 0
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._answer("POST", path, asked) as answer:
            for line in answer:
                name, _, data = line.decode("utf-8", "replace").strip().partition(":")
                if name != "data" or data.strip() == "[DONE]":
                    continue
                event = self._object(path, data)
                piece = _piece(event)
                if piece:
                    last = time.monotonic() - begin
                    first, count, text = first or last, count + 1, text + piece
                usage = event.get("usage")
                if isinstance(usage, dict):
                    tokens = int(usage.get("completion_tokens", 0))
        return Streamed(text, tokens, count, first, last)

    def _object(self, path: str, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
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
            Unhealthy: no connection, it breaks off, or a status from 500.
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
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, f"{parts.path}{path}", data, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                said = brief(answer.read(2000).decode("utf-8", "replace"))
                message = f"{where} answered {answer.status}: {said}"
                if answer.status >= 500:
                    raise Unhealthy(message, "read the log of the server")
                raise Refused(message, "see what the message says; is it an OpenAI endpoint?")
            yield answer
        except (OSError, HTTPException) as error:
            raise Unhealthy(
                f"{where} does not answer: {error or type(error).__name__}",
                "is the server up, and reachable from here?",
            ) from error
        finally:
            connection.close()


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
