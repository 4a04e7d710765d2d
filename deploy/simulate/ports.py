"""Ports of a simulation's engines: free ones, and no other simulation's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from glm5_ascend.deploy.preflight import check_port
from glm5_ascend.deploy.render.place import BEHIND_PROXY
from glm5_ascend.errors import PreflightError

LOOPBACK = "127.0.0.1"
_LAST = 65_535


def planned(public: int, count: int) -> list[int]:
    """The ports that a simulation takes where nothing stands in the way; one engine has the public
    one, several come behind the proxy's."""
    return [public] if count == 1 else [public + BEHIND_PROXY + n for n in range(count)]


@contextmanager
def reserved(public: int, count: int) -> Iterator[list[int]]:
    """Ports of ``count`` engines, kept from other simulations until the end of the block.

    An engine listens on its port minutes after it was chosen, so a port that is free now may be
    another simulation's. A name in Linux's abstract socket space stands for each port that is
    taken, the public one included: it belongs to one process per network namespace, as the port
    does, and vanishes with the process.

    Args:
        public: port of the endpoint.

    Raises:
        PreflightError: the public port is in use or reserved, or no others are free.
    """
    with ExitStack() as kept:
        if not _take(public, kept):
            raise PreflightError(
                f"port {public} belongs to another simulation on this machine",
                "choose another: --port PORT",
            )
        check_port(LOOPBACK, public)
        if count == 1:
            yield [public]
            return
        ports: list[int] = []
        for port in range(public + BEHIND_PROXY, _LAST + 1):
            if len(ports) < count and _is_free(port) and _take(port, kept):
                ports.append(port)
            if len(ports) == count:
                break
        else:
            raise PreflightError(
                f"no {count} ports from {public + BEHIND_PROXY} on are free",
                "choose a lower --port",
            )
        yield ports


def _take(port: int, kept: ExitStack) -> bool:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0glm5-ascend-port-{port}")
    except OSError:
        name.close()
        return False
    kept.enter_context(name)
    return True


def _is_free(port: int) -> bool:
    try:
        check_port(LOOPBACK, port)
    except PreflightError:
        return False
    return True
