"""Errors of the emulator."""

from __future__ import annotations

from glm5_ascend.errors import Glm5Error


class KernelSourceError(Glm5Error):
    """A kernel does not compile for the emulator."""


class LaunchError(Glm5Error):
    """A kernel cannot be launched with these arguments."""


class KernelHazard(Glm5Error, RuntimeError):
    """The emulator found a fault, so that what the kernel wrote is no result."""


class SidecarError(Glm5Error):
    """A KERNEL.toml is missing, unreadable or contradictory."""
