"""Compiling and launching: what is refused, what is cached, and launches of many cores."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.emulator.build import CSRC, INCLUDE, Kernel, Library, build
from glm5_ascend.ops.emulator.errors import KernelHazard, KernelSourceError, LaunchError
from glm5_ascend.ops.emulator.launch import (
    Buffer,
    Options,
    Value,
    inout,
    inputs,
    launch,
    output,
    workspace,
)
from tests.ops.emulator.checks import library, run

ROOT = Path(__file__).parents[3]
SOURCE = """\
#include "kernel_operator.h"
#include "part.h"
using namespace AscendC;
struct Sizes { int8_t small; double large; uint16_t last; };
template <class T, int n>
__aicore__ inline void doubled(GM_ADDR data, Sizes sizes, float factor, int64_t count, bool yes) {
  LocalTensor<T> x(TPosition::VECIN, 0, n);
  GlobalTensor<T> rows;
  rows.SetGlobalBuffer((__gm__ T*)data);
  assert(sizes.small == -3 && sizes.large == 0.25 && sizes.last == 7);
  assert(factor == 2.0f && count == -5 && yes);
  DataCopy(x, rows, n);
  PipeBarrier<PIPE_ALL>();
  for (int i = 0; i < n; ++i) x.SetValue(i, T(x.GetValue(i) * T(ADDED)));
  PipeBarrier<PIPE_ALL>();
  DataCopy(rows, x, n);
}
"""


class Sizes(ctypes.Structure):
    _fields_ = (("small", ctypes.c_int8), ("large", ctypes.c_double), ("last", ctypes.c_uint16))


def doubled(folder: Path) -> Library:
    kernels = [
        Kernel("ints", "doubled<int32_t, 16>", "vector"),
        Kernel("floats", "doubled<float, 8>", "vector"),
    ]
    return build(folder / "doubled.cpp", kernels, defines=["ADDED=FACTOR"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "doubled.cpp").write_text(SOURCE)
    (tmp_path / "part.h").write_text("#define FACTOR 2\n")
    return tmp_path


VALUES: tuple[Value, ...] = (Sizes(-3, 0.25, 7), 2.0, -5, True)


def test_values_pass_and_an_included_file_that_changes_is_compiled_again(source: Path) -> None:
    built = doubled(source)
    assert built.seconds > 0
    assert built.signatures == {"ints": (0, 24, 4, 8, 1), "floats": (0, 24, 4, 8, 1)}
    x = torch.arange(16, dtype=torch.int32)
    report = launch(built, "ints", [inout("x", x), *VALUES], blocks=1)
    assert report.clean, report.findings
    assert x.tolist() == list(range(0, 32, 2))
    again = doubled(source)
    assert again.path == built.path
    assert again.seconds == 0
    (source / "part.h").write_text("#define FACTOR 3\n")
    changed = doubled(source)
    y = np.arange(8, dtype=np.float32)
    assert launch(changed, "floats", [inout("y", y), *VALUES], blocks=1).clean
    assert y.tolist() == [3.0 * i for i in range(8)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('#include "missing.h"\n', "doubled.cpp:1: missing.h: No such file"),
        ("void f(GM_ADDR) { Adds(1); }\n", "doubled.cpp:1: "),
        ('#define __NPU_ARCH__ 3510\n#include "kernel_operator.h"\n', "arch 3510 (Atlas 950)"),
    ],
)
def test_sources_that_do_not_compile(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "doubled.cpp").write_text(text)
    with pytest.raises(KernelSourceError) as caught:
        build(tmp_path / "doubled.cpp", [Kernel("f", "f", "vector")])
    assert message in caught.value.message


def test_a_compiler_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubled.cpp").write_text("")
    monkeypatch.setenv("GLM5_ASCEND_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "/bin/true")
    with pytest.raises(BackendUnavailable, match="/bin/true ends with exit code 0 but wrote no"):
        build(tmp_path / "doubled.cpp", [])


@pytest.mark.parametrize("name", ['a"b', "a\nb"])
def test_a_path_that_no_include_can_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "doubled.cpp").write_text("")
    with pytest.raises(KernelSourceError, match="holds a quotation mark or line break"):
        build(tmp_path / name / "doubled.cpp", [])


def test_odd_characters_in_the_path(source: Path) -> None:
    folder = source / "a b#c$d'e"
    folder.mkdir()
    for file in ("doubled.cpp", "part.h"):
        shutil.copy(source / file, folder)
    assert doubled(folder).seconds > 0
    assert doubled(folder).seconds == 0


def test_a_source_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(KernelSourceError, match="is no file"):
        build(tmp_path / "none.cpp", [])


def test_arguments_that_do_not_fit() -> None:
    x = np.zeros(4096, np.float32)
    good: list[Buffer | Value | None] = [
        inputs("in", x),
        output("out", x),
        workspace("work", 64),
        0,
    ]

    def refused(arguments: list[Buffer | Value | None], message: str, **changes: int) -> None:
        with pytest.raises(LaunchError, match=message):
            launch(library(), "order", arguments, **({"blocks": 1} | changes))

    refused(good[:3], "kernel 'order' takes 4 arguments, not 3")
    refused([*good[:3], 2**40], "does not fit 4 bytes")
    refused([*good[:3], b"12345"], "has 5 bytes, the kernel's parameter 4")
    refused([*good[:3], inputs("x", x)], "a value of 4 bytes, not a pointer")
    refused([1, *good[1:]], "argument 1 of order is a pointer to GM")
    refused([inputs("in", x[::2]), *good[1:]], "not contiguous")
    refused([inputs("in", torch.zeros(8, 8).T), *good[1:]], "not contiguous in CPU memory")
    refused([*good[:3], None], "argument 4 of order is no pointer")
    refused(good, "0 blocks", blocks=0)
    with pytest.raises(LaunchError, match="no kernel of"):
        launch(library(), "nothing", good, blocks=1)
    with pytest.raises(LaunchError, match="no scheduler"):
        launch(library(), "order", good, blocks=1, options=Options(scheduler="fair"))


def test_a_null_pointer_passes_and_reaches_no_memory() -> None:
    y = np.zeros(4096, np.float32)
    arguments = [None, output("out", y), workspace("work", 64), 0]
    report = launch(library(), "neighbours", arguments, blocks=2, options=Options(isolated=False))
    assert report.clean
    assert y[:2].tolist() == [0.0, 1.0]
    report = launch(library(), "bounds", arguments, blocks=1, options=Options(isolated=False))
    assert [finding.kind for finding in report.findings] == ["GM-OOB"]


def test_launches_of_threads_follow_each_other() -> None:
    with ThreadPoolExecutor(4) as pool:
        kernels = ["order", "cross", "tiles", "pipeline"] * 4
        reports = pool.map(lambda kernel: run(kernel, 0, Options(isolated=False))[0], kernels)
        assert all(report.clean for report in reports)


def test_results_with_findings_are_refused() -> None:
    report, _ = run("order", 5, Options(isolated=False))
    with pytest.raises(KernelHazard, match=r"add: RAW at order\.cpp:32 Adds \(AIV0\.V\)"):
        report.check("add")
    run("order", 0, Options(isolated=False))[0].check("add")


def test_what_a_kernel_does_not_write_is_nan() -> None:
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    arguments = [inputs("in", x), output("out", y), workspace("work", 64), 0]
    assert launch(library(), "order", arguments, blocks=1).clean
    assert np.array_equal(y[:512], np.full(512, 2.0))
    assert np.isnan(y[512:]).all()


@pytest.mark.parametrize("scheduler", ["round-robin", "random"])
def test_the_largest_chip(scheduler: str) -> None:
    """24 blocks, 72 cores."""
    x, y = np.arange(65536, dtype=np.float32), np.zeros(65536, np.float32)
    arguments = [inputs("in", x), output("out", y), workspace("work", x.nbytes), 0]
    options = Options(scheduler=scheduler, seed=5, isolated=False)
    report = launch(library(), "pipeline", arguments, blocks=24, options=options)
    assert report.clean, report.findings
    want = x[: 144 * 256].reshape(24, 2, 3, 256).transpose(0, 2, 1, 3)
    assert np.array_equal(y[: 144 * 256], want.ravel())
    assert len({lane.core for lane in report.lanes}) == 72


def test_counters() -> None:
    report, _ = run("tiles", 0, Options(isolated=False), blocks=1)
    lanes = {lane.pipe: lane for lane in report.lanes}
    assert lanes["MTE2"].moved == {"GM-UB": 3 * 1024}
    assert lanes["MTE3"].moved == {"UB-GM": 3 * 1024}
    assert lanes["MTE2"].transfers == {"GM-UB": 3}
    assert lanes["V"].elements == {"simple": 6 * 256}
    assert lanes["V"].repeats == {"simple": 6 * 4}
    assert lanes["V"].instructions == 6


CLANG = next((c for c in ("clang++", "clang++-19", "clang++-15") if shutil.which(c)), "")


@pytest.mark.slow
@pytest.mark.skipif(not CLANG, reason="clang is not installed")
def test_clang_compiles_everything_without_a_warning() -> None:
    flags = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}")

    def messages(source: Path) -> str:
        command = (CLANG, *flags, str(source))
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    kernels = Path(__file__).parent / "kernels" / "all.cpp"
    with ThreadPoolExecutor(2) as pool:
        assert "".join(pool.map(messages, [*sorted(CSRC.glob("*.cpp")), kernels])) == ""


def test_the_same_launch_in_a_child_process_reports_the_same() -> None:
    for kernel, fault in (("order", 5), ("cross", 1), ("tiles", 0)):
        own, y = run(kernel, fault, Options(isolated=False))
        child, same = run(kernel, fault, Options())
        assert dataclasses.replace(own, seconds=0) == dataclasses.replace(child, seconds=0)
        assert y.tobytes() == same.tobytes()


ENDLESS = """
import sys
from glm5_ascend.ops.emulator.launch import Options
from tests.ops.emulator.checks import library, run
library()
print("start", flush=True)
run("faults", {fault}, Options(timeout=20))
"""


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def state(pid: int) -> str:
    """One letter as in /proc, "gone" where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("fault", [4, 5])
def test_an_endless_kernel_ends_with_the_process_that_launched_it(
    number: signal.Signals, fault: int
) -> None:
    """The signal goes to that process alone, as from ``kill``."""
    library()  # compiled
    command = (sys.executable, "-c", ENDLESS.format(fault=fault))
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "start\n"
        assert within(10, lambda: bool(children(process.pid)))
        (kernel,) = children(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=5)
    # Who inherits it may be slow to collect it.
    assert within(5, lambda: state(kernel) in ("gone", "Z", "X"))
    if number == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -number
