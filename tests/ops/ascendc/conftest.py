"""How long the AscendC kernels are tested: as ``make test`` does, or as ``make nightly`` does."""

from __future__ import annotations

import os

import pytest

from glm5_ascend.ops.verify.case import Case

# Set by tools/nightly.py: schedules a scene is run under. Production tiles need it, too.
_SEEDS = os.environ.get("GLM5_NIGHTLY_SEEDS", "")


@pytest.fixture(scope="session")
def seeds() -> range:
    """Seeds of the random scheduler."""
    return range(int(_SEEDS or 10))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave conformance at GLM-5's full sizes, which takes minutes, to the nightly run."""
    if _SEEDS:
        return
    full = [item for item in items if _is_full(item)]
    if full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item not in full]


def _is_full(item: pytest.Item) -> bool:
    case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    return isinstance(case, Case) and case.size == "full"
