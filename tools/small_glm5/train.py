"""The training loop: dense, indexer warm-up, sparse; resumable from its own checkpoints."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from small_glm5.config import SmallConfig
from small_glm5.data import Sampler
from small_glm5.evaluate import quick_bpb
from small_glm5.export import export_model
from small_glm5.model import SmallGlm, State, indexer_loss
from small_glm5.ops import head_loss
from small_glm5.optim import Optimizer
from small_glm5.params import Params, init_params
from small_glm5.schedule import Phase, locate, rate

MUON_LR, ADAM_LR, MTP_WEIGHT, BIAS_RATE = 0.02, 2e-3, 0.3, 1e-3
CHECKPOINT_S, EVAL_S = 150.0, 200.0


class Trainer:
    """Owns parameters, optimiser and logs of one run in ``work``."""

    def __init__(self, work: Path, seed: int, phases: tuple[Phase, ...], tag: str) -> None:
        """Start from the seed, or from the checkpoint ``tag``.pt in ``work``."""
        self.cfg, self.work, self.phases, self.tag = SmallConfig(), work, phases, tag
        self.masters = init_params(self.cfg, seed)
        self.weights: Params = {k: v.bfloat16().requires_grad_() for k, v in self.masters.items()}
        self.bias = torch.zeros(self.cfg.layers + 1, self.cfg.experts)
        self.net = SmallGlm(self.cfg, self.weights, self.bias)
        self.opt = Optimizer(self.cfg, self.masters, self.weights)
        self.sampler = Sampler(work, seed)
        self.heldout = np.load(work / "heldout.npy").astype(np.int64)
        self.step = 0
        self.ckpt = work / f"{tag}.pt"
        if self.ckpt.exists():
            self.load()

    def save(self) -> None:
        """Write the checkpoint atomically."""
        state = {
            "step": self.step,
            "masters": self.masters,
            "m": self.opt.m,
            "v": self.opt.v,
            "adam_steps": self.opt.steps,
            "bias": self.bias,
        }
        tmp = self.ckpt.with_suffix(".tmp")
        torch.save(state, tmp)
        os.replace(tmp, self.ckpt)

    def load(self) -> None:
        """Resume from the checkpoint."""
        state = torch.load(self.ckpt, weights_only=True)
        self.step = state["step"]
        for own, saved in (
            (self.masters, state["masters"]),
            (self.opt.m, state["m"]),
            (self.opt.v, state["v"]),
        ):
            for k, v in saved.items():
                own[k].copy_(v)
        self.opt.steps.update(state["adam_steps"])
        self.bias.copy_(state["bias"])
        for k, w in self.weights.items():
            w.data.copy_(self.masters[k])

    def losses(self, phase: Phase, ids: Tensor) -> tuple[Tensor, State, dict[str, float]]:
        """Return the loss to differentiate, the forward state and the numbers to log."""
        t, cfg = phase.length, self.cfg
        warm, adapt = phase.kind == "warmup", phase.kind == "adapt"
        sparse, joint = phase.kind in ("sparse", "adapt"), phase.kind in ("joint", "adapt")
        st = State(sparse, bool(phase.indexers) and phase.kind != "dense", joint, adapt)
        head = self.weights["lm_head.weight"]
        log: dict[str, float] = {}
        loss = torch.zeros(())
        with torch.set_grad_enabled(not warm):
            h = self.net.trunk(ids[:, :t], st, None if phase.mtp or not warm else 6)
            if not warm:
                lm = head_loss(h.reshape(-1, cfg.hidden), head, ids[:, 1 : t + 1].flatten())
                loss, log["lm"] = loss + lm, float(lm.detach())
            if phase.mtp:
                z = self.net.mtp(h, ids[:, 1 : t + 1], st)
                if not warm:
                    mtp = head_loss(z.reshape(-1, cfg.hidden), head, ids[:, 2:].flatten())
                    loss, log["mtp"] = loss + MTP_WEIGHT * mtp, float(mtp.detach())
        if sparse or warm or joint:
            for i in phase.indexers:
                if not sparse:
                    st.scores[i] = self.net.index_scores(i, *st.inputs[i])
                kl = indexer_loss(st, i, phase.last_weight)
                loss, log[f"kl{i}"] = loss + kl, float(kl.detach())
        return loss, st, log

    def train_step(self) -> dict[str, float]:
        """Run one step and return what to log."""
        phase, progress, inner = locate(self.phases, self.step)
        if phase.kind == "joint" and self.step % 2:
            # Every other step adapts the rest to what the indexers choose now.
            phase = replace(phase, kind="sparse", indexers=())
        factor = rate(progress)
        if phase.lr is not None:
            factor = phase.lr + (phase.lr_end - phase.lr) * inner
        loss, st, log = self.losses(phase, self.sampler.batch(self.step, phase.rows, phase.length))
        loss.backward()  # type: ignore[no-untyped-call]
        indexer = [n for n in self.masters if ".indexer." in n]
        if phase.kind != "dense" and phase.indexers:
            start = 1.0 if phase.lr is None else phase.lr
            fast = phase.kind != "sparse"
            f = start * (1.0 - 0.9 * inner) if fast else 0.3 * (1.0 - inner)
            self.opt.step(indexer, MUON_LR * f, ADAM_LR * f, clip=10.0)
        if phase.kind != "warmup":
            main = [n for n in self.masters if ".indexer." not in n]
            log["norm"] = self.opt.step(main, MUON_LR * factor, ADAM_LR * factor)
            for i, load in st.load.items():
                self.bias[i] += BIAS_RATE * factor * torch.sign(load.mean() - load)
                log["imbalance"] = max(log.get("imbalance", 0.0), float(load.max() / load.mean()))
        self.step += 1
        return {"lr": factor, **log}

    def write_log(self, record: dict[str, object]) -> None:
        """Append one JSON line."""
        with (self.work / f"log-{self.tag}.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")

    def evaluate(self) -> float:
        """Bits per byte on the fixed held-out slice, in the current attention mode."""
        phase = locate(self.phases, max(self.step - 1, 0))[0]
        return quick_bpb(self.net, self.heldout, self.work / "tokenizer", phase.kind != "dense")

    def run(self, final: Path) -> None:
        """Train to the end, then export into ``final``."""
        total = sum(p.steps for p in self.phases)
        half = total // 2
        last_ckpt = last_eval = last_log = time.monotonic()
        tokens = 0
        while self.step < total:
            phase = locate(self.phases, self.step)[0]
            log = self.train_step()
            tokens += phase.rows * phase.length
            now = time.monotonic()
            done = self.step == total
            if self.step % 20 == 0 or done:
                record = {k: round(v, 4) for k, v in log.items()}
                speed = round(tokens / (now - last_log))
                self.write_log(
                    {
                        "step": self.step,
                        "kind": phase.kind,
                        **record,
                        "tok_s": speed,
                        "time": time.strftime("%H:%M:%S", time.gmtime()),
                    }
                )
                last_log, tokens = now, 0
            if now - last_eval > EVAL_S or done:
                self.write_log({"step": self.step, "heldout_bpb": round(self.evaluate(), 4)})
                last_eval = last_log = time.monotonic()
                tokens = 0
            if now - last_ckpt > CHECKPOINT_S or done:
                self.save()
                last_ckpt = time.monotonic()
            if self.step == half:
                self.export(self.work / "latest-small")
        self.export(final)

    def export(self, out: Path) -> None:
        """Write the checkpoint in the published layout."""
        export_model(self.cfg, self.masters, self.bias, self.work / "tokenizer", out)
