"""``python -m glm5_ascend``."""

from __future__ import annotations

from glm5_ascend.cli import main

if __name__ == "__main__":
    main()
