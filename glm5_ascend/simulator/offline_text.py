"""Held-out text as windows of token ids, with the number of bytes that each window predicts.

Bytes are counted exactly: the tokenizer is byte-level, so the length of a token's vocabulary entry
is the number of bytes it stands for. The first token of a window has no prediction and is counted
neither in bits nor in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError, ConfigError, Glm5Error

TOPK_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class Window:
    """``tokens`` int64 [length] and the bytes of tokens 1 … length − 1, the predicted ones."""

    tokens: Tensor
    predicted_bytes: int


def window_length(config: Glm5Config) -> int:
    """Return 8 × ``index_topk`` tokens, so that most positions have a real choice to make."""
    length = TOPK_MULTIPLE * config.index_topk
    if length > config.max_position_embeddings:
        raise ConfigError(
            f"windows of {length} tokens exceed max_position_embeddings "
            f"{config.max_position_embeddings}",
            "use a model whose context holds 8 x index_topk tokens",
        )
    return length


def token_windows(text: bytes, tokenizer_file: Path, length: int) -> list[Window]:
    """Cut UTF-8 ``text`` into consecutive windows of ``length`` tokens; a shorter rest is dropped.

    Raises:
        CheckpointError: the tokenizer file is missing or not byte-level.
    """
    from tokenizers import Tokenizer

    if not tokenizer_file.is_file():
        raise CheckpointError(
            f"{tokenizer_file} is missing", "copy the tokenizer files next to the weights"
        )
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    encoding = tokenizer.encode(text.decode("utf-8"), add_special_tokens=False)
    ids, sizes = torch.tensor(encoding.ids), [len(token) for token in encoding.tokens]
    if sum(sizes) != len(text):
        raise CheckpointError(
            f"{tokenizer_file} is not byte-level: its tokens count {sum(sizes)} bytes "
            f"for {len(text)} bytes of text",
            "use the checkpoint's own byte-level BPE tokenizer",
        )
    windows = []
    for start in range(0, len(sizes) - length + 1, length):
        stop = start + length
        windows.append(Window(ids[start:stop], sum(sizes[start + 1 : stop])))
    return windows


def spread(windows: list[Window], min_bytes: int) -> list[Window]:
    """Return the fewest windows, evenly spaced over the text, that predict ≥ ``min_bytes``.

    Raises:
        Glm5Error: all windows together predict fewer bytes.
    """
    for count in range(1, len(windows) + 1):
        chosen = [windows[i * len(windows) // count] for i in range(count)]
        if sum(window.predicted_bytes for window in chosen) >= min_bytes:
            return chosen
    total = sum(window.predicted_bytes for window in windows)
    raise Glm5Error(
        f"the held-out text gives {total} predicted bytes in whole windows, {min_bytes} wanted",
        "ask for fewer bytes or use a smaller index_topk",
    )


def heldout_windows(model: Path, config: Glm5Config, min_bytes: int) -> list[Window]:
    """Windows of the held-out packages for the checkpoint directory ``model``."""
    from glm5_ascend.heldout import heldout_text

    windows = token_windows(heldout_text(0), model / "tokenizer.json", window_length(config))
    return spread(windows, min_bytes)
