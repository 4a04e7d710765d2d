"""What a trial found, as plain data."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

Record = dict[str, Any]

_PACKAGES = ("vllm", "vllm_ascend")
_MESSAGE_LENGTH = 600
_NOISE = re.compile(r"={5,}| at 0x[0-9a-f]+|For further information visit \S+")
# About this machine or the absence of compiled extensions, not about the command.
_OF_THIS_MACHINE = ("Found ulimit", "Failed to import")


class Warnings(logging.Handler):
    """Collects what vLLM and vllm-ascend warn about, each text once, without folders."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def attach(self) -> None:
        for name in _PACKAGES:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = shorten(record.getMessage())
        if text not in self.texts and not text.startswith(_OF_THIS_MACHINE):
            self.texts.append(text)


def failure(stage: str, error: BaseException) -> Record:
    """Verdict of a trial that ended with ``error`` in ``stage``: class, message and file:line.

    The place is the innermost frame in vLLM or vllm-ascend. pydantic wraps what a validator raised:
    then class, message and place are those of the validator's error.
    """
    message, cause = str(error), error
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        found = error.errors()
        message = "; ".join(": ".join([*map(str, e["loc"]), e["msg"]]) for e in found)
        cause = found[0].get("ctx", {}).get("error") or error
    return {
        "verdict": "rejected",
        "stage": stage,
        "exception": type(cause).__name__,
        "message": shorten(message),
        "where": place(cause.__traceback__) or place(error.__traceback__),
    }


def place(trace: TracebackType | None) -> str:
    """``package/module.py:line`` of the innermost frame of vLLM or vllm-ascend, or ``""``."""
    for frame in reversed(traceback.extract_tb(trace)):
        parts = Path(frame.filename).parts
        if "site-packages" in parts:
            inner = parts[parts.index("site-packages") + 1 :]
            # A wrapper of __import__ that every later import passes through.
            if inner[0] in _PACKAGES and frame.name != "patched_import":
                return f"{'/'.join(inner)}:{frame.lineno}"
    return ""


def shorten(text: str) -> str:
    """One line of at most 600 characters, without addresses of objects and temporary folders."""
    text = " ".join(_NOISE.sub(" ", text).split())
    text = re.sub(r"/\S*?/oracle-[^/\s'\"]+/", "", text)
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 1] + "…"
