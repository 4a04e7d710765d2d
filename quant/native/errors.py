"""What the kernels cannot do; the torch path can."""

from __future__ import annotations

from glm5_ascend.errors import BackendUnavailable

HINT = "choose the slower path in torch with --backend reference"


class NoKernel(BackendUnavailable):
    """There is no kernel for something that was asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the CPU kernels of the quantiser do not know {what}", HINT)
