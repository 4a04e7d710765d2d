"""The operators' own kernels: what the emulator counts fits the formulas of their floors."""

from __future__ import annotations

import pytest

from glm5_ascend.ops.emulator.cost_case import module, parse_shape
from glm5_ascend.ops.emulator.model import estimate
from glm5_ascend.ops.emulator.rates import CHIPS


@pytest.mark.parametrize(
    ("operator", "shape", "most_bytes", "most_products"),
    [
        # Products are padded to 16 rows at least, and to whole tiles of keys.
        ("lightning_indexer", "s=8192", 1.2, 4),
        ("lightning_indexer", "s=8192,int8=1", 1.3, 4),
        # Beside the rows: queries, results, indices.
        ("sparse_flash_attention", "s=4096", 1.3, 1.6),
        ("sparse_flash_attention", "s=4096,int8=1", 1.4, 1.6),
        ("mlapo", "t=1,int8=1", 1.05, 16),
    ],
)
def test_counters_fit_the_floors(
    operator: str, shape: str, most_bytes: float, most_products: float
) -> None:
    sizes = parse_shape(operator, shape)
    case = module(operator).case(sizes)
    found, recorder = estimate(operator, sizes, CHIPS["910c"])
    assert case.floor_bytes <= found.hbm <= most_bytes * case.floor_bytes
    lanes = [lane for launch in recorder.launches for lane in launch.report.lanes]
    for kind, least in case.products.items():
        done = sum(lane.products.get(kind, 0) for lane in lanes)
        assert least <= done <= most_products * least, kind
    # No time is shorter than a bound or a floor.
    for time, bound in zip(found.times, found.bounds, strict=True):
        assert time >= bound > 0
    assert found.times[0] >= found.floor
    assert all(launch.blocks <= 24 for launch in recorder.launches)
