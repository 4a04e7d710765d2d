"""An HTTP server in the place of an engine, which hands its next piece out when it is told to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer

from tests.deploy.http_server import QuietHandler, running


class Engine(ThreadingHTTPServer):
    """Answers ``/health``, ``/healthcheck``, ``/v1/...`` and ``/metrics``.

    A stream sends a piece whenever ``go`` is released; ``seen`` are the first lines, ``headers``
    those of the last request, ``connections`` the addresses that requests came from.
    """

    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((address, port), Handler)
        self.go = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.broken = threading.Event()
        self.seen: list[str] = []
        self.headers: dict[str, str] = {}
        self.connections: set[tuple[str, int]] = set()
        self.bytes = 0
        self.delay = threading.Event()
        self.wait_s = 0.0
        self.open: set[socket.socket] = set()

    def server_close(self) -> None:
        """Also end the connections that are kept, as a process that dies does."""
        super().server_close()
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Handler(QuietHandler):
    """One connection."""

    server: Engine

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def note(self) -> None:
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.connections.add(self.client_address)

    def do_GET(self) -> None:
        self.note()
        self.send(200, f"this is {self.path}")

    def do_POST(self) -> None:
        self.note()
        left = int(self.headers["Content-Length"])
        data = b""
        while left:
            piece = self.rfile.read1(left)
            if not piece:
                return
            left -= len(piece)
            data += piece
            self.server.arrived.release()
        self.server.bytes = len(data)
        if self.server.wait_s:
            self.server.delay.wait(self.server.wait_s)
        body = json.loads(data)
        if body.get("stream"):
            self.stream(body["pieces"])
        else:
            self.send(int(body.get("status", 200)), json.dumps({"echo": len(data)}))

    def stream(self, pieces: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number in range(pieces):
                assert self.server.go.acquire(timeout=20)
                event = f"data: {number}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.broken.set()
            self.close_connection = True


# Between the servers of a split plan ports up to this one are taken.
_ABOVE_OWN = 36_200


@contextmanager
def engine(address: str = "127.0.0.1", port: int = 0) -> Iterator[Engine]:
    """Run one while the block runs, at a port that a split plan lets its proxy have."""
    server = Engine(address, port)
    while not port and server.server_port < _ABOVE_OWN:
        server.server_close()
        server = Engine(address, port)
    with running(server):
        yield server
