"""A real nginx with the configuration that ``endpoint`` writes, and a client of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from glm5_ascend.cli import cli

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
OPENSSL = shutil.which("openssl")
MISSING = "nginx and openssl are not installed" if not (NGINX and OPENSSL) else ""


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *(OPENSSL or "", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Gate:
    """A running nginx."""

    folder: Path
    port: int
    cert: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> str:
        """The key of the first client."""
        return self.keys()[0]

    def keys(self) -> list[str]:
        """Keys in their order."""
        return re.findall(r'"Bearer (\w+)"', (self.folder / "api_keys.map").read_text())

    def connect(self) -> HTTPSConnection:
        """A connection whose certificate is verified."""
        context = ssl.create_default_context(cafile=self.cert)
        return HTTPSConnection("localhost", self.port, timeout=20, context=context)

    def ask(
        self, path: str, body: Any = None, key: str | None = "", **headers: str
    ) -> tuple[HTTPResponse, bytes]:
        """One request; ``key`` None sends none, by default it is the first client's."""
        connection = self.connect()
        if key is not None:
            headers["Authorization"] = f"Bearer {key or self.key}"
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data, headers)
        response = connection.getresponse()
        found = response.read()
        connection.close()
        return response, found

    def ask_and_log(self, logged: int, path: str, *words: Any, **headers: str) -> HTTPResponse:
        """:meth:`ask`, and wait until the request is over for nginx, ``logged`` lines after all."""
        response, _ = self.ask(path, *words, **headers)
        self.audit(logged)
        return response

    def audit(self, wanted: int) -> list[dict[str, Any]]:
        """Lines of the audit log, once there are as many."""
        for _ in range(200):
            lines = (self.folder / "logs" / "audit.log").read_text().splitlines()
            if len(lines) >= wanted:
                break
            time.sleep(0.02)
        return [json.loads(line) for line in lines]

    def logged(self) -> str:
        """Everything in the logs."""
        return "".join(path.read_text() for path in (self.folder / "logs").iterdir())

    def reload(self) -> None:
        """Read the configuration again."""
        assert self.process is not None
        self.process.send_signal(1)


def configured(plan: Path, folder: Path, engine_port: int, *words: str) -> Gate:
    """Files of ``endpoint`` for engines at a port, with nginx on a free one."""
    folder.mkdir()
    (folder / "logs").mkdir()
    cert, key = certificate(folder)
    gate = Gate(folder, free_port(), cert)
    done = CliRunner().invoke(
        cli,
        [
            *("endpoint", str(plan), "--out", str(folder), "--port", str(engine_port)),
            *("--listen", str(gate.port), "--cert", str(cert), "--cert-key", str(key)),
            *("--logs", str(folder / "logs"), *words),
        ],
    )
    assert done.exit_code == 0, done.output
    if os.getuid():
        # Its default folders belong to root.
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        lines = "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        text = (folder / "nginx.conf").read_text().replace("http {\n", f"http {{\n{lines}", 1)
        (folder / "nginx.conf").write_text(text)
    return gate


def command(gate: Gate, *words: str) -> list[str]:
    """nginx with the configuration, its process file and its folders in ours."""
    return [
        *(NGINX or "", "-c", str(gate.folder / "nginx.conf")),
        *("-g", f"daemon off; pid {gate.folder}/nginx.pid;", *words),
    ]


@contextmanager
def running(
    plan: Path,
    folder: Path,
    engine_port: int,
    *words: str,
    change: Callable[[str], str] = lambda text: text,
) -> Iterator[Gate]:
    """Start it, wait until it listens, and stop it; ``change`` edits nginx.conf before."""
    gate = configured(plan, folder, engine_port, *words)
    (folder / "nginx.conf").write_text(change((folder / "nginx.conf").read_text()))
    with (folder / "stderr").open("wb") as stderr:
        gate.process = subprocess.Popen(command(gate), stderr=stderr)
    try:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", gate.port)) == 0:
                    break
            assert gate.process.poll() is None, (folder / "stderr").read_text()
            time.sleep(0.02)
        yield gate
    finally:
        gate.process.terminate()
        gate.process.wait(20)
