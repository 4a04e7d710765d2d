"""Every class of findings: a kernel with the fault, and the same kernel without it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from glm5_ascend.ops.emulator.build import INCLUDE
from glm5_ascend.ops.emulator.launch import Options
from tests.ops.emulator.checks import FILES, Fault, faults, run

FAULTS = faults()
ROUND_ROBIN = Options(isolated=False)
RANDOM = Options(isolated=False, scheduler="random", seed=7)
SCHEDULERS = [pytest.param(ROUND_ROBIN, id="round-robin"), pytest.param(RANDOM, id="random")]
# Where the kernel's own process would not survive, or would not end.
ISOLATED = ("faults",)


def seen(fault: Fault, options: Options) -> bool:
    """Whether the fault is found; a race has its line on either side, as the cores ran."""
    report, _ = run(fault.kernel, fault.number, options)
    lines = [
        (f.kind, side.site.line)
        for f in report.findings
        for side in (f, f.other)
        if side is not None
    ]
    return (fault.kind, fault.line) in lines


@pytest.mark.parametrize("options", SCHEDULERS)
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.kernel not in ISOLATED], ids=str)
def test_fault_is_found_at_its_line(fault: Fault, options: Options) -> None:
    assert seen(fault, options)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.kernel in ISOLATED], ids=str)
def test_fault_that_ends_the_process_is_found_at_its_line(fault: Fault) -> None:
    assert seen(fault, Options(timeout=0.5))


@pytest.mark.parametrize("options", SCHEDULERS)
@pytest.mark.parametrize("kernel", FILES)
def test_kernel_without_fault_is_clean(kernel: str, options: Options) -> None:
    report, _ = run(kernel, 0, options)
    assert report.findings == ()


def test_every_seed_is_clean_and_gives_the_same_values() -> None:
    _, first = run("pipeline", 0, ROUND_ROBIN)
    for seed in range(20):
        report, y = run("pipeline", 0, dataclasses.replace(RANDOM, seed=seed))
        assert report.findings == ()
        assert y.tobytes() == first.tobytes()


def test_every_kind_of_finding_has_a_kernel() -> None:
    header = (INCLUDE / "emu" / "types.h").read_text()
    names = re.search(r"enum class Class : uint8_t \{([^}]*)\}", header)
    assert names is not None
    kinds = {name.strip().replace("_", "-") for name in names[1].split(",")}
    assert {fault.kind for fault in FAULTS} == kinds


def test_the_same_seed_gives_the_same_report() -> None:
    for kernel, number in (("cross", 1), ("all_vectors", 2), ("atomics", 4)):
        options = dataclasses.replace(RANDOM, seed=11)
        first, again = (run(kernel, number, options, blocks=4)[0] for _ in range(2))
        assert first.findings == again.findings != ()
        assert first.lanes == again.lanes


def test_seeds_run_the_cores_in_other_orders() -> None:
    reports = [
        run("cross", 1, dataclasses.replace(RANDOM, seed=seed), blocks=4)[0] for seed in range(8)
    ]
    assert len({report.findings for report in reports}) > 1


def test_findings_are_bounded_and_count_what_repeats() -> None:
    few, _ = run("order", 5, dataclasses.replace(ROUND_ROBIN, most_findings=1))
    assert len(few.findings) == 1
    assert few.dropped > 0
    many, _ = run("order", 5, ROUND_ROBIN)
    raw = next(f for f in many.findings if f.kind == "RAW")
    assert raw.count == 2 * 2 * 256 * 4 // 32  # blocks, tiles, units of 32 bytes


def test_without_shadow_hazards_pass_and_bounds_do_not() -> None:
    options = dataclasses.replace(ROUND_ROBIN, shadow=False)
    assert run("order", 5, options)[0].clean
    assert [f.kind for f in run("bounds", 2, options)[0].findings] == ["OOB"]


def test_a_reserved_part_of_ub_counts() -> None:
    assert run("bounds", 0, dataclasses.replace(ROUND_ROBIN, reserved_ub=8192))[0].clean
    assert not run("bounds", 0, dataclasses.replace(ROUND_ROBIN, reserved_ub=195_000))[0].clean


def test_more_blocks_than_cores_cannot_wait_for_each_other() -> None:
    report, _ = run("all_vectors", 0, dataclasses.replace(ROUND_ROBIN, block_limit=1))
    assert {finding.kind for finding in report.findings} == {"XFLAG"}
