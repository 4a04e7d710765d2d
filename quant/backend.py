"""What carries out the arithmetic of a run: kernels in C++, or torch as the reference."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from glm5_ascend.errors import BackendUnavailable

if TYPE_CHECKING:
    import torch

BackendName = Literal["cpu", "reference"]
DeviceName = Literal["cpu", "cuda", "npu"]


@dataclass(frozen=True, slots=True)
class Backend:
    """How matrices are folded and rounded.

    The kernels (``cpu``) give the same bytes on every processor. The reference works in float64
    with torch, on the CPU or on an accelerator; an NPU has no float64 products and gets float32.

    Attributes:
        name: ``cpu`` or ``reference``.
        device: of the reference.
    """

    name: BackendName = "cpu"
    device: DeviceName = "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """Of the reference's arithmetic."""
        import torch

        return torch.float32 if self.device == "npu" else torch.float64

    @property
    def job(self) -> str:
        """How a journal names it: runs that are resumed must agree in it."""
        return self.name if self.device == "cpu" else f"{self.name} on {self.device}"

    def require(self) -> None:
        """Compile the kernels, or find the device, before any work begins.

        Raises:
            BackendUnavailable: naming what is missing.
        """
        if self.name == "cpu":
            from glm5_ascend.quant.native import require_kernels

            require_kernels()
        elif self.device == "cuda":
            _require_cuda()
        elif self.device == "npu":
            _require_npu()


CPU = Backend()
REFERENCE = Backend("reference")


def chosen(name: BackendName | None, device: DeviceName) -> Backend:
    """The backend of a command line; without a name, the kernels, or the reference on a device.

    Raises:
        BackendUnavailable: the kernels were asked for on a device.
    """
    if name == "cpu" and device != "cpu":
        raise BackendUnavailable(
            f"--backend cpu has no kernels for --device {device}",
            "leave out one of them: the reference runs on a device",
        )
    return Backend(name or ("cpu" if device == "cpu" else "reference"), device)


def _require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise _absent("CUDA device", "torch sees none; this needs torch built for CUDA")


def _require_npu() -> None:
    if find_spec("torch_npu") is None:
        raise _absent("NPU", "torch_npu is not installed")
    import torch_npu

    if not torch_npu.npu.is_available():
        raise _absent("NPU", "torch_npu sees none")


def _absent(what: str, why: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"no {what} to quantise on: {why}", "leave out --device: the CPU kernels need none"
    )
