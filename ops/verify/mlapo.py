"""Conformance of MLA pre-processing: every result, and the rows of the caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare, formula, mla
from glm5_ascend.ops.verify.case import DTYPES, Call, Case, Outputs, Problem, Verdict, invoke
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.mla import Mistake, Settled, Sizes
from glm5_ascend.ops.verify.packed import TILE, WIDTH, pack, unpack
from glm5_ascend.ops.verify.requests import poison

THETA, EPS = 8e6, 1e-5
# GLM-5 and DeepSeek-V3.2 with less of everything but the head; the small model.
GLM5, DEEPSEEK = Sizes(384, 256, 4, 192), Sizes(448, 192, 8, 128)
SMALL = Sizes(192, 96, 4, 48, latent=256)
FULL = Sizes(6144, 2048, 64, 192)


@dataclass(frozen=True, kw_only=True)
class MlapoCase(Case):
    """One call of ``mlapo``.

    Args:
        mode: int8 weights: 0 none, 1 of the q latent, 2 all.
        static: activations quantised statically.
        codes: token_x comes quantised per token.
        packed: 656-byte cache rows.
        int8_query: query quantised per token and head.
        std: of token_x; small values make the norms' epsilon count.
    """

    tokens: int
    sizes: Sizes = GLM5
    dtype: torch.dtype = torch.bfloat16
    mode: int = 0
    static: bool = False
    codes: bool = False
    packed: bool = False
    int8_query: bool = False
    latent_codes: bool = False
    std: float = 1.0

    @property
    def operator(self) -> str:
        """mlapo."""
        return "mlapo"

    def __str__(self) -> str:
        flags = ("static", "codes", "packed", "int8_query", "latent_codes")
        parts = [str(self.tokens), str(self.sizes), DTYPES[self.dtype], f"weights{self.mode}"]
        parts += [flag for flag in flags if getattr(self, flag)]
        parts += [f"std{self.std:g}"] if self.std != 1 else []
        return "-".join(parts + ([f"seed{self.seed}"] if self.seed else []))

    def problem(self) -> Problem:
        """Draw weights and tokens."""
        return MlapoProblem(self)


class MlapoProblem(Problem):
    """Tokens with slots, every fifth of them -1."""

    def __init__(self, case: MlapoCase) -> None:
        self.case = case
        gen = torch.Generator().manual_seed(1000 * case.seed + case.tokens)
        int8 = (case.mode == 2, case.mode > 0)
        self.weights = mla.draw(case.sizes, case.dtype, int8, case.static, case.seed + 1)
        x = (case.std * torch.randn(case.tokens, case.sizes.hidden, generator=gen)).to(case.dtype)
        self.x = x
        self.codes, self.x_scale = None, None
        if case.codes:
            self.codes, self.x_scale = formula.quantise(x.float().numpy())
        position = 997 * torch.arange(case.tokens).double()[:, None]
        step = THETA ** (-torch.arange(0, case.sizes.rope, 2).double() / case.sizes.rope)
        self.cos, self.sin = ((f(position * step)).float() for f in (torch.cos, torch.sin))
        self.blocks = -(-2 * case.tokens // 16) + 1
        self.slots = torch.randperm(16 * self.blocks, generator=gen)[: case.tokens]
        self.slots[2::5] = -1

    def compute(self, settled: Settled | None = None, **wrong: Any) -> tuple[Outputs, Outputs]:
        """In F64 and in F32, both rounded between the stages; ``wrong`` plants mistakes."""
        weights = self.weights
        if wrong.pop("bias_forgotten", False):
            each = ("down_q", "down_kv", "up_q")
            changed = {name: replace(getattr(weights, name), corrected=False) for name in each}
            weights = replace(weights, **changed)
        both = []
        for dtype in formula.PRECISIONS:
            scale = None if self.x_scale is None else self.x_scale.astype(dtype)
            found = mla.prologue(
                self.x.double().numpy().astype(dtype),
                self.codes,
                scale,
                weights,
                torch.complex(self.cos, self.sin).numpy(),
                EPS,
                mla.rounding(self.case.dtype),
                Mistake(**wrong),
                settled and settled.in_type(dtype),
            )
            both.append({name: torch.from_numpy(v) for name, v in found.items()})
        return both[0], {name: v.to(self.case.dtype) for name, v in both[1].items()}

    def _arguments(self, index: Tensor, caches: dict[str, Tensor]) -> dict[str, Any]:
        case, weights = self.case, self.weights
        arguments: dict[str, Any] = {
            "token_x": self.x[index],
            "weight_uk": torch.from_numpy(weights.absorb).to(case.dtype),
            "rmsnorm_gamma_cq": torch.from_numpy(weights.gamma_q).to(case.dtype),
            "rmsnorm_gamma_ckv": torch.from_numpy(weights.gamma_kv).to(case.dtype),
            "rope_sin": self.sin[index],
            "rope_cos": self.cos[index],
            "cache_index": self.slots[index],
            "rmsnorm_epsilon_cq": EPS,
            "rmsnorm_epsilon_ckv": EPS,
            "query_norm_flag": True,
            "query_norm_quantised": case.latent_codes,
            "weight_quant_mode": case.mode,
            "query_quant_mode": int(case.int8_query),
            **caches,
        }
        for name, projection in (
            ("dq", weights.down_q),
            ("dkv_kr", weights.down_kv),
            ("uq_qr", weights.up_q),
        ):
            tensors = mla.fields(projection, case.dtype)
            arguments[f"weight_{name}"] = tensors["weight"]
            if "scale" in tensors:
                arguments[f"dequant_scale_w_{name}"] = tensors["scale"]
            if "bias" in tensors:
                arguments[f"quant_bias_{name}"] = tensors["bias"]
        for name, static in (("x", weights.down_q.static), ("cq", weights.up_q.static)):
            if static is not None:
                arguments[f"quant_scale_{name}"] = torch.tensor([static.scale])
                arguments[f"quant_offset_{name}"] = torch.tensor([float(static.offset)])
        if self.codes is not None and self.x_scale is not None:
            arguments["token_x"] = torch.from_numpy(self.codes).to(torch.int8)[index]
            arguments["dequant_scale_x"] = torch.from_numpy(self.x_scale)[index]
        if case.packed:
            modes = {"kv_cache_quant_mode": 3, "ckvkr_repo_mode": 1, "quant_scale_repo_mode": 1}
            arguments |= modes
        return arguments

    def _caches(self) -> dict[str, Tensor]:
        case = self.case
        like = torch.zeros(0, dtype=torch.int8 if case.packed else case.dtype)
        width = WIDTH if case.packed else case.sizes.latent
        rope = poison((self.blocks, 16, 1, case.sizes.rope), torch.zeros(0, dtype=case.dtype))
        return {"kv_cache": poison((self.blocks, 16, 1, width), like), "kr_cache": rope}

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """The five results, and both caches; shuffled: backwards in two calls."""
        caches, order = self._caches(), torch.arange(self.case.tokens)
        parts = order.flip(0).tensor_split((self.case.tokens // 3,)) if shuffled else [order]
        found: dict[str, list[Tensor]] = {}
        names = ("query", "query_rope", "query_scale", "query_norm", "norm_scale")
        for index in parts:
            arguments = self._arguments(index, caches)
            for name, x in zip(names, invoke(call, "mlapo", arguments, writes=caches), strict=True):
                found.setdefault(name, []).append(x)
        outputs = {}
        for name, each in found.items():
            whole = torch.cat(each)
            outputs[name] = whole.flip(0) if shuffled and whole.numel() else whole
        return outputs | caches

    def judge(self, outputs: Outputs) -> Figures:
        """Against the formula; quantised results as the values they stand for."""
        return self._against(outputs, *self.compute(self._settled(outputs)))

    def _settled(self, outputs: Outputs) -> Settled:
        """The q latent that was returned, and what is quantised of it where the weight is int8."""
        latent, up = outputs["query_norm"], self.weights.up_q
        if latent.dtype != torch.int8:
            values = latent.double().nan_to_num(0).numpy()
            return Settled(values, *(up.quantise(values) if up.codes is not None else ()))
        scale = np.array(up.static.scale) if up.static else outputs["norm_scale"].double().numpy()
        codes = latent.long().numpy()
        return Settled(codes.astype(np.float64), codes, scale)

    def _against(self, outputs: Outputs, oracle: Outputs, low: Outputs) -> Figures:
        there = self.slots >= 0
        found = list(self._elsewhere(outputs))
        for name in ("query", "query_rope", "query_norm"):
            if outputs[name].dtype == torch.int8:
                found.append(self._codes(outputs, name, oracle[name], low[name]))
            else:
                found.append(_near(outputs[name], oracle[name], low[name], name=name))
        caches = [
            outputs[name].flatten(0, 2)[self.slots[there]] for name in ("kv_cache", "kr_cache")
        ]
        exact, rough = (
            [each[name][there] for name in ("latent", "key_rope")] for each in (oracle, low)
        )
        if self.case.packed:
            caches = list(unpack(caches[0]))
            exact, rough = (
                list(unpack(pack(*(x.to(self.case.dtype) for x in each))))
                for each in (exact, rough)
            )
        tiles = int(there.sum()) * self.case.sizes.latent // TILE if self.case.packed else 0
        return compare.worst(
            [
                *found,
                _near(caches[0], exact[0], rough[0], name="latent", rows=tiles),
                _near(caches[1], exact[1], rough[1], name="key_rope"),
            ]
        )

    def _codes(self, outputs: Outputs, name: str, oracle: Tensor, low: Tensor) -> Figures:
        """Codes as the values that they stand for."""
        scale = outputs["query_scale" if name == "query" else "norm_scale"]
        static = self.weights.up_q.static if name == "query_norm" else None
        values = _value(outputs[name], scale, static)
        rounded, rough = (_through_codes(x.to(self.case.dtype), static) for x in (oracle, low))
        figures = compare.close(values, oracle, rough, name=name)
        if not figures.passed:
            return figures
        size = compare.same_size(
            values, rounded, rough, epsilon=1 / 127, rows=scale.numel(), name=name
        )
        return compare.worst([figures, size])

    def _elsewhere(self, outputs: Outputs) -> Iterator[Figures]:
        """Rows of no token are as they were."""
        for name, fresh in self._caches().items():
            if name == "kr_cache" and self.case.packed:
                continue
            other = torch.ones(16 * self.blocks, dtype=torch.bool)
            other[self.slots[self.slots >= 0]] = False
            rows = outputs[name].flatten(0, 2)[other]
            yield compare.identical(rows, fresh.flatten(0, 2)[other], name=f"rest of {name}")

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Each computes everything the wrong way."""

        def computes(**wrong: Any) -> Verdict:
            def verdict(outputs: Outputs) -> Figures:
                # What is returned un-normalised is not what the queries were made of.
                raw = wrong.get("raw_latent_returned", False)
                settled = None if raw else self._settled(outputs)
                return self._against(outputs, *self.compute(settled, **wrong))

            return verdict

        yield "wrong rope style", computes(half_split=True)
        yield "un-normalised q latent", computes(raw_latent_returned=True)
        yield (
            "un-normalised q latent, in the query too",
            computes(raw_latent_returned=True, raw_latent_used=True),
        )
        yield "un-normalised latent in the cache", computes(raw_cache=True)
        yield "epsilon 1e-6 for 1e-5", computes(eps=1e-6)
        if self.case.static:
            yield "quant_bias forgotten", computes(bias_forgotten=True)


