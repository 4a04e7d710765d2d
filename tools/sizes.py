"""Lines per file and per function without docstring, largest first; exit 1 above a limit.

python -m tools.sizes [--all]
"""

from __future__ import annotations

import ast
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("glm5_ascend", "ops", "quant", "deploy", "tools", "tests")
FILE_LIMIT = 400
FUNCTION_LIMIT = 60
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Size:
    """Lines of one file or function."""

    name: str
    lines: int


def measure(root: Path = ROOT) -> tuple[list[Size], list[Size]]:
    """Files and functions of the project, largest first; links are not followed."""
    files: list[Size] = []
    functions: list[Size] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            relative = path.relative_to(root)
            if any(parent.is_symlink() for parent in path.parents if parent != root):
                continue
            text = path.read_text(encoding="utf-8")
            files.append(Size(str(relative), text.count("\n")))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions.append(Size(f"{relative}:{node.lineno} {node.name}", _code(node)))
    return (
        sorted(files, key=lambda size: -size.lines),
        sorted(functions, key=lambda size: -size.lines),
    )


def _code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = _span(function)
    if ast.get_docstring(function) is not None:
        lines -= _span(function.body[0])
    return lines


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main(argv: list[str]) -> int:
    """Command line entry."""
    files, functions = measure()
    shown = None if argv == ["--all"] else SHOWN
    over = 0
    for label, sizes, limit in (
        ("files", files, FILE_LIMIT),
        ("functions", functions, FUNCTION_LIMIT),
    ):
        median = statistics.median(size.lines for size in sizes)
        print(f"{len(sizes)} {label}, median {median:.0f} lines, limit {limit}")
        for size in sizes[:shown]:
            print(f"{size.lines:6}  {size.name}")
        over += sum(size.lines > limit for size in sizes)
    print(f"{sum(size.lines for size in files)} lines in all, {over} over a limit")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
