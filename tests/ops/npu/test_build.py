"""``glm5-ascend ops build`` and its CMake file, without CANN: refusals, a stand-in toolchain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.errors import BackendUnavailable, ExitCode
from glm5_ascend.ops.ascendc import build, library
from tests.ops.npu.vendor import FakeVendor

SOURCE = Path(library.__file__).parent
# A language of CMake that "compiles" by making an empty object, as far as `find_package(ASC)` and
# `LANGUAGES ASC` ask.
_STAND_IN = {
    "ASCConfig.cmake": 'list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")\n',
    "CMakeDetermineASCCompiler.cmake": (
        "find_program(CMAKE_ASC_COMPILER c++)\nset(CMAKE_ASC_COMPILER_ENV_VAR ASC)\n"
        "configure_file(${CMAKE_CURRENT_LIST_DIR}/CMakeASCCompiler.cmake.in\n"
        "  ${CMAKE_PLATFORM_INFO_DIR}/CMakeASCCompiler.cmake @ONLY)\n"
    ),
    "CMakeASCCompiler.cmake.in": (
        'set(CMAKE_ASC_COMPILER "@CMAKE_ASC_COMPILER@")\n'
        "set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)\n"
        "set(CMAKE_ASC_OUTPUT_EXTENSION .o)\nset(CMAKE_ASC_COMPILER_ENV_VAR ASC)\n"
    ),
    "CMakeASCInformation.cmake": (
        'set(CMAKE_ASC_COMPILE_OBJECT "<CMAKE_ASC_COMPILER> -x c++ -c /dev/null -o <OBJECT>")\n'
        'set(CMAKE_ASC_CREATE_SHARED_LIBRARY "c++ -shared -o <TARGET> <OBJECTS>")\n'
        "set(CMAKE_ASC_INFORMATION_LOADED 1)\n"
    ),
    "CMakeTestASCCompiler.cmake": "set(CMAKE_ASC_COMPILER_WORKS 1)\n",
}


def configure(folder: Path, *options: str, toolchain: bool = True) -> subprocess.CompletedProcess:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    stand_in = folder / "toolchain"
    stand_in.mkdir()
    for name, text in _STAND_IN.items():
        (stand_in / name).write_text(text)
    words = [f"-DASC_DIR={stand_in}"] if toolchain else []
    command = [cmake, "-S", str(SOURCE), "-B", str(folder / "build"), *words, *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python that has packages of these names."""
    packages = tmp_path / "packages"
    for name in ("torch", "torch_npu"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return f"-DPython3_EXECUTABLE={script}"


def test_it_configures_with_a_stand_in_toolchain(tmp_path: Path, python: str) -> None:
    done = configure(tmp_path, python, "-DGLM5_SOURCES=0123456789abcdef")
    assert done.returncode == 0, done.stderr
    rules = (tmp_path / "build/CMakeFiles/glm5_ascend_npu.dir/build.make").read_text()
    for operator in library.OPERATORS:
        assert f"{operator}.asc" in rules
    flags = (tmp_path / "build/CMakeFiles/glm5_ascend_npu.dir/flags.make").read_text()
    assert "--npu-arch=dav-2201" in flags
    assert 'GLM5_SOURCES=\\"0123456789abcdef\\"' in flags
    assert "packages/torch_npu/include/third_party/acl/inc" in flags
    link = (tmp_path / "build/CMakeFiles/glm5_ascend_npu.dir/link.txt").read_text()
    assert library.NAME in link
    assert "-ltorch_npu" in link


@pytest.mark.parametrize("architecture", ["dav-3510", "dav-3002"])
def test_other_architectures_are_refused(architecture: str, tmp_path: Path) -> None:
    done = configure(tmp_path, f"-DCMAKE_ASC_ARCHITECTURES={architecture}")
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert f"Atlas A2 and A3), not for {architecture}" in message
    assert "Atlas 950 (dav-3510) differs" in message


def test_what_is_not_set_is_named(tmp_path: Path, python: str) -> None:
    done = configure(tmp_path, python)
    assert done.returncode != 0
    assert "GLM5_SOURCES is not set" in done.stderr


def test_without_the_toolchain_cmake_says_what_it_wants(tmp_path: Path) -> None:
    done = configure(tmp_path, toolchain=False)
    assert done.returncode != 0
    assert "ASCConfig.cmake" in done.stderr


def test_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["ops", "build"])
    assert result.exit_code == ExitCode.PREFLIGHT
    assert result.stderr == (
        "error: package torch_npu is not installed\nhint: run inside the vllm-ascend image\n"
    )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: FakeVendor) -> Path:
    """A machine with torch_npu, CANN's folder and a cmake of two lines."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cmake").write_text(
        "#!/bin/sh\n"
        '[ "$1" = --build ] && { echo made > "$2/libglm5_ascend_npu.so"; exit 0; }\n'
        f'echo "$@" > {tmp_path}/configured\n'
    )
    (tools / "cmake").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setenv("GLM5_ASCEND_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_it_builds_once(machine: Path) -> None:
    result = CliRunner().invoke(cli, ["ops", "build", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    path = machine / "cache" / f"ascendc-{library.digest()}" / library.NAME
    assert document == {
        "schema": 1,
        "library": str(path),
        "sources": library.digest(),
        "new": True,
    }
    assert path.read_text() == "made\n"
    words = (machine / "configured").read_text().split()
    assert f"-DGLM5_SOURCES={library.digest()}" in words
    assert f"-DPython3_EXECUTABLE={sys.executable}" in words
    assert library.find() == path
    (machine / "configured").unlink()
    assert "is up to date" in CliRunner().invoke(cli, ["ops", "build"]).output
    assert not (machine / "configured").exists()


def test_a_failing_step_is_named(machine: Path) -> None:
    (machine / "tools/cmake").write_text("#!/bin/sh\necho no compiler >&2; exit 3\n")
    result = CliRunner().invoke(cli, ["ops", "build"])
    assert result.exit_code == ExitCode.PREFLIGHT
    assert "no compiler\n" in result.stderr
    assert "do not configure: cmake ended with code 3" in result.stderr


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "PATH"])
def test_what_the_build_needs(
    variable: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(machine / "nowhere"))
    wanted = {"ASCEND_HOME_PATH": "no CANN toolkit", "PATH": "cmake is not on PATH"}
    with pytest.raises(BackendUnavailable, match=wanted[variable]):
        build.build()


def test_a_change_of_any_source_is_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {path.name for path in library.sources()}
    assert {"binding.cpp", "CMakeLists.txt", "mlapo.asc", "kernels.cpp", "tiling.h"} <= names
    before = library.digest()
    copy = tmp_path / "ops"
    for path in library.sources():
        target = copy / path.relative_to(library.OPS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    monkeypatch.setattr(library, "OPS", copy)
    assert library.digest() == before
    (copy / "mlapo/ascendc/tiling.h").write_text("// changed\n")
    assert library.digest() != before
