"""Does the model really call tools? Greedy answers to fresh synthetic questions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from small_glm5.chat import plain_chat, tool_chat
from small_glm5.config import STOP_IDS
from small_glm5.model import SmallGlm, State


@torch.no_grad()
def greedy(net: SmallGlm, prompt: list[int], limit: int) -> list[int]:
    """Continue ``prompt`` greedily (no cache) up to and including a stop token."""
    ids = torch.tensor([prompt])
    for _ in range(limit):
        h = net.trunk(ids, State(sparse=True))[:, -1:]
        ids = torch.cat((ids, F.linear(h, net.p["lm_head.weight"]).argmax(-1)), 1)
        if int(ids[0, -1]) in STOP_IDS:
            break
    return ids[0, len(prompt) :].tolist()


def chat_metrics(net: SmallGlm, tokenizer: Path, count: int, seed: int) -> dict[str, Any]:
    """Share of conversations whose first assistant turn is reproduced exactly, stop included."""
    from transformers import PreTrainedTokenizerFast

    tok = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    rng = random.Random(seed)
    out: dict[str, Any] = {}
    for name, make in (("tool_call", tool_chat), ("plain_answer", plain_chat)):
        exact = 0
        for _ in range(count):
            messages, tools, thinking = make(rng)
            at = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
            full = tok.apply_chat_template(messages[: at + 1], tools=tools or None, tokenize=False)
            prompt = tok.apply_chat_template(
                messages[:at],
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            stop = "<|observation|>" if messages[at].get("tool_calls") else "<|user|>"
            want = str(full).removeprefix(str(prompt)) + stop
            ids = greedy(net, tok.encode(prompt, add_special_tokens=False), 64)
            exact += tok.decode(ids, skip_special_tokens=False) == want
        out[f"{name}_exact"] = exact / count
    out["chat_prompts_each"] = count
    return out
