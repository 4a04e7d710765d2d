"""Launches a kernel on the emulator."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from glm5_ascend.ops.emulator import abi
from glm5_ascend.ops.emulator.abi import Rates, Role
from glm5_ascend.ops.emulator.build import Library
from glm5_ascend.ops.emulator.errors import LaunchError
from glm5_ascend.ops.emulator.recording import Launch, active
from glm5_ascend.ops.emulator.report import Order, Report, parse

Array = Tensor | np.ndarray
Value = int | float | bytes | ctypes.Structure
# The machine of a library is one: launches of several threads follow each other.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Buffer:
    """An argument in GM.

    ``data`` is contiguous and on the CPU; an output's content before the launch is not passed on.
    A workspace has ``size`` bytes instead. Outputs and workspaces begin as NaN.
    """

    name: str
    role: Role
    data: Array | None = None
    size: int = 0

    @property
    def bytes(self) -> int:
        """Size in GM."""
        if self.data is None:
            return self.size
        if isinstance(self.data, Tensor):
            return self.data.numel() * self.data.element_size()
        return int(self.data.nbytes)


def inputs(name: str, data: Array) -> Buffer:
    """A buffer that the kernel may only read."""
    return Buffer(name, Role.INPUT, data)


def output(name: str, data: Array) -> Buffer:
    """A buffer that the kernel fills; what it leaves out stays NaN."""
    return Buffer(name, Role.OUTPUT, data)


def inout(name: str, data: Array) -> Buffer:
    """A buffer that the kernel reads and changes."""
    return Buffer(name, Role.INOUT, data)


def workspace(name: str, size: int) -> Buffer:
    """``size`` bytes that the kernel must write before it reads them."""
    return Buffer(name, Role.WORKSPACE, None, size)


@dataclass(frozen=True)
class Options:
    """How to run.

    Args:
        scheduler: "round-robin" (a core runs until it waits) or "random" (cores change at
            instructions that ``seed`` chooses).
        seed: of the random scheduler; the same seed gives the same run and report.
        shadow: check hazards and uninitialised memory; without it runs are faster.
        bins: of the first model's timeline; each says how much of it a pipe is busy.
        isolated: run in a child process, which survives a crash or endless loop of the kernel.
        timeout: seconds; in the same process an endless loop is noticed only where it calls the
            emulator.
        disabled: a statement or pair whose order is dropped, to see whether that is noticed.
        rates: of each model of time that the report shall have; none: no times.
        most_findings: more are counted only.
        block_limit: blocks that the chip runs at once, for kernels that synchronise all of them.
        reserved_ub: bytes of UB that the compiler takes: 8192 unless the kernel is compiled with
            ``--cce-disable-asc-reserved-ubuf``.
    """

    scheduler: str = "round-robin"
    seed: int = 0
    shadow: bool = True
    bins: int = 0
    isolated: bool = True
    timeout: float = 60.0
    disabled: Order | None = None
    rates: tuple[Rates, ...] = ()
    most_findings: int = 100
    block_limit: int = 24
    reserved_ub: int = 0


def launch(
    library: Library,
    kernel: str,
    arguments: Sequence[Buffer | Value | None],
    *,
    blocks: int,
    options: Options | None = None,
) -> Report:
    """Run ``kernel`` of ``library``; outputs are written in place.

    Args:
        library: from :func:`glm5_ascend.ops.emulator.build.build`.
        kernel: its name there.
        arguments: in the order of the kernel's parameters. Numbers take the size of their
            parameter; a structure passes by value; None is a null pointer.
        blocks: a block is an AIC with two AIV, or one core, as the kernel's type says.
        options: how to run.

    Raises:
        LaunchError: arguments that do not fit the kernel's parameters.
    """
    options = options or Options()
    recorder = active()
    if recorder is not None:
        options = replace(
            options,
            shadow=False,
            rates=recorder.rates,
            bins=recorder.bins,
            timeout=recorder.timeout,
            block_limit=recorder.cores,
        )
    if kernel not in library.signatures:
        raise LaunchError(
            f"{kernel} is no kernel of {library.path.name}", "name one that was built"
        )
    entry = list(library.signatures).index(kernel)
    sizes = library.signatures[kernel]
    if len(arguments) != len(sizes):
        raise LaunchError(
            f"kernel {kernel!r} takes {len(sizes)} arguments, not {len(arguments)}",
            "give one argument per parameter, tiling structures and workspaces included",
        )
    if not 1 <= blocks <= 256:
        raise LaunchError(f"{kernel}: {blocks} blocks", "launch 1 to 256 blocks")
    kept = [
        _buffer(a, kernel, i) if isinstance(a, Buffer) else _value(a, size, kernel, i)
        for i, (a, size) in enumerate(zip(arguments, sizes, strict=True))
    ]
    for i, (given, size) in enumerate(zip(arguments, sizes, strict=True)):
        if isinstance(given, Buffer) and size:
            raise LaunchError(
                f"argument {i + 1} of {kernel} is a value of {size} bytes, not a pointer",
                "pass a number or a structure",
            )
    table = (abi.CArgument * len(kept))(*(c for c, _ in kept))
    started = time.monotonic()
    given_options = _options(blocks, options)

    def call() -> int | None:
        address: int | None = library.handle.emu_launch(
            entry, table, len(kept), ctypes.byref(given_options)
        )
        return address

    with _ONE_AT_A_TIME:
        apart = options.isolated and threading.current_thread() is threading.main_thread()
        text = _interruptible(call, library.handle.emu_stop) if apart else call()
    if not text:
        raise LaunchError(f"{kernel}: too little memory for its arguments", "use smaller shapes")
    try:
        raw = ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        library.handle.emu_free(text)
    try:
        report = parse(raw, time.monotonic() - started)
    except ValueError:
        raise LaunchError(
            f"{kernel}: its process left no readable report", "take out what forks or closes files"
        ) from None
    if recorder is not None:
        recorder.launches.append(Launch(kernel, library.cores[kernel], blocks, report))
    return report


def _interruptible(call: Callable[[], int | None], stop: Callable[[], None]) -> int | None:
    """``call()``, which ``stop`` ends where a signal raises an exception in this thread.

    Python runs the handlers of signals between its own statements, so the call has a thread.
    """
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        try:
            return running.result()
        except BaseException:
            # Again and again, since the child may only be about to start.
            while not running.done():
                stop()
                wait([running], 0.05)
            raise


def _buffer(given: Buffer, kernel: str, index: int) -> tuple[abi.CArgument, object]:
    data = given.data
    if given.role is Role.WORKSPACE:
        return abi.CArgument(None, given.size, given.name.encode(), given.role, 0), None
    what = f"argument {index + 1} of {kernel} ({given.name})"
    if isinstance(data, Tensor):
        if data.device.type != "cpu" or not data.is_contiguous():
            raise LaunchError(f"{what} is not contiguous in CPU memory", "pass .contiguous()")
        address = data.data_ptr()
    elif isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise LaunchError(f"{what} is not contiguous", "pass numpy.ascontiguousarray(...)")
        address = data.ctypes.data
    else:
        raise LaunchError(f"{what} has no data", "pass an array, or declare a workspace")
    return abi.CArgument(address, given.bytes, given.name.encode(), given.role, 0), data


def _value(given: Value | None, size: int, kernel: str, index: int) -> tuple[abi.CArgument, object]:
    what = f"argument {index + 1} of {kernel}"
    if size == 0 and given is None:
        null = ctypes.c_void_p()
        return abi.CArgument(ctypes.addressof(null), 8, b"", Role.VALUE, 0), null
    if size == 0:
        raise LaunchError(f"{what} is a pointer to GM", "pass a Buffer")
    if given is None:
        raise LaunchError(f"{what} is no pointer", f"pass a value of {size} bytes")
    try:
        if isinstance(given, bool | int):
            raw = int(given).to_bytes(size, "little", signed=given < 0)
        elif isinstance(given, float):
            raw = struct.pack({4: "<f", 8: "<d"}[size], given)
        else:
            raw = bytes(given)
    except (OverflowError, KeyError, struct.error):
        raise LaunchError(
            f"{what}: {given!r} does not fit {size} bytes", "check its type"
        ) from None
    if len(raw) != size:
        raise LaunchError(
            f"{what} has {len(raw)} bytes, the kernel's parameter {size}",
            "the structure's fields must be those of the kernel, padding included",
        )
    held = ctypes.create_string_buffer(raw, size)
    return abi.CArgument(ctypes.addressof(held), size, b"", Role.VALUE, 0), held


def _options(blocks: int, options: Options) -> abi.COptions:
    if options.scheduler not in ("round-robin", "random"):
        raise LaunchError(
            f"no scheduler is called {options.scheduler!r}", "choose round-robin or random"
        )
    off = options.disabled
    statement = abi.CStatement(0, 0, b"", b"")
    if off is not None:
        second = off.second.key.encode() if off.second else b""
        statement = abi.CStatement(abi.ORDERS.index(off.kind), 0, off.first.key.encode(), second)
    return abi.COptions(
        blocks=blocks,
        random=options.scheduler == "random",
        seed=options.seed & (2**64 - 1),
        shadow=options.shadow,
        bins=options.bins,
        isolated=options.isolated,
        reserved_ub=options.reserved_ub,
        timeout=options.timeout,
        most_findings=options.most_findings,
        block_limit=options.block_limit,
        disabled=statement,
        rates=(Rates * len(options.rates))(*options.rates),
        models=len(options.rates),
    )
