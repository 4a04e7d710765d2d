"""The project's own kernels on the emulator."""

from __future__ import annotations

from glm5_ascend.ops.dispatch import OPERATORS
from glm5_ascend.ops.verify.command import operators, verify
from glm5_ascend.ops.verify.report import Report


def is_operator(name: str) -> bool:
    """Whether ``name`` is an operator that the conformance suite knows."""
    return name in OPERATORS and name in operators()


def conformance(name: str, *, quiet: bool) -> Report:
    """The suite's cases of an operator on backend ``emulated``.

    Raises:
        BackendUnavailable: the operator has no kernel, or there is no compiler.
    """
    return verify(["emulated"], [name], "normal", quiet=quiet)
