"""C++ kernels for the CPU, compiled where they run; see README.md for how to add one."""

from glm5_ascend.ops.native.library import DTYPES, address, check, library

__all__ = ["DTYPES", "address", "check", "library"]
