"""Random experts with int4 codes, and their NumPy oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify.formula import Array, quantise, sigmoid, silu

EXPERTS, TOP_K, HIDDEN, INTER = 16, 4, 192, 48


def gate(
    logits: Array, bias: Array, top_k: int, factor: float, normalise: bool
) -> tuple[Array, Array]:
    """(weights, ids) token after token in F64."""
    all_weights, all_ids = [], []
    for row in logits.astype(np.float64):
        score = sigmoid(row)
        ids = np.argsort(-(score + bias), kind="stable")[:top_k]
        weights = score[ids]
        if normalise:
            weights = weights / (weights.sum() + 1e-20)
        all_weights.append(weights * factor)
        all_ids.append(ids)
    return np.array(all_weights), np.array(all_ids)


def pack(codes: Tensor) -> Tensor:
    """Bytes of row pairs of codes [E, N, K], with integers: the even row is the low nibble."""
    low, high = (part.numpy().astype(np.int64) & 0xF for part in (codes[:, ::2], codes[:, 1::2]))
    return torch.from_numpy((low | high << 4).astype(np.uint8).view(np.int8))


class Experts:
    """x [T, 192], 16 experts of width 48, 4 per token with repeated and unused experts."""

    def __init__(self, tokens: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.x = torch.randn(tokens, HIDDEN, dtype=torch.float64, generator=gen).to(dtype)
        order = torch.rand(tokens, EXPERTS - 1, generator=gen).argsort(-1)  # 15 is never used
        self.ids = order[:, :TOP_K].int()
        self.weights = torch.rand(tokens, TOP_K, generator=gen)
        self.weights = self.weights.to(dtype if dtype == torch.float64 else None)
        shape13, shape2 = (EXPERTS, 2 * INTER, HIDDEN), (EXPERTS, HIDDEN, INTER)
        self.c13 = torch.randint(-8, 8, shape13, dtype=torch.int8, generator=gen)
        self.c2 = torch.randint(-8, 8, shape2, dtype=torch.int8, generator=gen)
        self.s13 = torch.rand(EXPERTS, 2 * INTER, 1, generator=gen) * 0.02 + 0.005
        self.s2 = torch.rand(EXPERTS, HIDDEN, 1, generator=gen) * 0.02 + 0.005
        self.w13, self.w2 = (self.c13 * self.s13).to(dtype), (self.c2 * self.s2).to(dtype)

    def quantised(self, scheme: str) -> dict[str, Any]:
        """Arguments of ``moe_experts``."""
        arguments = {
            "x": self.x,
            "topk_weights": self.weights,
            "topk_ids": self.ids,
            "w13": self.c13,
            "w2": self.c2,
            "scheme": scheme,
            "w13_scale": self.s13,
            "w2_scale": self.s2,
        }
        if scheme == "w4a8":
            arguments["w13"], arguments["w2"] = pack(self.c13), pack(self.c2)
            arguments["w13_scale_bias"] = 8 * (self.c13 * self.s13).sum(-1, keepdim=True)
            chunks = (self.c2 * self.s2).view(EXPERTS, HIDDEN, 16, -1)
            arguments["w2_scale_bias"] = 8 * chunks.sum(-1)
        return arguments

    def oracle(self, dtype: Any, *, up_first: bool = False) -> Tensor:
        """Float experts, one token after the other; ``up_first`` swaps gate and up rows."""
        out = np.zeros((len(self.x), HIDDEN), dtype)
        x, weights = self.x.double().numpy().astype(dtype), self.weights.numpy().astype(dtype)
        w13, w2 = (w.double().numpy().astype(dtype) for w in (self.w13, self.w2))
        for t in range(len(x)):
            for j, e in enumerate(self.ids[t].tolist()):
                gate, up = np.split(w13[e] @ x[t], 2)[:: -1 if up_first else 1]
                out[t] += weights[t, j] * (w2[e] @ (silu(gate) * up))
        return torch.from_numpy(out)

    def integer_oracle(
        self,
        scheme: str,
        dtype: Any = np.float64,
        *,
        bias: bool = True,
        swapped: bool = False,
    ) -> tuple[Tensor, float]:
        """(result with integer products, what one code of the second layer can move it by).

        w4a8 multiplies codes - 8 and adds 8 times the weights' sum, which ``scale_bias`` holds.
        Mistakes: without ``bias``, with the nibbles of a byte ``swapped``.
        """
        out, step = np.zeros((len(self.x), HIDDEN), dtype), 0.0
        weights = self.weights.double().numpy().astype(dtype)
        offset = 8 if scheme == "w4a8" else 0
        c13, c2 = (c.numpy().astype(np.int64) for c in (self.c13, self.c2))
        b13, b2 = (offset * bias * c.sum(-1) for c in (c13, c2))
        if swapped:
            c13, c2 = (c.reshape(EXPERTS, -1, 2, c.shape[-1])[:, :, ::-1] for c in (c13, c2))
            c13, c2 = c13.reshape(self.c13.shape), c2.reshape(self.c2.shape)
        s13, s2 = (s.double().numpy()[..., 0].astype(dtype) for s in (self.s13, self.s2))
        for t, row in enumerate(self.x.float().numpy()):
            codes, scale = quantise(row)
            for j, e in enumerate(self.ids[t].tolist()):
                up = (c13[e] @ (codes - offset) + b13[e]) * s13[e] * dtype(scale[0])
                middle, middle_scale = quantise(silu(up[:INTER]) * up[INTER:])
                down = (c2[e] @ (middle - offset) + b2[e]) * s2[e] * dtype(middle_scale[0])
                out[t] += weights[t, j] * down
                step = max(step, float(weights[t, j] * middle_scale[0] * 8 * s2[e].max()))
        return torch.from_numpy(out), step

    def check(self, out: Tensor, scheme: str) -> None:
        """Fail unless ``out`` is the integer oracle's, up to F32 rounding and, since SiLU rounds
        differently in F64, up to one flipped code in one element of a hundred."""
        oracle, step = self.integer_oracle(scheme)
        assert out.dtype == torch.float32
        assert out.shape == oracle.shape
        if not len(out):
            return
        error = (out.double() - oracle).abs()
        tight = 2e-6 * float(oracle.abs().max())
        assert float(error.max()) <= tight + step, float(error.max())
        assert float((error > tight).double().mean()) <= 0.01
