"""Norms, int8 linears and experts in C++: sets of results to compare, and libraries with faults."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops import entry_points
from glm5_ascend.ops.moe import cpu as moe
from glm5_ascend.ops.native import compiler
from glm5_ascend.ops.norm_rope import cpu as norm_rope
from glm5_ascend.ops.quant_linear import cpu as quant_linear
from glm5_ascend.ops.verify.experts import Experts

OPS = Path(entry_points.__file__).resolve().parent
BACKENDS = {"norm_rope": norm_rope, "quant_linear": quant_linear, "moe": moe}


def forget() -> None:
    """Let every backend ask for its library again."""
    for backend in BACKENDS.values():
        backend.KERNELS.forget()


def results(backend: str) -> dict[str, Tensor]:
    """Results whose bits follow from the arithmetic alone, for widths at and off vector borders."""
    torch.manual_seed(0)
    made: dict[str, Tensor] = {}
    for rows, terms, outputs in ((1, 192, 50), (3, 47, 66), (9, 1029, 7), (37, 128, 129)):
        shape = f"{rows}x{terms}x{outputs}"
        x = torch.randn(rows, terms)
        weight = torch.randint(-128, 128, (outputs, terms), dtype=torch.int8)
        x[0], weight[0] = -3, -128
        scale, bias = torch.rand(outputs, 1), torch.randn(outputs)
        total = torch.randint(-999, 999, (outputs,), dtype=torch.int32)
        step, zero = torch.tensor([0.0234]), torch.tensor([-27], dtype=torch.int8)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            name, rounded = f"{shape} {dtype}", x.to(dtype)
            codes = ops.dynamic_quant(rounded, backend=backend)
            made |= {f"codes {name}": codes[0], f"scale {name}": codes[1]}
            made[f"dynamic {name}"] = ops.linear_w8a8_dynamic(
                rounded, weight, scale, bias, backend=backend
            )
            made[f"static {name}"] = ops.linear_w8a8_static(
                rounded, weight, step, zero, total, scale[:, 0], backend=backend
            )
    cos, sin = ops.rotary_table(torch.arange(5) * 99, 46, 8e6)
    for dtype in (torch.float32, torch.bfloat16):
        heads = torch.randn(5, 4, 100).to(dtype)[..., 54:]
        made[f"rotary {dtype}"] = ops.rotary_interleaved(heads, cos=cos, sin=sin, backend=backend)
    return made


def rounded_results(backend: str) -> dict[str, Tensor]:
    """Results that depend on an order of sums or on the exponential function."""
    torch.manual_seed(1)
    made: dict[str, Tensor] = {}
    for width in (33, 192):
        x, weight, bias = torch.randn(5, width), torch.randn(width), torch.randn(width)
        made[f"rms {width}"] = ops.rms_norm(x, weight, 1e-5, backend=backend)
        made[f"layer {width}"] = ops.layer_norm(x, weight, bias, backend=backend)
    logits, bias = torch.randn(9, 70), torch.randn(70)
    made["weights"], made["ids"] = ops.moe_gating(logits, bias, 6, 2.5, backend=backend)
    for scheme in ("w8a8", "w4a8"):
        made[scheme] = ops.moe_experts(**Experts(23).quantised(scheme), backend=backend)
    return made


@contextmanager
def planted(folder: Path, operator: str, file: str, old: str, new: str) -> Iterator[None]:
    """Run ``operator`` on kernels in which ``old`` became ``new`` in ``file``.

    Compiled for the portable set without optimisation, which takes a second.
    """
    shutil.copytree(OPS / "native" / "csrc", folder / "shared")
    shutil.copytree(OPS / operator / "csrc", folder / operator / "csrc")
    path = next(p for p in folder.rglob("*") if p.name == file)
    text = path.read_text()
    assert text.count(old) == 1, f"{file} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))
    tool, objects = compiler.find(), []
    for source in sorted((folder / operator / "csrc").glob("*.cpp")):
        objects.append(folder / f"{source.stem}.o")
        tool.compile(source, objects[-1], ("-DG5_PORTABLE=1", "-O0"), folder / "shared")
    tool.link(objects, folder / "planted.so")
    entry_points.library(operator)  # the pool, whose functions the planted library calls
    with pytest.MonkeyPatch.context() as patch:
        library = ctypes.CDLL(str(folder / "planted.so"))
        patch.setattr(entry_points, "library", lambda operator: library)
        forget()
        yield
    forget()
