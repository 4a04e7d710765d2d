"""Int8 linears, rotary embedding and experts compiled for ARM, run under an emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.verify.experts import Experts
from tests.ops.native.calls import Array, Call, Out, emulated
from tests.ops.native.cross import driver, emulator

F32 = 0
SHAPES = ((1, 192, 50), (3, 47, 66), (9, 1029, 7))


def _arrays(*tensors: Tensor) -> list[Array]:
    return [t.contiguous().numpy() for t in tensors]


def _run(operator: str, calls: list[Call], folder: Path) -> list[list[Array]]:
    entries = sorted({call.entry for call in calls})
    command = [emulator(), str(driver(operator, entries, "neon", folder))]
    return emulated(command, entries, calls, folder, threads=2)


def test_linears(tmp_path: Path) -> None:
    torch.manual_seed(0)
    calls, wanted = [], []
    for rows, terms, outputs in SHAPES:
        x, scale = torch.randn(rows, terms), torch.rand(outputs, 1)
        weight = torch.randint(-128, 128, (outputs, terms), dtype=torch.int8)
        weight[0], x[0] = -128, -3
        bias = torch.randint(-999, 999, (outputs,), dtype=torch.int32)
        step, zero, deq = torch.tensor([0.0234]), torch.tensor([-27.0]), scale[:, 0]
        xs, ws, ss, bs, steps, zeros, deqs = _arrays(x, weight, scale, bias, step, zero, deq)
        source = (xs, F32, rows, terms, terms, ws, outputs)
        result = Out(np.float32, (rows, outputs))
        calls.append(Call("g5_linear_dynamic", (*source, ss, F32, None, 0, result)))
        wanted.append(ops.linear_w8a8_dynamic(x, weight, scale, backend="reference"))
        static = (*source, steps, F32, zeros, F32, bs, deqs, result)
        calls.append(Call("g5_linear_static", static))
        static_wanted = ops.linear_w8a8_static(
            x, weight, step, zero, bias, deq, backend="reference"
        )
        wanted.append(static_wanted)
    for expected, (found,) in zip(wanted, _run("quant_linear", calls, tmp_path), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())


def test_rotary(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4, 46)
    cos, sin = ops.rotary_table(torch.arange(5) * 99, 46, 8e6)
    xs, cosines, sines = _arrays(x, cos, sin)
    result = Out(np.float32, (5, 4, 46))
    call = Call("g5_rotary", (xs, F32, 5, 4, 46, 4 * 46, 46, cosines, sines, F32, result))
    ((found,),) = _run("norm_rope", [call], tmp_path)
    wanted = ops.rotary_interleaved(x, cos=cos, sin=sin, backend="reference")
    np.testing.assert_array_equal(found, wanted.numpy())


def test_experts(tmp_path: Path) -> None:
    case, calls = Experts(9), []
    experts, inner, hidden = case.c13.shape[0], case.c2.shape[2], case.x.shape[1]
    result = Out(np.float32, (9, hidden))
    head = (*_arrays(case.x), F32, 9, hidden, hidden, *_arrays(case.weights, case.ids), 4)
    for scheme, number in (("w8a8", 1), ("w4a8", 2), ("float", 0)):
        layers: list[Array | int | None] = []
        given = case.quantised(scheme)
        for layer in ("w13", "w2"):
            if scheme == "float":
                layers += [*_arrays(getattr(case, layer)), None, 0, None, 0]
                continue
            layers += [*_arrays(given[layer], given[f"{layer}_scale"]), F32]
            bias = given.get(f"{layer}_scale_bias")
            layers += [None, 0] if bias is None else [*_arrays(bias), bias.shape[2]]
        sizes = (case.ids.shape[1], experts, inner, number, F32)
        calls.append(Call("g5_moe_experts", (*head, *sizes, *layers, result)))
    found = _run("moe", calls, tmp_path)
    case.check(torch.from_numpy(found[0][0]), "w8a8")
    case.check(torch.from_numpy(found[1][0]), "w4a8")
    np.testing.assert_allclose(found[2][0], case.oracle(np.float32), rtol=0, atol=2e-6)
