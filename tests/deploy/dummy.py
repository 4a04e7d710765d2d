"""A stand-in for an engine: ``python dummy.py BEHAVIOUR…`` with a process tree of its own.

Behaviours, in any order: ``stubborn`` ignores SIGTERM and SIGINT, ``children`` starts two
grandchildren (one of them stubborn), ``orphan`` leaves them and exits, ``http=PORT`` answers
/health, ``sick=PORT`` answers it with 503, ``exit=N`` ends at once with code N, ``kill`` ends by
SIGKILL, ``quiet`` prints nothing.
"""

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer


class Health(BaseHTTPRequestHandler):
    """Answers every GET with the status of the class."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(words: list[str]) -> int:
    options = dict(word.partition("=")[::2] for word in words)
    if "stubborn" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "children" in options or "orphan" in options:
        for behaviour in ("stubborn", "plain"):
            subprocess.Popen([sys.executable, "-S", __file__, behaviour, "quiet"])
    if "quiet" not in options:
        print("dummy engine:", *words, flush=True)
    if "kill" in options:
        os.kill(os.getpid(), signal.SIGKILL)
    if "orphan" in options:
        return 0
    if "exit" in options:
        return int(options["exit"])
    for name, status in (("http", 200), ("sick", 503)):
        if name in options:
            Health.status = status
            HTTPServer(("127.0.0.1", int(options[name])), Health).serve_forever()
    time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
