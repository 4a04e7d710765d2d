"""Each synchronisation of a small kernel, dropped in turn at run time, is missed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from glm5_ascend.ops.emulator.launch import Options
from tests.ops.emulator.checks import run

OPTIONS = [Options(isolated=False), Options(isolated=False, scheduler="random", seed=3)]


def expected(kernel: str) -> np.ndarray:
    x = np.arange(4096, dtype=np.float32).reshape(-1, 256)
    if kernel == "pipeline":  # AIV rows of tiles to blocks of tiles of two rows
        return x[:12].reshape(2, 2, 3, 256).transpose(0, 2, 1, 3).reshape(12, 256)
    if kernel == "tiles":
        return 2 * x[:6]
    return x[[1, 0, 3, 2]]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o.scheduler)
@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        ("pipeline", {"cross-flag", "flag", "queue", "reuse"}),
        ("tiles", {"barrier", "flag"}),
        ("exchange", {"barrier", "flag", "sync-all"}),
    ],
)
def test_every_mutant_is_reported(kernel: str, kinds: set[str], options: Options) -> None:
    report, y = run(kernel, 0, options)
    assert report.findings == ()
    want = expected(kernel)
    assert np.array_equal(y[: want.size].reshape(want.shape), want)
    assert {order.kind for order in report.orders} == kinds
    survivors = [
        str(order)
        for order in report.orders
        if run(kernel, 0, dataclasses.replace(options, disabled=order))[0].clean
    ]
    assert survivors == []


def test_a_mutant_keeps_the_values_and_the_other_orders() -> None:
    report, y = run("tiles", 0, OPTIONS[0])
    barrier = next(order for order in report.orders if order.kind == "barrier")
    mutant, same = run("tiles", 0, dataclasses.replace(OPTIONS[0], disabled=barrier))
    assert {finding.kind for finding in mutant.findings} == {"RAW", "WAW"}
    assert {finding.site.api for finding in mutant.findings} == {"Add"}
    assert same.tobytes() == y.tobytes()
    assert mutant.orders == report.orders