def _near(actual: Tensor, oracle: Tensor, low: Tensor, *, name: str, rows: int = 0) -> Figures:
    """In every value, and in size."""
    figures = compare.close(actual, oracle, low, name=name)
    if not figures.passed:
        return figures
    return compare.worst([figures, compare.same_size(actual, oracle, low, rows=rows, name=name)])


def _value(codes: Tensor, scale: Tensor, static: mla.Static | None) -> Tensor:
    if static is not None:
        return (codes.float() - static.offset) * static.scale
    return codes.float() * scale


def _through_codes(x: Tensor, static: mla.Static | None) -> Tensor:
    """F32 values that codes of x stand for."""
    if static is not None:
        codes = (x.float() / static.scale + static.offset).round().clamp(-128, 127)
        return (codes - static.offset) * static.scale
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() / scale.where(scale > 0, 1)).round() * scale


def cases() -> Iterator[Case]:
    """Every mode, dtype and shape; tokens of decode, drafts and prefill."""
    modes: tuple[dict[str, Any], ...] = (
        {"mode": 0},
        {"mode": 1},
        {"mode": 2},
        {"mode": 2, "static": True},
    )
    for mode in modes:
        yield MlapoCase(tokens=1, size="quick", **mode)
        yield MlapoCase(tokens=9, size="quick", **mode)
        yield MlapoCase(tokens=62, sizes=SMALL, **mode)
        yield MlapoCase(tokens=4, sizes=DEEPSEEK, packed=True, **mode)
        yield MlapoCase(tokens=4, sizes=FULL, size="full", **mode)
        yield MlapoCase(tokens=9, sizes=SMALL, std=1e-2, dtype=torch.float32, **mode)
    for dtype in DTYPES:
        yield MlapoCase(tokens=9, sizes=SMALL, dtype=dtype)
        yield MlapoCase(tokens=9, sizes=SMALL, dtype=dtype, mode=2)
    yield MlapoCase(tokens=9, sizes=SMALL, mode=2, codes=True)
    for static in (False, True):
        yield MlapoCase(tokens=9, sizes=SMALL, mode=2, latent_codes=True, static=static)
    yield MlapoCase(tokens=9, sizes=SMALL, mode=2, int8_query=True)
