"""Compile the Triton kernels for Hopper without a GPU, at the shapes that GLM-5 has.

``python -m tools.compile_triton`` builds every kernel and shape for sm_90a with Triton's own
compiler and prints registers, shared memory, spills and the kind of tensor core instructions.
``--record`` keeps the table in ``tools/results/triton_sm90a.json``; ``--check`` compiles anew and
fails where that table shows another number or a limit is broken: a spill, more than 227 KiB of
shared memory, no warp group product where one is expected, e4m3 codes converted one by one.

It needs triton 3.6 (others allocate registers differently) in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import triton_shapes, triton_sparse_shapes
from tools.triton_shapes import Shape

ROWS = Path(__file__).parent / "results" / "triton_sm90a.json"
VERSION = "3.6.0"
_SHARED_LIMIT = 227 << 10

Row = dict[str, Any]


_INT = "i64"
# Numbers that need not be multiples of 16; the compiler may count on it for all others.
_ODD = ("heads", "n", "ks_row", "count", "length", "tokens", "number")


def shapes() -> Iterator[Shape]:
    """Every kernel at every shape of production."""
    yield from triton_sparse_shapes.indexer()
    yield from triton_sparse_shapes.attention()
    yield from triton_shapes.mlapo()
    yield from triton_shapes.rows()


def compiled(shape: Shape) -> Row:
    """What the compiler makes of ``shape``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = shape.kernel.arg_names
    signature = {
        name: "constexpr" if name in shape.constants else shape.types.get(name, _INT)
        for name in names
    }
    constants = {(names.index(name),): value for name, value in shape.constants.items()}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name] not in ("constexpr", "fp32") and name not in _ODD
    }
    source = ASTSource(shape.kernel, signature, constants, aligned)
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    code = _disassembled(built.asm["cubin"])
    usage = _usage(built.asm["cubin"])
    products = sorted({match[:5] for match in re.findall(r"\b[HIQ]GMMA\b", code)})
    slow = len(re.findall(r"\bF2F\b", code))
    return {
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "shared": built.metadata.shared,
        "products": products,
        **({"F2F": slow} if slow else {}),
    }


def _tool(name: str) -> str:
    import triton.backends.nvidia as nvidia

    return str(Path(nvidia.__file__).parent / "bin" / name)


def _on_file(cubin: bytes, *command: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([*command, file.name], capture_output=True, text=True, check=True)
    return done.stdout


def _disassembled(cubin: bytes) -> str:
    return _on_file(cubin, _tool("nvdisasm"), "-c")


def _usage(cubin: bytes) -> dict[str, int]:
    text = _on_file(cubin, _tool("cuobjdump"), "-res-usage")
    return {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", text)}


def broken(shape: Shape, row: Row) -> list[str]:
    """Which limits ``row`` breaks."""
    found = []
    if row["spills"] or row["stack"]:
        found.append(f"{shape.name}: {row['spills']} spill instructions, stack {row['stack']} B")
    if row["shared"] > _SHARED_LIMIT:
        found.append(f"{shape.name}: {row['shared']} B of shared memory, limit {_SHARED_LIMIT}")
    if shape.products and shape.products not in row["products"]:
        found.append(f"{shape.name}: no {shape.products} among {row['products']}")
    if "e4m3" in shape.name and row.get("F2F"):
        found.append(f"{shape.name}: {row['F2F']} slow conversions, one per number")
    return found


def main(argv: list[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.compile_triton", description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep the table")
    parser.add_argument("--check", action="store_true", help="compare with the kept table")
    args = parser.parse_args(argv)
    import triton

    if triton.__version__ != VERSION:
        print(f"error: triton {triton.__version__} is installed", file=sys.stderr)
        print(f"hint: pip install triton=={VERSION}", file=sys.stderr)
        return 1
    rows, problems = {}, []
    for shape in shapes():
        rows[shape.name] = row = compiled(shape)
        problems += broken(shape, row)
        print(f"{shape.name:42} {row['registers']:4} registers {row['shared'] / 1024:6.1f} KiB"
              f" {row['spills']:4} spills  {' '.join(row['products'])}")  # fmt: skip
    if args.record:
        document = {"schema": 1, "triton": VERSION, "target": "sm_90a", "kernels": rows}
        ROWS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.check:
        kept = json.loads(ROWS.read_text(encoding="utf-8"))["kernels"]
        problems += [
            f"{name}: {rows.get(name)}, recorded {kept.get(name)}"
            for name in sorted(rows.keys() | kept.keys())
            if rows.get(name) != kept.get(name)
        ]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
