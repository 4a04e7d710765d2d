"""Calibration documents as sequences of tokens, through the checkpoint's tokenizer and template."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.console import note
from glm5_ascend.errors import CheckpointError, Glm5Error, PreflightError
from glm5_ascend.quant.calibration.default_documents import default_documents
from glm5_ascend.quant.calibration.documents import Document, read_documents
from glm5_ascend.quant.recipe_rules import Calibration

# Sequences of twice index_topk: half of their positions have a selection to make.
_TOPK_MULTIPLE = 2
# A smaller budget is cut into at least this many sequences.
_FEWEST_SEQUENCES = 4
_SHORTEST = 16

Encode = Callable[[Document], list[int]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """``tokens`` int64 [T], all sequences one after the other, and where each begins."""

    tokens: Tensor
    starts: tuple[int, ...]

    def spans(self) -> list[slice]:
        """Rows of each sequence."""
        ends = (*self.starts[1:], self.tokens.shape[0])
        return [slice(start, end) for start, end in zip(self.starts, ends, strict=True)]

    def digest(self) -> str:
        """SHA-256 over tokens and cuts."""
        state = hashlib.sha256(repr(self.starts).encode())
        state.update(self.tokens.numpy().astype("<i8").tobytes())
        return state.hexdigest()


def make_corpus(source: Path, config: Glm5Config, wanted: Calibration) -> Corpus:
    """Read, shuffle, tokenise and pack the documents of a calibration.

    Documents are shuffled with the seed and joined end to end into sequences of one length, longer
    than ``index_topk`` where the budget allows, so that sparse attention has something to select.

    Args:
        source: the checkpoint, whose tokenizer and chat template are used.
        config: its configuration.
        wanted: text, budget and seed.

    Raises:
        Glm5Error: a malformed file, no tokenizer, or too little text.
    """
    documents = (
        default_documents(wanted.seed, wanted.tokens)
        if wanted.text == "default"
        else _shuffled(read_documents(Path(wanted.text)), wanted.seed)
    )
    tokens: list[int] = []
    encode = _encoder(source, config)
    for document in documents:
        tokens += encode(document)
        if len(tokens) >= wanted.tokens:
            break
    if len(tokens) < _SHORTEST:
        raise Glm5Error(
            f"the calibration text has {len(tokens)} tokens, too few to say anything",
            "give more text; about 262,144 tokens serve a model of full size",
        )
    del tokens[wanted.tokens :]
    length = sequence_length(config, len(tokens), wanted.sequence)
    corpus = Corpus(torch.tensor(tokens), tuple(_cuts(len(tokens), length)))
    _say_what_is_short(config, wanted, len(tokens), length)
    return corpus


def sequence_length(config: Glm5Config, tokens: int, wanted: int | None) -> int:
    """Tokens per sequence: ``wanted``, or 2 x ``index_topk`` unless that gives fewer than four."""
    length = wanted or min(_TOPK_MULTIPLE * config.index_topk, tokens // _FEWEST_SEQUENCES)
    return max(_SHORTEST, min(length, config.max_position_embeddings))


def _cuts(tokens: int, length: int) -> Iterator[int]:
    """Starts of sequences of ``length``; a rest shorter than two tokens joins the one before."""
    yield from range(0, max(1, tokens - 1), length)


def _say_what_is_short(config: Glm5Config, wanted: Calibration, tokens: int, length: int) -> None:
    if tokens < wanted.tokens:
        note(f"the calibration text has {tokens:,} of the {wanted.tokens:,} tokens asked for")
    if min(length, tokens) <= config.index_topk:
        note(
            f"calibration sequences have {min(length, tokens):,} tokens, not more than index_topk"
            f" {config.index_topk:,}: every position attends to all before it"
        )


def _shuffled(documents: Sequence[Document], seed: int) -> list[Document]:
    order = list(documents)
    random.Random(seed).shuffle(order)
    return order


def _encoder(source: Path, config: Glm5Config) -> Encode:
    tokenizer = _tokenizer(source)

    def encode(document: Document) -> list[int]:
        if not document.messages:
            ids = tokenizer(document.text, verbose=False)["input_ids"]
        else:
            ids = _templated(tokenizer, document, source)
        if ids and max(ids) >= config.vocab_size:
            raise CheckpointError(
                f"the tokenizer in {source} gives token {max(ids)}, the model has"
                f" {config.vocab_size}",
                "copy the tokenizer files of this model",
            )
        return [int(token) for token in ids]

    return encode


def _templated(tokenizer: Any, document: Document, source: Path) -> list[int]:
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            list(document.messages), tokenize=False, add_generation_prompt=document.is_prompt
        )
    except (TemplateError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise Glm5Error(
            f"the chat template in {source} refuses a calibration document: {reason}",
            'correct its messages, or give documents of the form {"text": …}',
        ) from error
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _tokenizer(source: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise PreflightError(
            "a calibration needs transformers, which is not installed",
            "pip install 'glm5-ascend[cpu]'",
        ) from error
    if not (source / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{source / 'tokenizer.json'} is missing",
            "copy the tokenizer files next to the weights",
        )
    make: Any = AutoTokenizer.from_pretrained
    try:
        return make(source, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the tokenizer in {source} cannot be read: {' '.join(str(error).split())}",
            "copy the tokenizer files of the release again",
        ) from error
