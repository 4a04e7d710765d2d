"""Splits a command line into variables, arguments and the model that it names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.errors import ExitCode, Glm5Error
from tools.oracle.standin import stand_in

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class NotServe(Glm5Error):
    """The words are not a ``vllm serve`` command."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Command:
    """A ``vllm serve`` command: its variables, and its arguments from ``serve`` on."""

    env: dict[str, str]
    argv: list[str]

    @property
    def model(self) -> str | None:
        """The model that it names, first as the positional argument, then as ``--model``."""
        words = self.argv[1:]
        if words and not words[0].startswith("-"):
            return words[0]
        for before, word in itertools.pairwise(words):
            if before == "--model":
                return word
        return next((w.partition("=")[2] for w in words if w.startswith("--model=")), None)

    def with_model(self, folder: Path) -> Command:
        """The same command for the checkpoint in ``folder``."""
        named = self.model
        words = [str(folder) if w == named else w for w in self.argv]
        words = [f"--model={folder}" if w == f"--model={named}" else w for w in words]
        return Command(self.env, words)


def read_command(words: Sequence[str]) -> Command:
    """Split ``[NAME=VALUE…] vllm serve MODEL …``.

    Raises:
        NotServe: there is no ``vllm serve``.
    """
    count = next((i for i, w in enumerate(words) if not _ASSIGNMENT.match(w)), len(words))
    rest = list(words[count:])
    if [Path(w).name for w in rest[:1]] != ["vllm"] or rest[1:2] != ["serve"]:
        raise NotServe(
            f"not a command that starts with vllm serve: {' '.join(words[:4])}",
            "write: command --for RELEASE -- vllm serve MODEL …",
        )
    env = dict(w.split("=", 1) for w in words[:count])
    return Command(env, rest[1:])


def resolve_model(command: Command, folder: Path, model: Path | None) -> tuple[Command, str]:
    """The command with a model folder that exists, and what stands for the model.

    Args:
        folder: where a stand-in is written if one is needed.
        model: the checkpoint that the user gave for it.
    """
    named = command.model
    if model is not None and named is not None:
        return command.with_model(model.resolve()), str(model)
    if named is None or Path(named).is_dir():
        return command, named or "named by the command in another way"
    made = stand_in(named, folder)
    return command.with_model(made), f"stand-in for {made.name}"
