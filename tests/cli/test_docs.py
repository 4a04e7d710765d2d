"""The generated parts of the README are those that the code would write now."""

from __future__ import annotations

from tools.check_docs import BLOCKS, README, render


def test_readme_is_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    for name in BLOCKS:
        assert f"<!-- generated: {name} -->" in text
    assert text == render(text), "run python -m tools.check_docs"


def test_a_stale_block_is_found() -> None:
    text = README.read_text(encoding="utf-8")
    stale = text.replace("| 2 | wrong usage |", "| 2 | something else |")
    assert stale != text
    assert render(stale) == text
