"""The servers of a node where every data-parallel rank is one (``serve --plan --external-dp``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from glm5_ascend.console import note
from glm5_ascend.deploy.command import Launch
from glm5_ascend.deploy.render.proxy import Proxy
from glm5_ascend.deploy.serve import GRACE_S
from glm5_ascend.deploy.supervise import Child, child_failed, wait_until_ready

_HINT = "its log above says why; the ranks of a server end together"


class OtherRanks:
    """All ranks of a node but the first, which ``deploy.serve.foreground`` runs, and the proxy.

    They start at once: the first answers only when the whole group has met.

    Args:
        launches: of the ranks, with the URL of each.
        proxy: of this node, or None.
        timeout_s: until a rank must answer, counted from when the one before it does.
    """

    def __init__(
        self, launches: Sequence[tuple[Launch, str]], proxy: Proxy | None, timeout_s: float
    ) -> None:
        self._urls = [url for _, url in launches]
        self._proxy = proxy
        self._timeout_s = timeout_s
        self._children: list[Child] = []
        try:
            for launch, _ in launches:
                environ = {**os.environ, **launch.environ}
                self._children.append(Child(launch.command, environ, output=2))
        except BaseException:
            self.stop()
            raise

    def start(self, stopped: Callable[[], bool]) -> None:
        """Wait for the ranks, then start the proxy.

        Raises:
            ChildFailed: one of them, or the proxy, has ended.
            Unhealthy: one does not answer in time.
        """

        def halted() -> bool:
            self.watch()
            return stopped()

        for slot, (child, url) in enumerate(zip(self._children, self._urls, strict=True), start=1):
            code = wait_until_ready(child, url, self._timeout_s, stopped=halted)
            if code is not None:
                raise child_failed(f"rank {slot} of this server", code, _HINT)
        if stopped():
            return
        if self._proxy is None:
            note(f"ready: {len(self._children) + 1} ranks (stop with Ctrl-C)")
        else:
            self._proxy.start(halted)

    def watch(self) -> None:
        """Raise ``ChildFailed`` once a rank or the proxy has ended."""
        for slot, child in enumerate(self._children, start=1):
            code = child.wait(0)
            if code is not None:
                raise child_failed(f"rank {slot} of this server", code, _HINT)
        if self._proxy is not None:
            self._proxy.watch()

    def stop(self) -> None:
        """End the proxy, then the ranks, all at once."""
        if self._proxy is not None:
            self._proxy.stop()
        if self._children:
            with ThreadPoolExecutor(len(self._children)) as pool:
                list(pool.map(lambda child: child.stop(GRACE_S), self._children))
