"""What every command of the command line is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class PathType(click.Path):
    """A path as written; whether it can be read is for the command to find out and to explain."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse the empty path, which would mean the current directory."""
        if str(value) == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


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
