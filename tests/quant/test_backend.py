"""The choice of arithmetic: kernels by default, torch on request, and nothing in silence."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from glm5_ascend.errors import BackendUnavailable, CheckpointError
from glm5_ascend.ops.native import compiler
from glm5_ascend.quant.backend import CPU, REFERENCE, Backend, chosen
from glm5_ascend.quant.folding import Axis
from glm5_ascend.quant.identity import require_same_job
from glm5_ascend.quant.native import kernel, kernel_axis
from glm5_ascend.quant.nearest import round_nearest
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.quant.rotation import (
    Orthogonal,
    hadamard,
    on_columns,
    on_rows,
    shifted_blocks,
)
from glm5_ascend.quant.rounding import round_int4, round_int8
from tests.quant.conftest import nearly_equal, quantize, tensors_of
from tests.quant.test_refusals import assert_refused, invoke


@pytest.fixture(scope="module")
def by_torch(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    target = tmp_path_factory.mktemp("reference") / "w4a8"
    return tensors_of(quantize(source, target, "w4a8", backend=REFERENCE))


def test_both_paths_store_the_same_weights(w4a8: Path, by_torch: dict[str, torch.Tensor]) -> None:
    """Floats to the last bit of bfloat16; weights of integers within a step of each other."""
    made = tensors_of(w4a8)
    assert made.keys() == by_torch.keys()
    integers = [name for name in made if made[name].dtype == torch.int8]
    assert len(integers) > 100
    for name in integers:
        module = name.removesuffix(".weight")
        found, wanted = (_weight(tensors, module) for tensors in (made, by_torch))
        step = torch.maximum(made[f"{module}.weight_scale"], by_torch[f"{module}.weight_scale"])
        # The scales differ too, by up to a tenth where the error is flat.
        assert float((found - wanted).abs().mean() / step.mean()) < 0.3, name
    for name in made.keys() - set(integers):
        if made[name].dtype == torch.bfloat16:
            assert nearly_equal(made[name], by_torch[name]), name


def _weight(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    codes = tensors[f"{module}.weight"]
    if f"{module}.scale_bias" in tensors:
        codes = unpack_rows(codes)
    return codes.double() * tensors[f"{module}.weight_scale"].double()


def test_a_run_is_resumed_by_the_backend_that_began_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"backend \(cpu, now reference on cuda\)"):
        require_same_job(
            tmp_path,
            {"backend": CPU.job, "plan_sha256": ""},
            {"backend": Backend("reference", "cuda").job, "plan_sha256": ""},
        )


def test_without_a_compiler_the_hint_names_the_other_path(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_compiled(name: str, home: Path) -> ctypes.CDLL:
        compiler.find()
        raise AssertionError("found a compiler")

    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(kernel, "library", nothing_compiled)
    result = invoke(source, tmp_path / "out", "--scheme", "w4a8")
    assert_refused(result, 5, "no-such-compiler")
    assert "--backend reference" in result.stderr
    assert "--op-backend" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "cuda"), ("no CUDA device to quantise on",)),
        (("--device", "npu"), ("no NPU", "torch_npu is not installed")),
        (("--device", "cuda", "--backend", "cpu"), ("no kernels for --device cuda",)),
    ],
)
def test_a_device_that_is_absent(
    options: tuple[str, ...], words: tuple[str, ...], source: Path, tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    result = invoke(source, tmp_path / "out", "--scheme", "w4a8", *options)
    assert_refused(result, 5, *words)
    assert not (tmp_path / "out").exists()


def test_a_device_takes_the_reference() -> None:
    assert chosen(None, "cpu") == CPU
    assert chosen("reference", "cpu") == REFERENCE
    assert chosen(None, "npu").dtype == torch.float32
    assert chosen(None, "cuda").dtype == torch.float64


def test_the_reference_stays_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device ``meta`` computes nothing, and refuses to meet a tensor of the CPU."""
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    matrices = {"R1": hadamard("R1", 96, 1), "R2": shifted_blocks("R2", 64, 1)}
    weight = torch.randn(64, 96, device="meta")
    turned = on_columns(weight, Axis((("R1", 96),)), matrices)
    turned = on_rows(turned, Axis((("R2", 64),)), matrices)
    for codes, scale in (round_int4(turned), round_int8(turned), round_nearest(turned, 4)):
        assert {codes.device.type, scale.device.type} == {"meta"}


def test_a_rotation_without_a_kernel_is_refused() -> None:
    learned = Orthogonal("R1", 32, lambda x: x)
    with pytest.raises(BackendUnavailable, match="R1, which is no Hadamard") as caught:
        kernel_axis(Axis((("R1", 32),)), {"R1": learned})
    assert "--backend reference" in caught.value.hint
