"""The binding compiled against torch_npu's real headers, with launches that are kept, not run.

``torch-npu`` is downloaded by name and never installed: where it is installed without CANN, torch
cannot be imported any more.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import torch

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.ascendc import library
from glm5_ascend.ops.emulator.objects import compiled as cached
from glm5_ascend.ops.native import compiler
from glm5_ascend.ops.native.build import cache_folder

VERSION = "2.13.0"
SOURCES = "sources-of-a-test"  # instead of library.digest(), so that objects stay current
HERE, OPS = Path(__file__).parent, Path(library.__file__).parent.parent
TORCH = Path(torch.__file__).parent
_LAUNCH = re.compile(r"(\w+)<<<blocks, nullptr, stream>>>\(")
# Entry points that tests look for; all else may be dropped, kernels too.
_EXPORTS = "{ global: test_*; *_plan; sfa_split; local: *; };"


class Launch(ctypes.Structure):
    """``Launch`` of recorder.h."""

    _fields_ = (
        ("name", ctypes.c_char * 48),
        ("blocks", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("addresses", ctypes.c_void_p * 32),
        ("tiling", ctypes.c_uint8 * 512),
    )


class Unobtainable(Exception):
    """Why there are no headers of torch_npu."""


@cache
def vendor_files() -> Path:
    """Folder with ``include`` and ``lib`` of the torch_npu wheel, kept between runs.

    Raises:
        Unobtainable: pip finds no such wheel.
    """
    target = cache_folder() / f"torch_npu-{VERSION}-files"
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        download += ["--only-binary=:all:", f"torch-npu=={VERSION}"]
        done = subprocess.run(download, capture_output=True, text=True)
        wheels = list(Path(folder).glob("torch_npu-*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
            raise Unobtainable(f"no wheel of torch-npu {VERSION}: {last}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wanted = [
                name
                for name in wheel.namelist()
                if name.startswith("torch_npu/include/") or name == "torch_npu/lib/libtorch_npu.so"
            ]
            wheel.extractall(folder, wanted)
        os.replace(Path(folder) / "torch_npu", target)
    return target


@cache
def objects() -> dict[str, Path]:
    """Object files of the binding, the launches and the stubs.

    Raises:
        Unobtainable: no headers of torch_npu, or no compiler.
    """
    vendor = vendor_files()
    include = [TORCH / "include", TORCH / "include/torch/csrc/api/include"]
    include += [vendor / "include", vendor / "include/third_party/acl/inc"]
    system = [word for path in include for word in ("-isystem", str(path))]
    own = [f"-I{OPS / 'ascendc'}", f"-I{HERE}"]
    defined = [f'-DGLM5_SOURCES="{SOURCES}"', "-DGLM5_DISPATCH_KEY=CPU"]
    result = {
        "binding": compiled(OPS / "ascendc/binding.cpp", [*system, *own, *defined]),
        "acl_stub": compiled(HERE / "acl_stub.cpp", own),
        "torch_npu_stub": compiled(HERE / "torch_npu_stub.cpp", [*system, *own]),
    }
    for operator in library.OPERATORS:
        source = OPS / operator / "ascendc" / f"{operator}.asc"
        flags = [*own, f"-I{OPS / 'emulator/include'}", f"-I{source.parent}"]
        flags += ["-include", str(HERE / "recorder.h")]
        result[operator] = compiled(on_host(source), flags)
    return result


def on_host(source: Path) -> Path:
    """A copy of an .asc file whose launches are plain C++ (recorder.h)."""
    text, count = _LAUNCH.subn(
        r"recorder::Of<decltype(\1)>::launch(#\1, blocks, stream, ", source.read_text()
    )
    assert count == 1
    copy = cache_folder() / f"launches-of-{source.stem}.cpp"
    if not copy.exists() or copy.read_text() != text:
        copy.write_text(text)
    return copy


def compiled(source: Path, flags: list[str]) -> Path:
    """Object file of ``source``, made without a warning; kept between runs."""
    try:
        tool = compiler.find()
    except BackendUnavailable as missing:
        raise Unobtainable(missing.message) from None
    words = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-ffunction-sections"]
    return cached(tool, source, [*words, *flags], cache_folder())


def linked(folder: Path, parts: list[Path], name: str, flags: list[str]) -> Path:
    """Shared library of ``parts`` in which nothing is left undefined."""
    target, exports = folder / name, folder / "exports"
    exports.write_text(_EXPORTS)
    words = ["-shared", "-Wl,--gc-sections,--no-undefined", f"-Wl,--version-script={exports}"]
    words += ["-o", str(target), f"-L{TORCH / 'lib'}", *flags]
    command = [*compiler.find().command, *map(str, parts), *words, "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return target


def needed(path: Path) -> set[str]:
    """Libraries that a shared library names."""
    tool = shutil.which("readelf")
    assert tool is not None
    text = subprocess.run([tool, "-d", path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
