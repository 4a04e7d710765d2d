"""What the kernels of this folder compute. Parameters are the inputs' names in KERNEL.toml."""

from torch import Tensor


def scale_add(x: Tensor, y: Tensor) -> Tensor:
    """2.5 x + y in F64, rounded by the comparison's tolerance."""
    return 2.5 * x.double() + y.double()
