"""Token pools on disk and a stateless batch sampler."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from glm5_ascend.heldout import heldout_text
from small_glm5.chat import chat_documents
from small_glm5.config import EOT_ID
from small_glm5.corpus import load_corpus
from small_glm5.tokenizer import train_tokenizer, write_tokenizer

MIX = {"stdlib": 0.50, "tests": 0.17, "packages": 0.295, "chat": 0.035}
CHAT_COUNT = 9000
PACKAGE_BYTES = 30_000_000


def _encode(tok: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode documents, each after <|endoftext|>; return tokens uint16 and document starts."""
    chunks: list[int] = []
    starts: list[int] = []
    for lo in range(0, len(texts), 256):
        for enc in tok.encode_batch(texts[lo : lo + 256], add_special_tokens=False):
            starts.append(len(chunks))
            chunks.append(EOT_ID)
            chunks.extend(enc.ids)
    return np.asarray(chunks, dtype=np.uint16), np.asarray(starts, dtype=np.int64)


def prepare(work: Path, seed: int) -> None:
    """Train the tokenizer and write ``pool-*.npy`` and ``sources.json`` into ``work``."""
    from transformers import PreTrainedTokenizerFast

    docs, sizes = load_corpus(seed)
    rng = random.Random(seed)
    for texts in docs.values():
        rng.shuffle(texts)
    sample = docs["stdlib"] + docs["tests"][:200] + docs["packages"][:400]
    tok = train_tokenizer(sample)
    write_tokenizer(tok, work / "tokenizer")
    hf = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    docs["chat"] = chat_documents(hf.apply_chat_template, CHAT_COUNT, seed)
    budget = 0
    for i, text in enumerate(docs["packages"]):
        budget += len(text)
        if budget > PACKAGE_BYTES:
            docs["packages"] = docs["packages"][:i]
            break
    report: dict[str, object] = {"bytes": sizes}
    for name, texts in docs.items():
        tokens, starts = _encode(tok, texts)
        np.save(work / f"pool-{name}.npy", tokens, allow_pickle=False)
        np.save(work / f"starts-{name}.npy", starts, allow_pickle=False)
        report[name] = {"documents": len(texts), "tokens": len(tokens)}
    held = tok.encode(heldout_text(0).decode("utf-8"), add_special_tokens=False).ids
    np.save(work / "heldout.npy", np.asarray(held, dtype=np.uint16), allow_pickle=False)
    (work / "sources.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


class Sampler:
    """Batches that depend only on (seed, step), so that a resumed run sees the same data."""

    def __init__(self, work: Path, seed: int) -> None:
        self.seed = seed
        self.pools = {n: np.load(work / f"pool-{n}.npy") for n in MIX}
        self.chat_starts = np.load(work / "starts-chat.npy")

    def batch(self, step: int, rows: int, length: int) -> Tensor:
        """Return ids [rows, length + 2] (inputs, next and next-but-one labels overlap)."""
        rng = np.random.default_rng([self.seed, step])
        out = np.empty((rows, length + 2), dtype=np.int64)
        names = rng.choice(list(MIX), size=rows, p=list(MIX.values()))
        for r, name in enumerate(names):
            pool = self.pools[name]
            limit = len(pool) - length - 2
            if name == "chat":
                at = int(rng.choice(self.chat_starts[self.chat_starts <= limit]))
            else:
                at = int(rng.integers(0, limit + 1))
            out[r] = pool[at : at + length + 2]
        return torch.from_numpy(out)
