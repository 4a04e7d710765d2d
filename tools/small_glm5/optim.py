"""Muon for hidden matrices, AdamW for the rest; F32 masters, BF16 working copies."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from small_glm5.config import SmallConfig
from small_glm5.params import Params


def newton_schulz(g: Tensor, steps: int = 5) -> Tensor:
    """Approximate the nearest semi-orthogonal matrix of each g [N,R,C] (quintic iteration)."""
    x = g.bfloat16()
    flip = x.shape[1] > x.shape[2]
    if flip:
        x = x.mT
    x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).bfloat16()
    x = x.contiguous()
    for _ in range(steps):
        a = torch.bmm(x, x.mT)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return (x.mT if flip else x).float()


class Optimizer:
    """One step updates the masters of ``names`` from the gradients of the working copies."""

    def __init__(self, cfg: SmallConfig, masters: Params, work: Params) -> None:
        """``masters`` are F32, ``work`` holds the BF16 leaves that carry gradients."""
        self.cfg, self.masters, self.work = cfg, masters, work
        self.m: Params = {k: torch.zeros_like(v) for k, v in masters.items()}
        self.v: Params = {k: torch.zeros_like(v) for k, v in masters.items() if not self.is_muon(k)}
        self.steps: dict[str, int] = dict.fromkeys(self.v, 0)
        self.weight_decay = 0.05

    @staticmethod
    def is_muon(name: str) -> bool:
        """Hidden matrices go to Muon; embeddings, head, router, norms, weights_proj do not."""
        if "norm" in name or name.startswith(("lm_head", "model.embed")):
            return False
        return not name.endswith(("mlp.gate.weight", "weights_proj.weight"))

    def blocks(self, name: str, g: Tensor) -> Tensor:
        """View a matrix as the stack of blocks [N,R,C] that Muon treats separately (heads)."""
        rows = g.shape[-1]
        if name.endswith(("q_b_proj.weight", "kv_b_proj.weight", "wq_b.weight")):
            return g.view(-1, 128, rows)
        return g if g.dim() == 3 else g[None]

    @torch.no_grad()
    def step(self, names: list[str], muon_lr: float, adam_lr: float, clip: float = 1.0) -> float:
        """Update ``names``; return the gradient norm before clipping."""
        grads = {n: g.float() for n in names if (g := self.work[n].grad) is not None}
        norm = float(torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt())
        scale = min(1.0, clip / (norm + 1e-6))
        groups: dict[tuple[int, int], list[tuple[str, Tensor]]] = defaultdict(list)
        for n, g in grads.items():
            g.mul_(scale)
            if self.is_muon(n):
                m = self.m[n].lerp_(g, 0.05)
                u = self.blocks(n, g.lerp(m, 0.95))
                groups[(u.shape[1], u.shape[2])].append((n, u))
            else:
                self._adam(n, g, adam_lr)
        for (rows, cols), items in groups.items():
            update = newton_schulz(torch.cat([u for _, u in items]))
            update *= -muon_lr * max(1.0, rows / cols) ** 0.5
            at = 0
            for n, u in items:
                w = self.masters[n]
                w.mul_(1.0 - muon_lr * self.weight_decay)
                w.add_(update[at : at + u.shape[0]].reshape(w.shape))
                at += u.shape[0]
        for n in grads:
            self.work[n].copy_(self.masters[n])
            self.work[n].grad = None
        return norm

    def _adam(self, name: str, g: Tensor, lr: float) -> None:
        """AdamW update of one master."""
        self.steps[name] += 1
        t, w = self.steps[name], self.masters[name]
        m = self.m[name].lerp_(g, 0.1)
        v = self.v[name].lerp_(g.square(), 0.05)
        if w.dim() == 2:
            w.mul_(1.0 - lr * self.weight_decay)
        w.addcdiv_(m, (v / (1 - 0.95**t)).sqrt_().add_(1e-8), value=-lr / (1 - 0.9**t))
