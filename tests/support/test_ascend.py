"""AscendOracle: its reading of the format, its arithmetic, and that format faults show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.ascend import AscendOracle, unpack_int4
from tests.support.fake_quant import Channel, Static
from tests.support.hf import HfOracle
from tests.support.teacher_forced import step_errors, teacher_forced_error
from tests.support.tiny_ascend import write_tiny_ascend
from tests.support.weights import read_tensors

Tensors = dict[str, torch.Tensor]
WEIGHTS = "quant_model_weights.safetensors"
VARIANTS = [("w8a8", False), ("w8a8", True), ("w4a8", False)]


@pytest.fixture(scope="module")
def quantised(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_ascend(tiny, tmp_path_factory.mktemp("w4a8"))


@pytest.fixture(scope="module")
def static(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_ascend(tiny, tmp_path_factory.mktemp("static"), scheme="w8a8", static=True)


def changed(source: Path, target: Path, change: Callable[[Tensors, dict[str, Any]], None]) -> Path:
    """Copy a checkpoint with its tensors and description changed in place."""
    shutil.copytree(source, target)
    tensors = load_file(source / WEIGHTS)
    path = target / "quant_model_description.json"
    description = json.loads(path.read_text())
    change(tensors, description)
    save_file(tensors, target / WEIGHTS)
    path.write_text(json.dumps(description))
    return target


def test_unpacking_by_hand() -> None:
    # Rows 0..3 of one column hold 7, -8, -1, 3; the even row of each pair is the low nibble.
    packed = torch.tensor([[0x87], [0x3F]], dtype=torch.uint8).view(torch.int8)
    assert unpack_int4(packed).flatten().tolist() == [7, -8, -1, 3]
    assert unpack_int4(packed).dtype == torch.int8


@pytest.mark.parametrize(("scheme", "is_static"), VARIANTS)
def test_weights_are_read_as_written(
    scheme: str, is_static: bool, tiny: Path, tmp_path: Path
) -> None:
    """Dequantised weights are within half a step of the source in every module of the scheme."""
    directory = write_tiny_ascend(tiny, tmp_path / "q", scheme=scheme, static=is_static)
    oracle, source = AscendOracle(directory), read_tensors(tiny)
    kinds = {m: oracle.description[f"{m}.weight"] for m in oracle.quantised}
    layer = "model.layers.1."
    assert kinds[f"{layer}mlp.experts.3.up_proj"] == f"{scheme.upper()}_DYNAMIC"
    assert kinds[f"{layer}self_attn.indexer.wq_b"] == ("W8A8" if is_static else "W8A8_DYNAMIC")
    assert kinds["model.layers.4.mlp.experts.0.down_proj"] == "W8A8_DYNAMIC"
    assert not any(m.endswith(("kv_b_proj", "wk", "weights_proj", "gate")) for m in kinds)
    for module, weight in oracle.quantised.items():
        wanted = source[f"{module}.weight"].float()
        top = 7 if kinds[module] == "W4A8_DYNAMIC" else 127
        step = wanted.abs().amax(dim=1, keepdim=True) / top
        # Half a step, plus what a BF16 scale moves and clips.
        error = (weight.dequantised() - wanted).abs() / step
        assert error.max() < 0.5 + top / 256, module


@pytest.mark.parametrize(("scheme", "is_static"), VARIANTS)
def test_quantisation_noise_is_plausible(
    scheme: str, is_static: bool, tiny: Path, tmp_path: Path, oracle: HfOracle, tokens: torch.Tensor
) -> None:
    directory = write_tiny_ascend(tiny, tmp_path / "q", scheme=scheme, static=is_static)
    sound = oracle.forward(tokens)
    weights = AscendOracle(directory, activations=False).forward(tokens, inject=sound.choices)
    both = AscendOracle(directory).forward(tokens, inject=sound.choices)
    limit = 0.3 if scheme == "w8a8" else 1.2
    only_weights = step_errors(weights.logits, sound.logits).median()
    assert 0.01 < only_weights < limit
    # Activation quantisation is really applied.
    assert teacher_forced_error(both.logits, weights.logits) > 0.02
    assert step_errors(both.logits, sound.logits).median() < 1.5 * limit


def test_dynamic_linear_by_formula(quantised: Path) -> None:
    oracle = AscendOracle(quantised)
    module = "model.layers.0.self_attn.q_a_proj"
    weight = oracle.quantised[module]
    assert isinstance(weight, Channel)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(4)) * torch.tensor(
        [[1e-3], [1.0], [50.0], [0.0], [2.0]]
    )
    rows = x.numpy()
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(rows, scale, where=scale > 0, out=np.zeros_like(rows)))
    exact = codes.astype(np.int64) @ weight.codes.numpy().astype(np.int64).T
    wanted = exact * scale.astype(np.float64) * weight.scale.numpy().astype(np.float64).T
    linear = oracle.model.model.layers[0].self_attn.q_a_proj
    assert torch.equal(linear(x), torch.from_numpy(wanted).float())
    assert torch.equal(linear(x)[3], torch.zeros(32))


def test_static_linear_by_formula(static: Path, tiny: Path) -> None:
    oracle = AscendOracle(static)
    weight = oracle.quantised["model.layers.2.self_attn.o_proj"]
    assert isinstance(weight, Static)
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(5)) * 0.2
    y = oracle.model.model.layers[2].self_attn.o_proj(x)
    # Integers: x_q·w_q with the offset taken out again is the product with the dequantised input.
    step, offset = float(weight.input_scale), int(weight.input_offset)
    codes = np.clip(np.rint(x.numpy() / np.float32(step)) + offset, -128, 127)
    dequantised = torch.from_numpy((codes - offset) * step).double()
    wanted = dequantised @ weight.dequantised().double().T
    assert (y.double() - wanted).abs().max() < 1e-5 * wanted.abs().max()
    exact = x.double() @ read_tensors(tiny)["model.layers.2.self_attn.o_proj.weight"].double().T
    assert (wanted - exact).norm() / exact.norm() < 0.05


def test_settled_ties_make_two_precisions_agree(quantised: Path, tokens: torch.Tensor) -> None:
    """Injected codes decide rounding ties; they cannot cover up a wrong scale."""
    single = AscendOracle(quantised, record_codes=True)
    run = single.forward(tokens)
    assert run.choices.codes["model.layers.1.mlp.experts.down"].shape == (96, 2, 16)
    assert run.choices.codes["model.layers.1.self_attn.indexer.wq_b"].dtype == torch.int8
    double = AscendOracle(quantised, dtype=torch.float64, record_codes=True)
    again = double.forward(tokens, inject=run.choices)
    assert teacher_forced_error(run.logits, again.logits) < 1e-4
    for module, codes in run.choices.codes.items():
        assert torch.equal(again.choices.codes[module], codes), module

    weight = double.quantised["model.layers.1.self_attn.q_a_proj"]
    assert isinstance(weight, Channel)
    weight.scale[3] *= 1.02
    assert (
        teacher_forced_error(double.forward(tokens, inject=run.choices).logits, run.logits) > 1e-3
    )


def test_mtp_of_a_quantised_checkpoint(
    quantised: Path, oracle: HfOracle, tokens: torch.Tensor
) -> None:
    ours = AscendOracle(quantised)
    hidden = oracle.forward(tokens[:-1]).hidden
    wanted = oracle.mtp.step(tokens[1:], hidden)
    reached = ours.mtp.step(tokens[1:], hidden, inject=wanted.choices)
    errors = step_errors(reached.logits, wanted.logits)
    assert 0.005 < errors.median() < 0.3


def swap_nibbles(tensors: Tensors, _: dict[str, Any]) -> None:
    name = "model.layers.1.mlp.experts.0.gate_proj.weight"
    byte = tensors[name].view(torch.uint8)
    tensors[name] = ((byte >> 4) | (byte << 4)).view(torch.int8)


def one_column_bias(tensors: Tensors, _: dict[str, Any]) -> None:
    name = "model.layers.1.mlp.experts.0.down_proj.scale_bias"
    tensors[name] = tensors[name].sum(dim=1, keepdim=True)


def wrong_bias(tensors: Tensors, _: dict[str, Any]) -> None:
    tensors["model.layers.1.mlp.experts.0.up_proj.scale_bias"] *= 1.001


def flat_scale(tensors: Tensors, _: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.q_a_proj.weight_scale"
    tensors[name] = tensors[name][:, 0].clone()


def undescribed(_: Tensors, description: dict[str, Any]) -> None:
    del description["model.layers.0.self_attn.o_proj.weight"]


def grouped(_: Tensors, description: dict[str, Any]) -> None:
    description["group_size"] = 256


def extra_tensor(tensors: Tensors, _: dict[str, Any]) -> None:
    tensors["model.layers.0.self_attn.o_proj.weight_scale_second"] = torch.ones(1)


def missing_tensor(tensors: Tensors, _: dict[str, Any]) -> None:
    del tensors["model.layers.1.self_attn.indexer.wk.weight"]


@pytest.mark.parametrize(
    "change",
    [
        swap_nibbles,
        one_column_bias,
        wrong_bias,
        flat_scale,
        undescribed,
        grouped,
        extra_tensor,
        missing_tensor,
    ],
)
def test_broken_format_is_refused(
    change: Callable[[Tensors, dict[str, Any]], None], quantised: Path, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        AscendOracle(changed(quantised, tmp_path / "broken", change))


def test_swapped_nibbles_show_without_the_bias_check(
    quantised: Path, tmp_path: Path, tokens: torch.Tensor
) -> None:
    sound = AscendOracle(quantised).forward(tokens)
    broken = AscendOracle(changed(quantised, tmp_path / "b", swap_nibbles), check_bias=False)
    reached = broken.forward(tokens, inject=sound.choices)
    assert teacher_forced_error(reached.logits, sound.logits) > 0.05
