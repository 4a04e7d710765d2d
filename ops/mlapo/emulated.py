"""The AscendC kernel of MLA pre-processing, run by the emulator.

A launch in which the emulator finds anything has no result.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.ops.emulator import recording
from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import (
    Buffer,
    Options,
    inout,
    inputs,
    launch,
    output,
    workspace,
)
from glm5_ascend.ops.emulator.report import Report
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Outputs, Static
from glm5_ascend.ops.mlapo.nz import fractal_nz

SOURCE = Path(__file__).parent / "ascendc" / "kernels.cpp"
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
# int8 weights (first product, second product) -> part of the kernel's name.
_MODES = {(False, False): "", (False, True): "_up", (True, True): "_int8"}
NAMES = [
    f"mlapo_{dtype}{mode}{tiles}"
    for tiles in ("", "_small")
    for dtype in _DTYPES.values()
    for mode in _MODES.values()
]
# enum Refusal of tiling.h
_REFUSALS = {
    1: "takes 1 to 1024 tokens, not {s.tokens}",
    2: "takes hidden sizes of whole 32-byte blocks up to 7168, not {s.hidden}",
    3: "takes q_lora sizes of whole 32-byte blocks up to 2048, not {s.q_lora}",
    4: "takes kv_lora sizes up to 2048 that are multiples of 16, and of 128 beyond 128, not "
    "{s.kv_lora}",
    5: "takes nope sizes that are multiples of 16 and rope sizes of 16, 32, 48 and 64, not "
    "{s.nope} and {s.rope}",
    6: "takes at most 2688 columns of weight_dq and weight_dkv_kr together, not {columns}",
    7: "takes at most 65535 columns of weight_uq_qr, not {up}",
}


class Tiling(ctypes.Structure):
    """``mlapo::Tiling`` of ``ascendc/tiling.h``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("tokens", "hidden", "q_lora", "kv_lora")),
        *((name, ctypes.c_int32) for name in ("heads", "nope", "rope", "cores", "quantise_x")),
        *((name, ctypes.c_int32) for name in ("x_static", "latent_static", "keep_latent")),
        *((name, ctypes.c_int32) for name in ("packed", "int8_query")),
        *((name, ctypes.c_float) for name in ("eps_q", "eps_kv")),
        *((name, ctypes.c_int64) for name in ("kv_row", "kr_row")),
        *((name, ctypes.c_int32) for name in ("group", "block", "split_k", "up_split")),
        *((name, ctypes.c_int32) for name in ("down_waves", "up_waves", "nope_waves")),
        *((name, ctypes.c_int32) for name in ("tile_heads", "absorb_tile")),
        *((name, ctypes.c_int64) for name in ("codes_at", "scales_at", "down_at", "up_at")),
        *((name, ctypes.c_int64) for name in ("nope_at", "query_at", "workspace")),
    )


@dataclass(frozen=True)
class Setting:
    """How to launch: AICs (None: 4 for small tiles, 24 else), and the emulator's options."""

    blocks: int | None = None
    options: Options = field(default_factory=lambda: Options(isolated=False, timeout=600.0))
    small: bool | None = None  # tiles; None: small ones where they take the sizes
    sanitize: bool = False


def forward(inputs: Inputs) -> Outputs:
    """Queries, and the rows of the caches, of ``inputs.x``; README.md has the kernel's limits.

    Raises:
        Declined: sizes, dtypes or options that the kernel does not take.
        KernelHazard: the emulator found a fault.
    """
    outputs, report = run(inputs, Setting())
    report.check("mlapo")
    return outputs


def run(call: Inputs, setting: Setting) -> tuple[Outputs, Report]:
    """Outputs, and what the emulator reports; caches are written where the report is clean."""
    _check(call)
    library = built(setting.sanitize)
    name, tiling = _plan(call, library, setting)
    caches = (call.kv_cache, call.kr_cache)
    cache_rows = [_rows(cache) for cache in caches]
    tiling.kv_row, tiling.kr_row = (rows.shape[-1] for rows in cache_rows)
    results = _results(call)
    arguments = [*_arguments(call), *_cache_arguments(cache_rows)]
    arguments += [output(each, data) for each, data in results.items()]
    report = launch(
        library,
        name,
        [*arguments, workspace("workspace", tiling.workspace), tiling],
        blocks=tiling.cores,
        options=setting.options,
    )
    if report.clean:
        for cache, rows in zip(caches, cache_rows, strict=True):
            if cache is not None:
                cache.copy_(rows.view(cache.shape))
    return _outputs(call, results), report


@cache
def built(sanitize: bool = False) -> Library:
    """The kernels, compiled for the emulator; with the sanitiser those with reduced tiles."""
    names = [name for name in NAMES if name.endswith("_small") or not sanitize]
    kernels = [Kernel(name, name, "mix12") for name in names]
    defines = ["MLAPO_REDUCED"] if sanitize else []
    return build(SOURCE, kernels, defines=defines, sanitize=sanitize)


