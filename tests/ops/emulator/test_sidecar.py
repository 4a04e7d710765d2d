"""``glm5-ascend ops emulate``: the examples, and what is wrong in a file of the user."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.ops.emulator import build, operators

EXAMPLES = Path(build.__file__).parent / "examples"
Edit = Callable[[str, str, str], Path]


def emulate(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["ops", "emulate", *map(str, arguments)])


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """Copies the examples with one text replaced; the path is that of the TOML file."""
    for file in EXAMPLES.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)

    def edit(file: str, old: str, new: str) -> Path:
        path = tmp_path / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        return tmp_path / "scale_add.toml"

    return edit


def test_example_is_clean_equal_and_needs_all_of_its_synchronisation() -> None:
    result = emulate(EXAMPLES / "scale_add.toml", "--mutants", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["passed"]
    assert [run["name"] for run in report["runs"]] == [
        "round robin",
        "random, seed 0",
        "random, seed 1",
        "random, seed 2",
    ]
    assert report["mutants"] == 5
    assert report["survivors"] == []


def test_without_a_compiler_the_hint_is_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = emulate(EXAMPLES / "scale_add.toml")
    assert result.exit_code == 5, result.output
    assert result.stderr == (
        "error: kernels for the emulator cannot be compiled: no C++ compiler\n"
        "hint: install g++, or set CXX to a C++ compiler\n"
    )


def test_a_wrong_number_of_arguments_names_the_kernel(edited: Edit) -> None:
    sizes = '[[arguments]]\nname = "sizes"'
    more = '[[arguments]]\nname = "more"\nrole = "workspace"\nbytes = 64\n\n'
    result = emulate(edited("scale_add.toml", sizes, more + sizes))
    assert result.exit_code == 1, result.output
    assert "error: kernel 'scale_add' takes 4 arguments, not 5\n" in result.stderr


def test_missing_barrier_is_shown_with_its_lines(edited: Edit) -> None:
    path = edited("scale_add.cpp", "    PipeBarrier<PIPE_V>();\n", "")
    result = emulate(path, "--seeds", 1)
    assert result.exit_code == 1
    assert "RAW: reads what may not be written yet" in result.stdout
    assert "35 |     Add(out, out, in[TILE], TILE);" in result.stdout
    assert "34 |     Muls(out, in, sizes.a, TILE);" in result.stdout
    assert "512 times" in result.stdout


def test_the_tutorial_has_the_whole_of_both_files() -> None:
    """Only the barrier is missing, which its next step adds."""
    text = (Path(build.__file__).parent.parent / "README.md").read_text()
    for file, language in (("scale_add.cpp", "cpp"), ("scale_add.toml", "toml")):
        block = text.split(f"```{language}\n")[1].split("```\n")[0]
        assert block == (EXAMPLES / file).read_text().replace("    PipeBarrier<PIPE_V>();\n", "")


def test_wrong_values_are_shown(edited: Edit) -> None:
    result = emulate(edited("reference.py", "2.5 * x", "2.0 * x"), "--scheduler", "round-robin")
    assert result.exit_code == 1
    assert "differs from the reference" in result.stdout
    assert "of 4096 elements differ" in result.stdout


def test_useless_synchronisation_is_an_unnoticed_mutant(edited: Edit) -> None:
    path = edited(
        "scale_add.cpp",
        "    out_queue.FreeTensor(out);\n",
        "    out_queue.FreeTensor(out);\n    PipeBarrier<PIPE_MTE3>();\n",
    )
    result = emulate(path, "--mutants", "--seeds", 1)
    assert result.exit_code == 1
    assert "nothing depends on PipeBarrier<PIPE_MTE3> at scale_add.cpp:43" in result.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("scale_add.toml", '"scale_add.cpp"', '"missing.cpp"', "missing.cpp, which is no file"),
        ("scale_add.toml", "reference.py:scale_add", "none.py:f", "none.py, which is no file"),
        ("scale_add.toml", "reference.py:scale_add", "reference.py:f", "f is not defined there"),
        ("scale_add.toml", "reference.py:scale_add", "reference.py", "reference is 'reference.py'"),
        ("scale_add.toml", 'core = "vector"', 'core = "gpu"', "core is 'gpu'"),
        ("scale_add.toml", 'core = "vector"', "", "the file lacks core"),
        ("scale_add.toml", "blocks = 4", "blocks = 0", "blocks is 0"),
        ("scale_add.toml", "blocks = 4", 'blocks = "4"', "blocks of the file is '4'"),
        ("scale_add.toml", "blocks = 4", "blocks = ", "is no TOML"),
        ("scale_add.toml", "blocks = 4", "block = 4", "the unknown key block"),
        ("scale_add.toml", 'role = "output"', 'role = "out"', "role of argument 3 is 'out'"),
        ("scale_add.toml", 'dtype = "int32"', 'dtype = "int3"', "dtype of a field of sizes"),
        ("scale_add.toml", "value = 4 ", "value = 4.5 ", "value of a field of sizes is 4.5"),
        ("scale_add.toml", '{ name = "a", dtype = "float32", value = 2.5 },', "", "has 4 bytes"),
        ("scale_add.toml", "shape = [16, 256]", "shape = [16, 0]", "shape of argument 1"),
        ("reference.py", "y.double()", "y.double()[0, :9]", "raises RuntimeError"),
        ("reference.py", "y.double()", "(y.double()", "raises SyntaxError"),
        ("reference.py", "2.5 * x.double()", "x.double()[0]; 0", "float64 [256]"),
        ("reference.py", "(x: Tensor", "(q: Tensor", "has the parameter q"),
        (
            "scale_add.cpp",
            "Muls(out, in",
            "Muls(out, inn",
            "scale_add.cpp:34: 'inn' was not declared",
        ),
        ("scale_add.toml", 'kernel = "scale_add"', 'kernel = "other"', "'other' was not declared"),
        ("scale_add.toml", 'kernel = "scale_add"', 'kernel = "a}, {"', "kernel is 'a}, {'"),
        ("scale_add.toml", "blocks = 4", 'defines = ["A\\u0000"]', "defines holds 'A"),
        ("scale_add.toml", "blocks = 4", 'defines = ["A B"]', "defines holds 'A B'"),
        ("scale_add.toml", "blocks = 4", "timeout = -1", "timeout is -1"),
        ("scale_add.toml", "blocks = 4", "timeout = inf", "timeout is inf"),
        ("scale_add.toml", "absolute = 1e-6", "absolute = nan", "absolute is nan"),
        ("scale_add.toml", "absolute = 1e-6", f"absolute = 1{400 * '0'}", "absolute is 1000"),
        ("scale_add.toml", "shape = [16, 256]", "shape = [true, 256]", "shape of argument 1"),
        ("scale_add.toml", "shape = [16, 256]", f"shape = [{2**70}]", "four times their size"),
        ("scale_add.toml", 'name = "y"', 'name = "x"', "two of the arguments have the name x"),
        ("scale_add.toml", 'name = "y"', 'name = ""', "argument 2 has the name ''"),
        ("scale_add.toml", 'name = "a"', 'name = "tiles"', "two of the fields have the name tiles"),
        ("scale_add.toml", "value = 4 ", f"value = {2**31}", "sizes is 2147483648"),
        ("scale_add.toml", "value = 2.5 ", f"value = 1{400 * '0'}", "sizes is 1000"),
        ("reference.py", "return ", "assert False; return ", "raises AssertionError (line"),
        ("reference.py", "return ", "raise SystemExit(0); return ", "raises SystemExit: 0"),
        ("reference.py", "return ", "return None; ", "gives z as NoneType"),
        ("reference.py", "return ", "return 1j * ", "complex128 [16, 256]"),
    ],
)
def test_mistakes_are_one_error_with_its_place(
    edited: Edit, file: str, old: str, new: str, message: str
) -> None:
    result = emulate(edited(file, old, new), "--seeds", 1)
    assert result.exit_code == (3 if "four times" in message else 1)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-2].startswith("error: ")
    assert message in lines[-2]
    assert lines[-1].startswith("hint: ")


def test_what_kernel_and_reference_print_stays_out_of_the_result(edited: Edit) -> None:
    edited("reference.py", "return ", 'print("from Python"); return ')
    edited("scale_add.cpp", "#include", "#include <cstdio>\n#include")
    path = edited("scale_add.cpp", "  TPipe pipe;", '  TPipe pipe; std::puts("from C++");')
    command = [sys.executable, "-m", "glm5_ascend", "ops", "emulate", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["passed"]
    assert "from Python" in done.stderr
    assert "from C++" in done.stderr


def test_a_kernel_that_forks_is_one_error(edited: Edit) -> None:
    edited("scale_add.cpp", "#include", "#include <unistd.h>\n#include")
    path = edited("scale_add.cpp", "  TPipe pipe;", "  TPipe pipe; fork();")
    result = emulate(path, "--scheduler", "round-robin")
    assert result.exit_code == 1
    assert "scale_add: its process left no readable report" in result.stderr


def test_names_of_fields_do_not_matter(edited: Edit) -> None:
    path = edited("scale_add.toml", 'name = "a"', 'name = "__class__"')
    assert emulate(path, "--scheduler", "round-robin").exit_code == 0


def test_out_of_bounds_by_the_sidecars_shape_is_a_finding(edited: Edit) -> None:
    path = edited("scale_add.toml", "value = 4 ", "value = 5 ")
    result = emulate(path, "--scheduler", "round-robin")
    assert result.exit_code == 1
    assert "GM-OOB" in result.stdout
    assert "GM x + 0x4000" in result.stdout


@pytest.mark.parametrize("passed", [True, False])
def test_an_operator_runs_its_conformance_cases(
    monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    calls = []

    class Report:
        def as_text(self) -> str:
            return "table"

        def as_dict(self) -> dict[str, object]:
            return {}

    def verify(*arguments: object, quiet: bool) -> Report:
        calls.append((*arguments, quiet))
        report = Report()
        report.passed = passed  # type: ignore[attr-defined]
        return report

    monkeypatch.setattr(operators, "verify", verify)
    result = emulate("mlapo")
    assert result.stdout == "table\n"
    assert result.exit_code == (0 if passed else 1)
    assert calls == [(["emulated"], ["mlapo"], "normal", False)]


def test_usage_errors() -> None:
    for arguments in (("nothing",), (), ("x.toml", "--seeds", 0), ("x.toml", "--scheduler", "x")):
        assert emulate(*arguments).exit_code == 2
    for seed in (-1, 2**63):
        assert "is not within" in emulate("x.toml", f"--seed={seed}").stderr
    missing = emulate("nowhere/x.toml")
    assert missing.exit_code == 1
    assert "No such file" in missing.stderr


def test_wheels_hold_everything_that_kernels_are_compiled_with() -> None:
    ops = Path(build.__file__).resolve().parent.parent
    settings = tomllib.loads((ops.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["glm5_ascend.ops"]
    packed = {path for pattern in patterns for path in ops.glob(pattern)}
    needed = {
        path
        for folder in ("include", "csrc", "examples")
        for path in (ops / "emulator" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert needed <= packed
    assert len(needed) > 60
