"""Who takes part in a measurement, and how the project's own kernels are reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.verify.compare import Figures

Call = Callable[[], Any]
# Judges the result of one input set.
Check = Callable[[int, Any], Figures]


class Absent(Exception):
    """A contestant cannot take part here; the text says why."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A solution that is set up.

    Args:
        calls: one call per input set.
        check: of a call's result.
        version: of the package that it belongs to.
    """

    calls: Sequence[Call]
    check: Check
    version: str = ""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A solution of a problem.

    Args:
        name: unique among those of a problem.
        kind: "project" (the backend's function, arguments checked before), "call" (the public
            operator), "peer" (another project's kernels) or "torch".
        dtype: numbers of its cache rows, keys or weights.
        heads: query heads that it computes, with padding.
        make: sets it up; may raise ``Absent`` or anything else.
    """

    name: str
    kind: str
    dtype: str
    heads: int
    make: Callable[[], Ready]


def backend_call(public: Call) -> Call:
    """The call of the backend's function that ``public``, a call of one operator, ends in.

    It leaves out the checks of arguments, which read lengths and indices on the host.
    """
    found: list[Call] = []
    load = dispatch.load

    class Recorder:
        def __init__(self, module: Any) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Callable[..., Any]:
            function = getattr(self.module, name)

            def call(*arguments: Any, **options: Any) -> Any:
                found.append(lambda: function(*arguments, **options))
                return function(*arguments, **options)

            return call

    def recording(*arguments: Any, **options: Any) -> Any:
        return Recorder(load(*arguments, **options))

    dispatch.load = recording  # type: ignore[assignment]
    try:
        public()
    finally:
        dispatch.load = load
    if len(found) != 1:
        raise RuntimeError(f"the operator called {len(found)} functions of its backend, not one")
    return found[0]


def own(
    make: Callable[[], tuple[Sequence[Call], Check]], dtype: str, heads: int
) -> list[Contestant]:
    """The project's two contestants, its kernels and the public calls.

    ``make`` gives public calls and their judge, with memory of their own for what they write.
    """
    name = f"glm5-ascend {dtype}"

    def kernels() -> Ready:
        publics, check = make()
        return Ready([backend_call(public) for public in publics], check)

    return [
        Contestant(name, "project", dtype, heads, kernels),
        Contestant(f"{name}, public call", "call", dtype, heads, lambda: Ready(*make())),
    ]
