"""What every command of the command line is made of."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from glm5_ascend import console
from glm5_ascend.errors import ExitCode, Glm5Error, brief

_MOST = 1e12


class PathType(click.Path):
    """A path as written; whether it can be read is for the command to find out and to explain."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse the empty path, which would mean the current directory."""
        if str(value) == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A range without NaN, which compares as within every range, and without absurd numbers."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse NaN, infinity and what exceeds ``_MOST``."""
        number = super().convert(value, param, ctx)
        if not number <= _MOST:
            self.fail(f"{number:g} is no number up to {_MOST:g}", param, ctx)
        return number


class Count(click.IntRange):
    """A range of whole numbers of at most 32 bits, so that products of them stay numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what 32 bits do not hold."""
        number = super().convert(value, param, ctx)
        if number >= 1 << 31:
            self.fail(f"{brief(number)} is not below 2**31", param, ctx)
        return number


DIRECTORY = PathType(path_type=Path, readable=False)


class Glm5Command(click.Command):
    """A command whose usage errors know it, so that the hint names its own help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; click's parser raises some errors without a context."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


class Glm5Group(click.Group):
    """A click group that reports every expected failure as ``error:`` and ``hint:`` lines."""

    command_class = Glm5Command
    owns_process = False

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run and exit; unexpected exceptions keep their traceback."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except Glm5Error as error:
            console.report(error)
            code = error.exit_code
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "glm5-ascend"
            console.report_lines(_voice(error.format_message()), f"see `{path} --help`")
            code = ExitCode.USAGE
        except click.ClickException as error:
            console.report_lines(_voice(error.format_message()), "")
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt) as error:
            if self.owns_process:
                # The exit code is settled; a second Ctrl-C must not put a traceback behind it.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Click raises Abort from the KeyboardInterrupt, which may say what is done.
            state = str(error.__cause__ or error)
            console.note(f"interrupted: {state}" if state else "interrupted")
            code = ExitCode.INTERRUPTED
        except OSError as error:
            # A file or directory of the user's that the work could not use.
            if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if error.filename is None:
                console.report_lines("cannot write: the disk is full", "make room, and repeat it")
                sys.exit(int(ExitCode.DOES_NOT_FIT))
            console.report_lines(
                f"cannot use {os.fsdecode(error.filename)}: {error.strerror}",
                "check that it exists, and that you may read it (write it, if it is an output)",
            )
            code = ExitCode.INPUT
        sys.exit(int(code or 0))


def _voice(message: str) -> str:
    """Click's sentences in the form of ours: one line, small first letter, no full stop."""
    message = " ".join(message.split()).removesuffix(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
