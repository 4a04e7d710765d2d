"""Byte-level BPE of 2048 ids with GLM's special tokens at the end of the range."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from small_glm5.config import FIRST_SPECIAL, SPECIAL_TOKENS, VISIBLE_TOKENS, VOCAB_SIZE

# newline runs with the indentation that follows | words with their leading space or underscores
# | up to three digits | punctuation runs | other white space
PATTERN = r"[\r\n][\r\n \t]*| ?_*\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?=\s\S)|\s+"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train the BPE on ``texts`` and append the special tokens."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=FIRST_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    for token in SPECIAL_TOKENS:
        tok.add_tokens([AddedToken(token, special=token not in VISIBLE_TOKENS, normalized=False)])
    if tok.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"vocabulary has {tok.get_vocab_size()} entries")
    return tok


def tokenizer_config() -> dict[str, Any]:
    """Return ``tokenizer_config.json`` as a dictionary."""
    added = {
        str(FIRST_SPECIAL + i): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in VISIBLE_TOKENS,
        }
        for i, token in enumerate(SPECIAL_TOKENS)
    }
    return {
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "padding_side": "left",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def write_tokenizer(tok: Tokenizer, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    tok.save(str(out / "tokenizer.json"))
    text = json.dumps(tokenizer_config(), indent=2, ensure_ascii=False) + "\n"
    (out / "tokenizer_config.json").write_text(text, encoding="utf-8")
    shutil.copyfile(TEMPLATE, out / "chat_template.jinja")
