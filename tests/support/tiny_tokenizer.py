"""A byte-level BPE tokenizer with GLM's special tokens for tiny checkpoints."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

# In id order; the first is also the padding token, and three of them stop generation.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
)

CHAT_TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def _byte_alphabet() -> list[str]:
    """The 256 printable stand-ins for bytes of GPT-2's byte-level BPE, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.

    Ids: 256 bytes, then merged letter pairs, then the special tokens at the end of the vocabulary.
    """
    merged = vocab_size - 256 - len(SPECIAL_TOKENS)
    if not 0 <= merged <= 26 * 26:
        raise ValueError(f"vocab_size {vocab_size} is not within 277..953")
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    pairs = list(itertools.islice(itertools.product(letters, repeat=2), merged))
    tokens = [*_byte_alphabet(), *(a + b for a, b in pairs)]
    first = len(tokens)
    added = [
        {"id": first + i, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, text in enumerate(SPECIAL_TOKENS)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [f"{a} {b}" for a, b in pairs],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[0],
        "padding_side": "left",
        "model_max_length": 4096,
    }
    (directory / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
