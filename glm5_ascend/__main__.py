"""``glm5-ascend`` and ``python -m glm5_ascend``; interrupted while modules load, it says so too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits."""
    try:
        from glm5_ascend.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
