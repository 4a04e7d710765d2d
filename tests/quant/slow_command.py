"""The quantize command with pauses between tensors, so that a signal hits unfinished work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from glm5_ascend import cli
from glm5_ascend.quant import work
from tests.quant.killed_runs import SHARD_BYTES

convert = work.convert


def slow(*args: Any) -> Iterator[tuple[str, memoryview]]:
    for item in convert(*args):
        time.sleep(0.01)
        yield item


# Spawned workers import this module too and are slowed down with it.
work.convert = slow

if __name__ == "__main__":
    more = ["--scheme", "w4a8", "--workers", "2", "--shard-size", str(SHARD_BYTES)]
    sys.argv = ["glm5-ascend", "quantize", *sys.argv[1:], *more]
    cli.main()
