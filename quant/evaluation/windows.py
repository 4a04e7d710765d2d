"""The text of an evaluation as windows of tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import Glm5Error
from glm5_ascend.simulator.offline_text import Window, token_windows, window_length

DEFAULT_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class EvalText:
    """Windows of one length, and where they come from."""

    name: str
    sha256: str
    windows: tuple[Window, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return sum(len(window.tokens) for window in self.windows)

    @property
    def predicted_bytes(self) -> int:
        """Bytes of the tokens that are predicted."""
        return sum(window.predicted_bytes for window in self.windows)

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "tokens": self.tokens,
            "predicted_bytes": self.predicted_bytes,
            "windows": len(self.windows),
            "window_tokens": len(self.windows[0].tokens),
        }


def read_windows(
    model: Path, config: Glm5Config, file: Path | None, tokens: int | None
) -> EvalText:
    """Cut the text into windows of 8 × ``index_topk`` tokens, evenly spaced over it.

    Args:
        model: directory with ``tokenizer.json``.
        config: of that model.
        file: UTF-8 text; None for the held-out packages of the running Python.
        tokens: at least so many, in whole windows; None for 32 768 or all there are.

    Raises:
        Glm5Error: the text is not UTF-8, or too short.
        CheckpointError: no byte-level tokenizer.
    """
    name, data = _text(file)
    length = window_length(config)
    windows = token_windows(data, model / "tokenizer.json", length)
    wanted = -(-(DEFAULT_TOKENS if tokens is None else tokens) // length)
    if tokens is None:
        wanted = min(wanted, len(windows))
    if not windows or wanted > len(windows):
        raise Glm5Error(
            f"{name} gives {len(windows)} windows of {length} tokens, {max(wanted, 1)} are wanted",
            "give a longer --text, or a smaller --tokens",
        )
    chosen = tuple(windows[i * len(windows) // wanted] for i in range(wanted))
    return EvalText(name, hashlib.sha256(data).hexdigest(), chosen)


def _text(file: Path | None) -> tuple[str, bytes]:
    if file is None:
        from glm5_ascend.heldout import HELDOUT_PACKAGES, heldout_text

        return f"Python's packages {', '.join(HELDOUT_PACKAGES)}", heldout_text(0)
    data = file.read_bytes()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Glm5Error(
            f"{file} is not UTF-8 text: byte {error.start:,} is {data[error.start]:#04x}",
            "give plain text as --text",
        ) from error
    return str(file), data
