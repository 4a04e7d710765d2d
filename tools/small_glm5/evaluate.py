"""Metrics of an exported model: bits per byte, sparse/dense ratio, MTP acceptance."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.heldout import heldout_text
from small_glm5.chat_eval import chat_metrics
from small_glm5.config import EOT_ID, SPECIAL_TOKENS, SmallConfig
from small_glm5.export import from_checkpoint
from small_glm5.model import SmallGlm, State

WINDOW = 512


@cache
def token_bytes(tokenizer: Path) -> Tensor:
    """Byte length of every token id, F32 [vocab]."""
    vocab: dict[str, int] = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    out = torch.zeros(len(vocab) + len(SPECIAL_TOKENS))
    for token, i in vocab.items():
        out[i] = len(token)  # byte-level alphabet: one character per byte
    return out


def windows(ids: NDArray[np.int64], length: int) -> Tensor:
    """Cut <|endoftext|> + ids into rows [N, length + 1]; each token is a label exactly once.

    The last row is padded with -1.
    """
    full = np.concatenate(([EOT_ID], ids))
    count = math.ceil((len(full) - 1) / length)
    out = np.full((count, length + 1), -1, dtype=np.int64)
    for r in range(count):
        part = full[r * length : r * length + length + 1]
        out[r, : len(part)] = part
    return torch.from_numpy(out)


@torch.no_grad()
def losses(net: SmallGlm, rows: Tensor, sparse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """rows [B, T + 1] -> nats [B,T] (0 where the label is -1), argmax [B,T], hidden [B,T,H]."""
    st = State(sparse=sparse)
    h = net.trunk(rows[:, :-1].clamp(min=0), st)
    logits = F.linear(h, net.p["lm_head.weight"]).float()
    labels = rows[:, 1:]
    nats = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none"
    )
    return nats.view(labels.shape), logits.argmax(-1), h


def quick_bpb(net: SmallGlm, ids: NDArray[np.int64], tokenizer: Path, sparse: bool) -> float:
    """Bits per byte on 40 windows spread evenly over the held-out tokens."""
    rows = windows(ids, WINDOW)[:-1]
    rows = rows[torch.linspace(0, len(rows) - 1, 40).long()]
    nbytes = token_bytes(tokenizer)
    nats = sum(float(losses(net, rows[i : i + 8], sparse)[0].sum()) for i in range(0, 40, 8))
    return nats / math.log(2) / float(nbytes[rows[:, 1:]].sum())


@torch.no_grad()
def heldout_metrics(net: SmallGlm, rows: Tensor, total_bytes: int) -> dict[str, float]:
    """Teacher-forced metrics over all windows, sparse and dense."""
    topk = net.cfg.topk
    sums = torch.zeros(6, dtype=torch.float64)
    far_count = torch.zeros((), dtype=torch.float64)
    for lo in range(0, len(rows), 8):
        part = rows[lo : lo + 8]
        sp, best, h = losses(net, part, True)
        de, _, _ = losses(net, part, False)
        far = (part[:, 1:] >= 0)[:, topk:]
        nxt = part[:, 1:].clamp(min=0)
        z = net.mtp(h, nxt, State(sparse=True))
        draft = F.linear(z, net.p["lm_head.weight"]).argmax(-1)
        known = part[:, 2:] >= 0
        hits = (draft[:, :-1] == best[:, 1:]) & known
        sums += torch.stack(
            [sp.sum(), de.sum(), sp[:, topk:].sum(), de[:, topk:].sum(), hits.sum(), known.sum()]
        ).double()
        far_count += far.sum()
    bits = total_bytes * math.log(2)
    ratio = math.exp(float((sums[2] - sums[3]) / far_count))
    return {
        "heldout_bytes": total_bytes,
        "heldout_tokens": int((rows[:, 1:] >= 0).sum()),
        "bits_per_byte_sparse": float(sums[0]) / bits,
        "bits_per_byte_dense": float(sums[1]) / bits,
        "sparse_dense_perplexity_ratio_beyond_topk": ratio,
        "mtp_acceptance_teacher_forced": float(sums[4] / sums[5]),
    }


@torch.no_grad()
def greedy_acceptance(net: SmallGlm, rows: Tensor, prompt: int, new: int) -> float:
    """Share of greedy continuations' tokens that the MTP layer would have drafted (k = 1)."""
    ids = rows[:, :prompt]
    for _ in range(new):
        h = net.trunk(ids, State(sparse=True))
        ids = torch.cat((ids, F.linear(h[:, -1:], net.p["lm_head.weight"]).argmax(-1)), 1)
    h = net.trunk(ids[:, :-1], State(sparse=True))
    z = net.mtp(h, ids[:, 1:], State(sparse=True))
    draft = F.linear(z, net.p["lm_head.weight"]).argmax(-1)
    # the draft at position t names token t + 2
    return float((draft[:, prompt - 1 : -1] == ids[:, prompt + 1 :]).float().mean())


def evaluate_dir(path: Path, limit: int = 0) -> dict[str, Any]:
    """Measure an exported model in F32 with the true (config) norm epsilons."""
    from tokenizers import Tokenizer

    cfg = SmallConfig()
    params, bias = from_checkpoint(cfg, path, torch.float32)
    net = SmallGlm(cfg, params, bias)
    tok = Tokenizer.from_file(str(path / "tokenizer.json"))
    text = heldout_text(limit)
    ids = np.asarray(tok.encode(text.decode("utf-8"), add_special_tokens=False).ids)
    rows = windows(ids, WINDOW)
    out: dict[str, Any] = heldout_metrics(net, rows, len(text))
    picks = rows[torch.linspace(0, len(rows) - 2, 16).long()]
    out["mtp_acceptance_greedy"] = greedy_acceptance(net, picks, 160, 48)
    out |= chat_metrics(net, path, 40, 987)
    out["parameters"] = sum(p.numel() for p in params.values()) + bias[1:].numel()
    out["window_tokens"] = WINDOW
    out["bytes_per_token"] = len(text) / len(ids)
    return out
