"""The roofline sheet of the GPU kernels in ops/README.md, computed from shapes and H200 rates.

``python -m tools.roofline`` writes the block between ``<!-- generated: roofline -->`` and
``<!-- end -->``; ``--check`` fails where it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.check_docs import with_block
from tools.gpu_bench.h200 import MEMORY, PRODUCTS
from tools.gpu_bench.shapes import SHAPES, Shape

OPS_README = Path(__file__).resolve().parent.parent / "ops" / "README.md"


def _row(shape: Shape) -> str:
    cost = shape.cost
    gathered = f"{cost.gathered / 1e6:,.1f}" if cost.gathered > cost.nbytes else "–"
    return (
        f"| `{shape.name}`: {shape.title} | {shape.dtype} | {cost.nbytes / 1e6:,.2f} | {gathered} |"
        f" {sum(cost.flops.values()) / 1e9:,.2f} | {cost.memory_us:,.2f} |"
        f" {cost.products_us:,.2f} | **{cost.floor_us:,.2f}** | {cost.bound} |"
    )


def sheet() -> str:
    """Text and table."""
    rates = [f"memory {MEMORY.value / 1e12:g} TB/s ({MEMORY.source})"]
    rates += [f"{kind} {r.value / 1e12:g} TFLOP/s ({r.source})" for kind, r in PRODUCTS.items()]
    head = (
        "Computed, not measured, for one H200: " + "; ".join(rates) + ". Bytes are inputs and"
        " outputs, every distinct one once, so the floor is that of a cold L2; of a latent cache"
        " as many rows as the tokens can name. Gathered are the bytes that leave the L2 when each"
        " token fetches its own rows; its rate is not known, so it is in no floor. Operations are"
        " those of the matrix products, without padding of heads; sums over heads, softmax and"
        " selection are not counted. The floor is the longer of both times.\n"
    )
    table = [
        "| shape | numbers | MB | MB gathered | GFLOP | memory µs | products µs | floor µs"
        " | bound |\n|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    return "\n".join([head, *table, *map(_row, SHAPES)]) + "\n"


def main(argv: list[str]) -> int:
    """Command line entry."""
    current = OPS_README.read_text(encoding="utf-8")
    wanted = with_block(current, "roofline", sheet())
    if argv == ["--check"]:
        if current != wanted:
            print("ops/README.md is out of date: run python -m tools.roofline", file=sys.stderr)
        return int(current != wanted)
    OPS_README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
