"""These tests run in Triton's interpreter, in their own environment (``make test-triton``)."""

from __future__ import annotations

import os

import pytest

# Triton decides at its first import whether it interprets, and vLLM acts on an installed Triton.
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What the interpreter of triton 3.6 does with loop bounds.
    ignored = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
    for item in items:
        item.add_marker(ignored)
