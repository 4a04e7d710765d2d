"""Choice of a backend: explicit requests never fall back, reasons and hints are given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from glm5_ascend import env, ops
from glm5_ascend.errors import BackendUnavailable, ExitCode
from glm5_ascend.ops import dispatch
from glm5_ascend.ops.errors import ArgumentError

X, WEIGHT = torch.randn(3, 8), torch.ones(8)


def test_auto_on_a_cpu_is_the_cpu_backend_except_for_float64() -> None:
    for operator in dispatch.OPERATORS:
        assert dispatch.select(operator, "auto", X) == "cpu"
        assert dispatch.select(operator, "auto", X.double()) == "reference"
    by_default = ops.rms_norm(X, WEIGHT, 1e-5)
    assert torch.equal(by_default, ops.rms_norm(X, WEIGHT, 1e-5, backend="cpu"))


@pytest.mark.parametrize("name", ["emulated", "triton", "ascendc", "torch_npu", "cuda"])
def test_an_explicit_backend_never_falls_back(name: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"'{name}' of norm_rope") as caught:
        ops.rms_norm(X, WEIGHT, 1e-5, backend=name)
    assert caught.value.hint
    assert caught.value.exit_code == ExitCode.PREFLIGHT


def test_the_environment_is_an_explicit_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "triton")
    with pytest.raises(BackendUnavailable, match="'triton' of norm_rope"):
        ops.rms_norm(X, WEIGHT, 1e-5)
    ops.rms_norm(X, WEIGHT, 1e-5, backend="reference")
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "nonsense")
    with pytest.raises(env.EnvironmentVariableError, match="nonsense"):
        ops.rms_norm(X, WEIGHT, 1e-5)


def test_the_cpu_backend_refuses_memory_it_cannot_reach() -> None:
    with pytest.raises(ArgumentError, match="CPU tensors, not one on meta"):
        dispatch.select("lightning_indexer", "cpu", X.to("meta"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = dispatch._Backend("reference", "no_such_package", "install it")
    monkeypatch.setitem(dispatch._BACKENDS, "triton", backend)
    dispatch._look_up.cache_clear()
    try:
        with pytest.raises(BackendUnavailable, match="package no_such_package") as caught:
            ops.rms_norm(X, WEIGHT, 1e-5, backend="triton")
        assert caught.value.hint == "install it"
    finally:
        dispatch._look_up.cache_clear()


def test_availability_covers_every_folder_and_every_documented_backend() -> None:
    table = ops.availability()
    folders = {p.parent.name for p in Path(dispatch.__file__).parent.glob("*/api.py")}
    assert {row.operator for row in table} == set(dispatch.OPERATORS)
    assert folders == set(dispatch.OPERATORS.values())
    assert ["auto", *dispatch._BACKENDS] == list(env.OP_BACKENDS)
    for row in table:
        folder = Path(dispatch.__file__).parent / dispatch.OPERATORS[row.operator]
        file = folder / f"{dispatch._BACKENDS[row.backend].module}.py"
        package = dispatch._BACKENDS[row.backend].package
        if not file.exists():
            assert row.reason == "this release does not implement it", row
        elif package is not None and find_spec(package) is None:
            assert row.reason == f"package {package} is not installed", row
        elif row.backend == "triton" and not torch.cuda.is_available():
            assert row.reason == "no CUDA device was found", row
        else:
            assert row.reason == "", row
        assert (row.hint == "") == (row.reason == ""), row


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "no-such-compiler")
    dispatch._look_up.cache_clear()
    yield
    dispatch._look_up.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_cpu_backend_says_so_and_nothing_takes_its_place() -> None:
    with pytest.raises(BackendUnavailable, match="no-such-compiler") as caught:
        dispatch.select("lightning_indexer", "cpu", X)
    assert "--op-backend reference" in caught.value.hint
    assert dispatch.select("lightning_indexer", "reference", X) == "reference"
    reasons = {row.reason for row in ops.availability() if row.backend == "cpu"}
    assert any("no-such-compiler" in reason for reason in reasons)


@pytest.mark.usefixtures("no_compiler")
def test_nothing_else_is_suggested_where_the_emulator_has_no_compiler() -> None:
    with pytest.raises(
        BackendUnavailable, match=r"kernels for the emulator .*no-such-compiler"
    ) as caught:
        dispatch.select("mlapo", "emulated", X)
    assert caught.value.hint == "install g++, or set CXX to a C++ compiler"


def test_importing_the_operators_loads_no_vendor_package() -> None:
    code = (
        "import sys, glm5_ascend.ops\n"
        "from importlib import import_module\n"
        "from glm5_ascend.ops import dispatch\n"
        "for row in dispatch.availability():\n"
        "    file = dispatch._BACKENDS[row.backend].module\n"
        "    if row.backend != 'triton' and 'not implement' not in row.reason:\n"
        "        import_module(f'glm5_ascend.ops.{dispatch.OPERATORS[row.operator]}.{file}')\n"
        "print([m for m in ('torch_npu', 'triton', 'vllm', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_backends_do_not_import_each_other() -> None:
    for path in Path(dispatch.__file__).parent.glob("*/*.py"):
        if path.name in ("reference.py", "cpu.py"):
            assert "api import" not in path.read_text(encoding="utf-8"), path
