"""The thread pool: every index once, bounded threads, forks, and callers that meet."""

from __future__ import annotations

import ctypes
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from glm5_ascend import ops
from glm5_ascend.ops.native import build, library
from tests.ops.native.calls import Array

_SHARED = Path(ops.__path__[0]) / "native" / "csrc"


@pytest.fixture(scope="module")
def probe() -> ctypes.CDLL:
    library("native")  # the pool is found among what is loaded
    source = Path(__file__).parent / "pool_probe.cpp"
    headers = sorted(_SHARED.glob("*.h"))
    return ctypes.CDLL(
        str(build.build("pool-probe", [source], headers, ("-DG5_PORTABLE=1",), _SHARED))
    )


def _threads(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_THREADS", str(count))
    library("native")


def _pieces(probe: ctypes.CDLL, n: int, grain: int = 1, work: int = 0) -> tuple[Array, Array]:
    visits, threads = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    code = probe.probe_pieces(
        *(ctypes.c_int64(x) for x in (n, grain, work)),
        *(ctypes.c_void_p(x.ctypes.data) for x in (visits, threads)),
    )
    assert code == 0
    return visits, threads


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_index_once(count: int, probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    _threads(count, monkeypatch)
    for n in (0, 1, 2, 3, 64, 1001):
        for _ in range(10):
            visits, threads = _pieces(probe, n)
            assert (visits == 1).all()
            assert ((threads >= 0) & (threads < count)).all()


def test_grain_keeps_small_work_together(
    probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    _threads(4, monkeypatch)
    assert set(_pieces(probe, 63, grain=32)[1]) == {0}
    # A piece is one thread's, so who ran it changes at most once.
    assert (np.diff(_pieces(probe, 64, grain=32)[1]) != 0).sum() <= 1


def test_helpers_take_part(probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    _threads(2, monkeypatch)
    assert any(set(_pieces(probe, 2, work=30_000_000)[1]) == {0, 1} for _ in range(10))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_helpers_are_pinned(probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    _threads(2, monkeypatch)
    for _ in range(10):
        allowed = np.zeros(2, np.int32)
        probe.probe_processors(ctypes.c_int64(2), ctypes.c_void_p(allowed.ctypes.data))
        if allowed.any():
            assert sorted(allowed)[1] == 1
            return
    pytest.fail("no helper took part in ten calls")


def test_callers_that_meet(probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    _threads(3, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        for visits, _ in pool.map(lambda _: _pieces(probe, 500, work=200), range(60)):
            assert (visits == 1).all()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_process_gets_helpers_of_its_own(
    probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    _threads(2, monkeypatch)
    _pieces(probe, 100)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for threads it does not have ends here
        good = all((_pieces(probe, 100)[0] == 1).all() for _ in range(20))
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
