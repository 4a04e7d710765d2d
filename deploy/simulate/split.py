"""The second half of a simulated split plan: its prefill engine and the proxy."""

from __future__ import annotations

import os
from collections.abc import Callable

from glm5_ascend.console import note
from glm5_ascend.deploy.command import Launch
from glm5_ascend.deploy.serve import GRACE_S
from glm5_ascend.deploy.simulate.proxy import Proxy
from glm5_ascend.deploy.supervise import Child, child_failed, wait_until_ready

_HINT = "its log above says why"


class Prefill:
    """Starts with the decode engine, which ``deploy.serve.foreground`` runs, and ends before it.

    Args:
        launch: of the prefill engine.
        port, prefill, decode: of the proxy and the two engines.
        timeout_s: until it must answer, counted from when decode does.
    """

    def __init__(
        self, launch: Launch, port: int, prefill: int, decode: int, timeout_s: float
    ) -> None:
        self._proxy = Proxy(port, prefill, decode)
        self._url = f"http://127.0.0.1:{prefill}"
        self._public = f"http://127.0.0.1:{port}"
        self._timeout_s = timeout_s
        self._child = Child(launch.command, {**os.environ, **launch.environ}, output=2)

    def start(self, stopped: Callable[[], bool]) -> None:
        """Wait for the prefill engine, then open the proxy.

        Raises:
            ChildFailed: it ended.
            Unhealthy: it does not answer in time.
        """
        code = wait_until_ready(self._child, self._url, self._timeout_s, stopped=stopped)
        if code is not None:
            raise child_failed("the prefill engine", code, _HINT)
        if not stopped():
            self._proxy.start()
            note(f"ready: {self._public}/v1 (prefill and decode, stop with Ctrl-C)")

    def watch(self) -> None:
        """Raise ``ChildFailed`` once the prefill engine has ended."""
        code = self._child.wait(0)
        if code is not None:
            raise child_failed("the prefill engine", code, _HINT)

    def stop(self) -> None:
        """Close the proxy and end the engine with all its processes."""
        self._proxy.stop()
        self._child.stop(GRACE_S)
