"""The generated parts of the documents are those that the code would write now."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from tools.check_docs import BLOCKS, DOCUMENTS, render

ROOT = Path(__file__).parents[2]


def test_documents_are_up_to_date() -> None:
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    for name in BLOCKS:
        assert sum(f"<!-- generated: {name} -->" in text for text in texts) == 1
    for text in texts:
        assert text == render(text), "run python -m tools.check_docs"


def test_a_stale_block_is_found() -> None:
    text = DOCUMENTS[0].read_text(encoding="utf-8")
    stale = text.replace("| 2 | wrong usage |", "| 2 | something else |")
    assert stale != text
    assert render(stale) == text


def test_numbers_of_the_readme_are_those_of_the_tables() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    results = (ROOT / "quant" / "RESULTS.md").read_text(encoding="utf-8")
    (hours,) = re.findall(r"^\| \*\*all\*\* \| \*\*([\d.]+)\*\*", results, re.M)
    assert f"W4A8 costs {float(hours):.1f} core-hours" in readme
    row = r"^\| {} \| {} \| ([\d.]+) \["
    for peer in ("msmodelslim", "llm-compressor"):
        int4, int8 = (
            Decimal(re.findall(row.format(peer, scheme), results, re.M)[0]).quantize(
                Decimal("0.01"), ROUND_HALF_UP
            )
            for scheme in ("w4a8", "w8a8")
        )
        assert re.search(rf"{int4} (at W4A8 )?and {int8}", readme)
