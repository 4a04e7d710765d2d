"""Run a command that ends with the process that started it.

``python -I leash.py PARENT_PID COMMAND…`` asks the kernel to send SIGTERM to this process when its
parent dies, however hard, and then becomes COMMAND: the request survives ``execve``. It is a
separate small program because the alternative, ``preexec_fn``, runs Python code between fork and
exec and may deadlock when the caller has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Tie this process to its parent and become the command; return only on failure."""
    parent, command = int(argv[1]), argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            print(f"warning: cannot tie the child to its parent: {reason}", file=sys.stderr)
    if os.getppid() != parent:  # the parent died before the request was made
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv))