def _check(call: Inputs) -> None:
    if call.dtype not in _DTYPES:
        raise Declined(
            "the AscendC kernel of mlapo takes activations of bfloat16 and float16, not "
            f"{call.dtype}"
        )


def _plan(call: Inputs, library: Library, setting: Setting) -> tuple[str, Tiling]:
    sizes, mode = call.sizes, (call.down_q.is_int8, call.up_q.is_int8)
    name = f"mlapo_{_DTYPES[call.dtype]}{_MODES[mode]}"
    wanted = [False] if recording.costing() else [True, False]
    if setting.small is not None:
        wanted = [setting.small]
    for small in wanted:
        tiling = Tiling(
            **{key: getattr(sizes, key) for key in ("tokens", "hidden", "q_lora", "kv_lora")},
            heads=sizes.heads,
            nope=sizes.nope,
            rope=sizes.rope,
            cores=setting.blocks or recording.cores(4 if small else 24),
            quantise_x=call.down_q.is_int8 and call.x_scale is None,
            x_static=call.x_static is not None,
            latent_static=call.latent_static is not None,
            keep_latent=call.latent == "float",
            packed=call.kr_cache is None,
            int8_query=call.quantise_query,
            eps_q=call.eps_q,
            eps_kv=call.eps_kv,
        )
        kernel = name + ("_small" if small else "")
        code = getattr(library.handle, f"{kernel}_plan")(ctypes.byref(tiling))
        if code == 0:
            return kernel, tiling
    columns, up = sizes.q_lora + sizes.kv_lora + sizes.rope, call.up_q.weight.shape[0]
    reason = _REFUSALS[code].format(s=sizes, columns=columns, up=up)
    raise Declined(f"the AscendC kernel of mlapo {reason}")


def _arguments(call: Inputs) -> list[Buffer]:
    sizes = call.sizes
    return [
        inputs("x", call.x.contiguous()),
        inputs("x_scale", _present(call.x_scale)),
        inputs("x_point", _point(call.x_static)),
        inputs("latent_point", _point(call.latent_static)),
        inputs("down", fractal_nz(call.down_q.weight, call.down_kv.weight)),
        inputs("down_scale", _columns("scale", call.down_q, call.down_kv)),
        inputs("down_bias", _columns("bias", call.down_q, call.down_kv)),
        inputs("up", fractal_nz(call.up_q.weight)),
        inputs("up_scale", _columns("scale", call.up_q)),
        inputs("up_bias", _columns("bias", call.up_q)),
        inputs("absorb", fractal_nz(call.absorb.transpose(1, 2))),
        inputs("gamma_q", call.gamma_q),
        inputs("gamma_kv", call.gamma_kv),
        inputs("cos", call.cos.float().contiguous()),
        inputs("sin", call.sin.float().contiguous()),
        inputs("slots", call.slots.to(torch.int32).view(sizes.tokens).contiguous()),
    ]


def _columns(what: str, *linears: Linear) -> Tensor:
    parts = [getattr(linear, what) for linear in linears]
    return torch.cat(parts) if parts[0] is not None else _nothing()


def _point(static: Static | None) -> Tensor:
    if static is None:
        return _nothing()
    return torch.stack((static.scale.float().view(()), static.offset.float().view(())))


def _present(x: Tensor | None) -> Tensor:
    return _nothing() if x is None else x


def _nothing() -> Tensor:
    """What the kernel does not read."""
    return torch.zeros(1)


def _rows(cache: Tensor | None) -> Tensor:
    """A copy of the cache as rows without gaps: a launch with findings leaves the cache alone."""
    if cache is None:
        return _nothing().view(1, 1)
    return cache.clone(memory_format=torch.contiguous_format).view(-1, cache.shape[-1])


def _cache_arguments(rows: list[Tensor]) -> list[Buffer]:
    return [inout(name, each) for name, each in zip(("kv_cache", "kr_cache"), rows, strict=True)]


def _results(call: Inputs) -> dict[str, Tensor]:
    s = call.sizes
    codes = call.up_q.is_int8
    latent = s.q_lora if not codes or call.latent == "float" else 0
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "query": (
            (s.tokens, s.heads, s.kv_lora),
            torch.int8 if call.quantise_query else call.dtype,
        ),
        "query_scale": ((s.tokens, s.heads, 1), torch.float32),
        "query_rope": ((s.tokens, s.heads, s.rope), call.dtype),
        "latent": ((s.tokens, latent), call.dtype),
        "latent_codes": ((s.tokens, s.q_lora if codes else 0), torch.int8),
        "latent_scale": ((s.tokens, 1), torch.float32),
    }
    return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}


def _outputs(call: Inputs, results: dict[str, Tensor]) -> Outputs:
    scale = results["latent_scale"] if call.latent_static is None else None
    latent = {
        "none": (None, None),
        "float": (results["latent"], None),
        "int8": (results["latent_codes"], scale),
    }[call.latent]
    query_scale = results["query_scale"] if call.quantise_query else None
    return Outputs(results["query"], results["query_rope"], query_scale, *latent)
