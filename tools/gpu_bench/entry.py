"""Who takes part in a measurement, and how the project's own kernels are reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


class Constants(TorchFunctionMode):
    """Keeps what a call moves from the host to ``device`` and gives it out at later calls.

    A backend derives small tensors from lengths on the host. An engine does that once per batch, as
    peers make their plans; a CUDA graph cannot hold it.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.kept: list[Tensor] = []
        self._given: int | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        moves = function is torch.tensor or (
            function is torch.Tensor.to and args[0].device.type == "cpu"
        )
        if moves and self._given is not None and self._goes(function, args, options):
            self._given += 1
            return self.kept[self._given - 1]
        made = function(*args, **options)
        if moves and self._given is None and made.device.type == self.device != "cpu":
            self.kept.append(made)
        return made

    def _goes(self, function: Any, args: Any, options: Mapping[str, Any]) -> bool:
        """Whether a move ends on the device; ``to`` may name it, or a tensor of it."""
        for value in (*(args[1:]), *options.values()):
            where = value.device if isinstance(value, Tensor) else value
            if isinstance(where, torch.device | str):
                return torch.device(where).type == self.device
        return False

    def around(self, call: Call) -> Call:
        """``call``, whose first run fills ``kept``.

        Raises:
            RuntimeError: of a later run that moves another number of tensors.
        """

        def run() -> Any:
            if self._given is None:
                self.kept.clear()  # of a first run that failed
            else:
                self._given = 0
            with self:
                result = call()
            if self._given not in (None, len(self.kept)):
                raise RuntimeError(f"{self._given} tensors were moved, {len(self.kept)} at first")
            self._given = 0
            return result

        return run


def backend_call(public: Call, device: str = "cuda") -> Call:
    """The call of the backend's function that ``public``, a call of one operator, ends in.

    It leaves out the checks of arguments, which read lengths and indices on the host, and derives
    what it needs from lengths at its first run only.
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
    return Constants(device).around(found[0])


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
