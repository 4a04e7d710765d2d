"""Starting the proxy in front of prefill and decode: where it runs, what it waits for, how it ends.

It is vllm-ascend's ``load_balance_proxy_server_example.py``, the one for connectors that pull a
cache (``*_layerwise_*`` is for MooncakeLayerwiseConnector, which is not rendered). It takes one
host and port per API endpoint and has ``/healthcheck``; it refuses no request for an instance that
is still loading, so it is started once every instance answers ``/health``.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.console import note
from glm5_ascend.deploy.health import healthy
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.nodes import READY_S, api_servers, proxy_words
from glm5_ascend.deploy.render.place import Place, is_split
from glm5_ascend.deploy.supervise import Child, child_failed
from glm5_ascend.errors import PreflightError, Unhealthy

# Proxies of the site's network must not stand between the servers.
FOREIGN = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_UNSET = f"unset {' '.join(FOREIGN)}\n"
_POLL_S = 2.0
_GRACE_S = 10.0
# Runs with nothing but Python's library. Arguments: seconds, number of the engine's process (0 for
# none), the instances, --, the command.
_START = """\
import os, subprocess, sys, time, urllib.request
limit, engine, end = float(sys.argv[1]), sys.argv[2], sys.argv.index("--")
urls, command = sys.argv[3:end], sys.argv[end + 1 :]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def ended():
    if engine == "0":
        return False
    try:
        with open("/proc/" + engine + "/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True

start, said = time.monotonic(), 0.0
while urls:
    try:
        opener.open(urls[0] + "/health", timeout=5).close()
        urls.pop(0)
        continue
    except (OSError, ValueError):
        waited = time.monotonic() - start
    if ended():
        sys.exit()
    if waited > limit:
        sys.exit("proxy: not started, no answer from " + " ".join(urls))
    if waited - said > 60:
        said = waited
        print("proxy: waiting for", *urls, file=sys.stderr)
    time.sleep(2)
if engine == "0":
    os.execvp(command[0], command)
proxy = subprocess.Popen(command)
while proxy.poll() is None and not ended():
    time.sleep(1)
if proxy.poll() is None:
    proxy.terminate()
else:
    sys.exit("proxy: ended with code %d" % proxy.returncode)
"""


def proxy_node(plan: Plan) -> int | None:
    """The server that runs the proxy: the first of the first prefill instance; None without one."""
    first = next((role for role in plan.roles if role.role == "prefill"), None)
    return first.nodes[0] if first else None


def endpoints(plan: Plan, place: Place, hosts: Mapping[int, str] | None = None) -> list[str]:
    """Base URL of every API server behind the proxy, prefill first.

    Args:
        hosts: name of each instance's first server, where it is not its address.
    """
    found = api_servers(plan, place, hosts) if is_split(plan) else []
    return [
        f"http://{host}:{port}"
        for side in ("prefill", "decode")
        for role, host, port in found
        if role == side
    ]


def waiting_body(words: Sequence[str], urls: Sequence[str]) -> str:
    """What a shell does on a machine of its own: wait for the instances, then become the proxy."""
    return f"set -eu\n{_UNSET}exec {_starter(words, urls, '0')}\n"


def beside_engine(words: Sequence[str], urls: Sequence[str]) -> str:
    """Shell text that starts the proxy in the background; it ends with the shell's process.

    The shell becomes the engine by ``exec``, so its number is the engine's.
    """
    about = "# The proxy: it waits for every instance, and ends with the engine of this server.\n"
    return f"{about}(\n{_UNSET}exec {_starter(words, urls, '$$')}\n) &\n"


def _starter(words: Sequence[str], urls: Sequence[str], engine: str) -> str:
    rows = [f"python3 -c {shlex.quote(_START)} {READY_S} {engine}", *map(shlex.quote, urls), "--"]
    for word in words:
        if word == words[0] or word.startswith("--"):
            rows.append(shlex.quote(word))
        else:
            rows[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(rows)


@dataclass(slots=True)
class Proxy:
    """The proxy of ``serve --plan``, started beside the engine of its server.

    Attributes:
        words: its command; the first is replaced by this Python.
        urls: the instances that must answer before it starts.
        url: where it will answer itself.
    """

    words: Sequence[str]
    urls: Sequence[str]
    url: str
    timeout_s: float
    _child: Child | None = field(default=None, init=False)

    @classmethod
    def of(cls, plan: Plan, place: Place, number: int, timeout_s: float) -> Proxy | None:
        """The proxy that node ``number`` runs; None where it runs none."""
        if proxy_node(plan) != number:
            return None
        words, urls = proxy_words(plan, place), endpoints(plan, place)
        return cls(words, urls, f"http://127.0.0.1:{place.port}", timeout_s)

    def check(self) -> None:
        """Raise ``PreflightError`` where its script is missing."""
        if not Path(self.words[1]).is_file():
            raise PreflightError(
                f"the proxy of vllm-ascend is missing: {self.words[1]}",
                "run inside the vllm-ascend image, or give its path with --proxy-script",
            )

    def start(self, stopped: Callable[[], bool]) -> None:
        """Wait for every instance, start, wait for ``/healthcheck``; return early once stopped.

        Raises:
            Unhealthy: an instance, or the proxy itself, does not answer in time.
            ChildFailed: it ended.
        """
        end = time.monotonic() + self.timeout_s
        waiting, said = list(self.urls), ""
        while waiting and not stopped():
            if healthy(waiting[0], timeout_s=5.0):
                waiting.pop(0)
                continue
            if said != waiting[0]:
                said = waiting[0]
                note(f"the proxy waits for {said}/health")
            _pause(stopped, end, f"{said} does not answer, so the proxy was not started")
        if stopped():
            return
        environ = {name: text for name, text in os.environ.items() if name not in FOREIGN}
        self._child = Child([sys.executable, *self.words[1:]], environ, output=2)
        while not stopped() and not healthy(self.url, path="/healthcheck"):
            self.watch()
            _pause(stopped, end, "the proxy does not answer at /healthcheck", 0.5)
        if not stopped():
            note(f"ready: {self.url}/v1 (the whole plan, stop with Ctrl-C)")

    def watch(self) -> None:
        """Raise ``ChildFailed`` when it has ended."""
        code = self._child.wait(0) if self._child else None
        if code is not None:
            raise child_failed("the proxy", code, "its log above says why")

    def stop(self) -> None:
        """End it and everything it started."""
        if self._child:
            self._child.stop(_GRACE_S)


def _pause(stopped: Callable[[], bool], end: float, message: str, seconds: float = _POLL_S) -> None:
    if time.monotonic() > end:
        raise Unhealthy(message, "read the logs of the other servers")
    rest = min(time.monotonic() + seconds, end + 0.1)
    while time.monotonic() < rest and not stopped():
        time.sleep(0.1)
