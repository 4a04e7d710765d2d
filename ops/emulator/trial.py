"""Runs the kernel of a KERNEL.toml and compares its outputs with the reference."""

from __future__ import annotations

import ctypes
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.console import format_bytes
from glm5_ascend.errors import DoesNotFit
from glm5_ascend.ops.emulator.abi import Role
from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.errors import SidecarError
from glm5_ascend.ops.emulator.launch import Buffer, Options, Value, launch
from glm5_ascend.ops.emulator.report import Order, Report
from glm5_ascend.ops.emulator.sidecar import Argument, Sidecar

_FIELD_TYPES = {
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """An output that is not the reference: ``wrong`` of ``total`` elements, the worst at ``at``."""

    output: str
    wrong: int
    total: int
    at: tuple[int, ...]
    got: float
    want: float

    def __str__(self) -> str:
        place = ", ".join(map(str, self.at))
        return (
            f"{self.output}: {self.wrong} of {self.total} elements differ, "
            f"the worst at [{place}]: {self.got:.9g}, reference {self.want:.9g}"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One launch."""

    name: str
    report: Report
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Neither a finding nor a difference."""
        return self.report.clean and not self.differences


class Trial:
    """A compiled kernel with its inputs and the reference's outputs."""

    def __init__(self, sidecar: Sidecar, seed: int, *, sanitize: bool = False) -> None:
        """Compile the kernel, make inputs from ``seed`` and call the reference.

        Raises:
            KernelSourceError: the kernel does not compile.
            SidecarError: the functions that the file names are missing, or return something else
                than the arguments ask for.
            DoesNotFit: the arguments are too large for this machine.
        """
        self._sidecar = sidecar
        _refuse_too_large(sidecar)
        kernel = Kernel(sidecar.kernel, sidecar.kernel, sidecar.core)
        self.library: Library = build(
            sidecar.source, [kernel], defines=sidecar.defines, sanitize=sanitize
        )
        self._given = _given(sidecar, seed)
        self._want = _want(sidecar, self._given)

    def run(self, name: str, options: Options) -> Result:
        """Launch once."""
        tensors = {
            a.name: self._given[a.name].clone()
            if a.name in self._given
            else torch.zeros(a.shape, dtype=getattr(torch, a.dtype))
            for a in self._sidecar.arguments
            if a.shape
        }
        arguments = [_passed(a, tensors) for a in self._sidecar.arguments]
        options = replace(options, timeout=self._sidecar.timeout)
        with _stdout_to_stderr():
            report = launch(
                self.library,
                self._sidecar.kernel,
                arguments,
                blocks=self._sidecar.blocks,
                options=options,
            )
        differences = [
            difference
            for output, want in self._want.items()
            if (difference := self._compare(output, tensors[output], want)) is not None
        ]
        return Result(name, report, tuple(differences) if report.clean else ())

    def mutants(self, options: Options, orders: Sequence[Order]) -> list[Order]:
        """Those of ``orders`` whose absence nobody notices."""
        return [
            order
            for order in orders
            if self.run("mutant", replace(options, disabled=order)).report.clean
        ]

    def _compare(self, name: str, got: Tensor, want: Tensor) -> Difference | None:
        a, b = got.double(), want.double()
        off = (a - b).abs()
        limit = self._sidecar.absolute + self._sidecar.relative * b.abs()
        right = (off <= limit) | (a == b) | (a.isnan() & b.isnan())
        wrong = int((~right).sum())
        if wrong == 0:
            return None
        score = torch.where(right, -1.0, (off - limit).nan_to_num(nan=torch.inf))
        worst = int(score.argmax())
        at = torch.unravel_index(torch.tensor(worst), a.shape)
        return Difference(
            name,
            wrong,
            a.numel(),
            tuple(int(i) for i in at),
            float(a.flatten()[worst]),
            float(b.flatten()[worst]),
        )


def _refuse_too_large(sidecar: Sidecar) -> None:
    # Inputs, their copy for a launch, the emulator's GM, and the reference in F64.
    need = 4 * sum(argument.bytes for argument in sidecar.arguments)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > memory:
        raise DoesNotFit(
            f"{sidecar.path}: the arguments need {format_bytes(need)}, four times their size, "
            f"of {format_bytes(memory)}",
            "give smaller shapes",
        )


def _passed(argument: Argument, tensors: Mapping[str, Tensor]) -> Buffer | Value:
    if argument.role is Role.WORKSPACE:
        return Buffer(argument.name, Role.WORKSPACE, None, argument.size)
    if argument.role is not Role.VALUE:
        return Buffer(argument.name, argument.role, tensors[argument.name])
    names = [(f"_{i}", _FIELD_TYPES[field.dtype]) for i, field in enumerate(argument.fields)]
    structure = type("Value", (ctypes.Structure,), {"_fields_": names})
    value: ctypes.Structure = structure(*(field.value for field in argument.fields))
    return value


def _given(sidecar: Sidecar, seed: int) -> dict[str, Tensor]:
    """Inputs: from the file's function where it names one, at random for the others."""
    named: Mapping[str, Any] = {}
    if sidecar.inputs is not None:
        named = _call(sidecar, "inputs", sidecar.inputs, {"seed": seed})
        if not isinstance(named, Mapping):
            raise _wrong(sidecar, "inputs", "returns no mapping of names to tensors")
    generator = torch.Generator().manual_seed(seed)
    given = {}
    for argument in sidecar.arguments:
        if argument.role not in (Role.INPUT, Role.INOUT):
            continue
        value = named.get(argument.name)
        tensor = (
            _random(argument, generator)
            if value is None
            else _tensor(sidecar, "inputs", argument, value)
        )
        given[argument.name] = _expected(sidecar, "inputs", argument, tensor).contiguous()
    return given


def _tensor(sidecar: Sidecar, key: str, argument: Argument, value: object) -> Tensor:
    """What a function of the user's gives as one argument."""
    try:
        return torch.as_tensor(value).detach().to_dense().cpu()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        kind = type(value).__name__
        raise _wrong(sidecar, key, f"gives {argument.name} as {kind}, not as a tensor") from None


def _random(argument: Argument, generator: torch.Generator) -> Tensor:
    shape, dtype = argument.shape, getattr(torch, argument.dtype)
    if argument.values == "zeros":
        return torch.zeros(shape, dtype=dtype)
    if argument.values == "ones":
        return torch.ones(shape, dtype=dtype)
    if argument.values == "arange":
        count = int(torch.Size(shape).numel())
        return torch.arange(count, dtype=torch.float64).reshape(shape).to(dtype)
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -100
        return torch.randint(low, 100, shape, generator=generator).to(dtype)
    draw = torch.randn if argument.values == "normal" else torch.rand
    return draw(shape, generator=generator).to(dtype)


def _want(sidecar: Sidecar, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if sidecar.reference is None:
        return {}
    outputs = [a for a in sidecar.arguments if a.role in (Role.OUTPUT, Role.INOUT)]
    copies = {name: tensor.clone() for name, tensor in given.items()}
    result = _call(sidecar, "reference", sidecar.reference, copies)
    values = list(result) if isinstance(result, tuple | list) else [result]
    if len(values) != len(outputs):
        raise _wrong(sidecar, "reference", f"returns {len(values)} values, not {len(outputs)}")
    return {
        a.name: _expected(
            sidecar, "reference", a, _tensor(sidecar, "reference", a, value), exact=False
        )
        for a, value in zip(outputs, values, strict=True)
    }


def _expected(
    sidecar: Sidecar, key: str, argument: Argument, tensor: Tensor, *, exact: bool = True
) -> Tensor:
    right_type = not exact or tensor.dtype == getattr(torch, argument.dtype)
    right_type = right_type and not tensor.is_complex()
    if tuple(tensor.shape) != argument.shape or not right_type:
        got = f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
        want = f"{argument.dtype} {list(argument.shape)}"
        raise _wrong(sidecar, key, f"gives {argument.name} as {got}, the file says {want}")
    return tensor


def _call(sidecar: Sidecar, key: str, where: tuple[Path, str], available: Mapping[str, Any]) -> Any:
    """Call a function of the user's file with those of ``available`` that it takes."""
    path = where[0]
    try:
        with _stdout_to_stderr():
            return _called(sidecar, key, where, available)
    except SidecarError:
        raise
    # SystemExit too: the file's exit code is not this program's.
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = frame.lineno if frame.filename == str(path) else getattr(error, "lineno", None)
        place = f" (line {line})" if line else ""
        said = next((f": {line}" for line in str(error).splitlines() if line.strip()), "")
        raise _wrong(sidecar, key, f"raises {type(error).__name__}{said}{place}") from None


def _called(
    sidecar: Sidecar, key: str, where: tuple[Path, str], available: Mapping[str, Any]
) -> Any:
    path, name = where
    function: Callable[..., Any] | None = runpy.run_path(str(path)).get(name)
    if not callable(function):
        raise _wrong(sidecar, key, "is not defined there")
    taken = inspect.signature(function).parameters
    unknown = [p for p in taken if p not in available]
    if unknown:
        raise _wrong(sidecar, key, f"has the parameter {unknown[0]}, which is no input")
    return function(**{p: available[p] for p in taken})


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What kernels and references print does not get between the lines of the result."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _wrong(sidecar: Sidecar, key: str, what: str) -> SidecarError:
    path, name = sidecar.reference if key == "reference" else sidecar.inputs  # type: ignore[misc]
    return SidecarError(f"{path}: {name} {what}", f"correct it, or {key} in {sidecar.path}")
