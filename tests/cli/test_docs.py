"""The generated parts of the documents are those that the code would write now."""

from __future__ import annotations

from tools.check_docs import BLOCKS, DOCUMENTS, render


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
