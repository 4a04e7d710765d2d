"""Times of small kernels equal formulas: pipes, overlap, shared bandwidth, cores that meet."""

from __future__ import annotations

import numpy as np
import pytest

from glm5_ascend.ops.emulator.launch import Buffer, inputs, output, workspace
from tests.ops.emulator.cost.programs import lane, model, run, simple

E = 2560  # floats of a piece: 10240 bytes, 102.4 cycles to read, 40 to add to
LOAD, STEP = E * 4 / 100, E / 64


def rows(pieces: int) -> Buffer:
    return inputs("in", np.zeros((pieces, E), np.float32))


def test_a_reader_is_bound_by_its_path() -> None:
    found = model("reads", [rows(24), 6, 0, E, 0], simple(hbm_bytes=1000), blocks=4)
    assert found.cycles == pytest.approx(6 * LOAD)
    assert (found.hbm, found.l2) == (24 * E * 4, 0)
    assert lane(found, "AIV3", "MTE2").work == pytest.approx(6 * LOAD)


def test_many_readers_are_bound_by_hbm() -> None:
    found = model("reads", [rows(240), 5, 0, E, 0], simple(hbm_bytes=1000), blocks=48)
    assert found.cycles == pytest.approx(240 * E * 4 / 1000)
    mover = lane(found, "AIV7", "MTE2")
    assert mover.work == pytest.approx(5 * LOAD)
    assert mover.busy == pytest.approx(found.cycles)


def test_bandwidth_goes_to_those_who_still_read() -> None:
    # Two cores share 120 until the second has its two pieces; then the first reads alone.
    found = model("reads", [rows(8), 2, 2, E, 0], simple(hbm_bytes=120), blocks=2)
    both = 2 * E * 4 / 60
    assert lane(found, "AIV1", "MTE2").end == pytest.approx(both)
    assert found.cycles == pytest.approx(both + 2 * LOAD)


def test_what_was_read_before_comes_from_l2() -> None:
    rates = simple(hbm_bytes=50, l2_bytes=200)
    found = model("reads", [rows(1), 6, 0, E, 1], rates, blocks=4)
    assert (found.hbm, found.l2) == (E * 4, 23 * E * 4)
    # The first core's first piece takes 204.8 cycles; three others share L2 meanwhile and after.
    assert found.cycles >= 23 * E * 4 / 200
    assert lane(found, "AIV0", "MTE2").work == pytest.approx(6 * LOAD)


def test_workspaces_are_in_l2_and_outputs_in_hbm() -> None:
    rates = simple(hbm_bytes=25, l2_bytes=50)
    z = np.zeros((2, E), np.float32)
    kept = run("writes", [output("z", z), 3, E], rates, blocks=2)
    held = run("writes", [workspace("z", z.nbytes), 3, E], rates, blocks=2)
    first, rest = 2 * E * 4, 4 * E * 4
    assert (kept.models[0].hbm, kept.models[0].l2) == (first, rest)
    assert (held.models[0].hbm, held.models[0].l2) == (0, first + rest)
    assert (kept.workspace, held.workspace) == (0, z.nbytes)
    assert kept.touched == {"z": z.nbytes}
    assert kept.models[0].cycles == pytest.approx(STEP + first / 25 + rest / 50)
    assert held.models[0].cycles == pytest.approx(STEP + (first + rest) / 50)


@pytest.mark.parametrize("kernel", ["stages", "queued"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_one_buffer_adds_and_two_overlap(kernel: str, steps: int) -> None:
    tiles, use = 7, steps * STEP
    serial = model(kernel, [rows(tiles), tiles, E, steps, 1], simple())
    assert serial.cycles == pytest.approx(tiles * (LOAD + use))
    double = model(kernel, [rows(tiles), tiles, E, steps, 2], simple())
    assert double.cycles == pytest.approx(tiles * max(LOAD, use) + min(LOAD, use))


def test_start_up_and_flags_are_paid_each_time() -> None:
    rates = simple(flag=3)
    rates.move_start[0], rates.move_block[0] = 50, 2
    found = model("stages", [rows(4), 4, E, 1, 1], rates)
    # A flag before each copy but that of the start, which nothing had to end for, and after it.
    assert found.cycles == pytest.approx(4 * (LOAD + 52 + STEP) + 4 * 3 + 3 * 3)


def test_several_models_of_one_launch() -> None:
    slow = simple()
    slow.move_start[0] = 50
    report = run("stages", [rows(4), 4, E, 1, 1], simple(), slow)
    plain, late = (each.cycles for each in report.models)
    assert late - plain == pytest.approx(4 * 50)
    assert run("stages", [rows(4), 4, E, 1, 1]).models == ()


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 128), (16, 128, 64), (20, 100, 40)])
def test_products_take_their_fractals_and_a_start(m: int, n: int, k: int) -> None:
    found = model("products", [9, m, n, k], simple(cube_start=60), blocks=2)
    fractals = -(-m // 16) * -(-n // 16) * -(-k // 16)
    assert found.cycles == pytest.approx(9 * (60 + fractals))
    assert lane(found, "AIC1", "M").busy == pytest.approx(found.cycles)


@pytest.mark.parametrize(("how", "steps"), [(0, 12), (1, 12), (2, 7)])
def test_cores_that_meet_wait_for_the_slowest(how: int, steps: int) -> None:
    blocks = 6
    found = model("phases", [E, how], simple(cross_flag=11), blocks=blocks)
    assert found.cycles == pytest.approx(steps * STEP + (11 if how < 2 else 0))


@pytest.mark.parametrize("barrier", [0, 1])
def test_what_s_waits_for_delays_what_it_issues(barrier: int) -> None:
    found = model("scalar_wait", [rows(1), E, barrier], simple())
    assert found.cycles == pytest.approx(STEP + LOAD)


def test_issue_takes_time_of_s() -> None:
    found = model("products", [40, 16, 16, 16], simple(issue=5))
    # 40 products of one cycle and 40 barriers; the last product begins when S has issued it.
    assert found.cycles == pytest.approx(5 * 79 + 1)
    assert lane(found, "AIC0", "S").work == 5 * 80


def test_bins_hold_the_busy_time() -> None:
    report = run("stages", [rows(7), 7, E, 2, 1], simple(), bins=50)
    found = report.models[0]
    for pipe in ("V", "MTE2"):
        own = lane(found, "AIV0", pipe)
        assert len(own.bins) == 50
        assert sum(own.bins) * found.cycles / 50 == pytest.approx(own.busy, rel=0.01)
    together = [
        a + b for a, b in zip(*(lane(found, "AIV0", p).bins for p in ("V", "MTE2")), strict=True)
    ]
    assert together == pytest.approx([1.0] * 50, abs=0.003)


def test_the_model_does_not_depend_on_shadow_memory() -> None:
    arguments = [rows(7), 7, E, 2, 2]
    checked = run("stages", arguments, simple(), shadow=True)
    assert checked.models[0].cycles == run("stages", arguments, simple()).models[0].cycles
