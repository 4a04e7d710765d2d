"""``glm5-ascend ops cost``: figures against formulas, extrapolation, the picture, mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.ops.emulator import abi, cost_case
from glm5_ascend.ops.emulator.cost_case import Case
from glm5_ascend.ops.emulator.launch import inputs, launch
from glm5_ascend.ops.emulator.rates import (
    CHIPS,
    CUBE_K,
    ELEMENTS,
    MARKS,
    PER_CYCLE,
    PER_SECOND,
    rates,
)
from glm5_ascend.ops.emulator.recording import cores, costing
from tests.ops.emulator.cost.programs import library

E = 4096
GIB = 2**30
ISSUE = 1 / 1800  # us until S has issued the first instruction


def reader(shape: Mapping[str, int]) -> Case:
    """``t`` pieces of 16 KiB for each AIV, one after the other."""

    def call() -> None:
        assert costing()
        blocks = 2 * cores(4)
        x = inputs("x", np.zeros((blocks * shape["t"], E), np.float32))
        launch(library(), "reads", [x, shape["t"], 0, E, 0], blocks=blocks)

    return Case(
        call,
        "pieces, once",
        48 * shape["t"] * E * 4,
        {"b16": 1000 * shape["t"]},
        shape["t"],
        float(shape["t"]),
        lambda: {"t": shape["t"] // 2} if shape["t"] > 1 else None,
    )


def multiplier(shape: Mapping[str, int]) -> Case:
    """``t`` products of 128 x 128 x 128 on every cube."""

    def call() -> None:
        launch(library(), "products", [shape["t"], 128, 128, 128], blocks=cores(4))

    products = {"b16": 24 * shape["t"] * 128**3}
    return Case(call, "nothing", 0, products, 0, 1.0, lambda: None)


@pytest.fixture(autouse=True)
def operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operators of this file's own."""
    monkeypatch.setattr(cost_case, "OPERATORS", ("reader", "multiplier"))
    for case in (reader, multiplier):
        fake = ModuleType("cost_shapes")
        fake.KEYS, fake.case = {"t": 8}, case  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"glm5_ascend.ops.{case.__name__}.cost_shapes", fake)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["ops", "cost", *map(str, arguments)])


def figures(*arguments: object) -> dict[str, object]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_every_rate_has_a_source_and_a_known_mark() -> None:
    numbers = [*CUBE_K.values(), *ELEMENTS.values(), *PER_SECOND.values(), *PER_CYCLE.values()]
    numbers += [n for chip in CHIPS.values() for n in (chip.ghz, chip.hbm, chip.l2, chip.l2_bytes)]
    assert all(n.mark in MARKS and n.source and n.value > 0 for n in numbers)
    assert {*PER_SECOND, *PER_CYCLE} == set(abi.PATHS)
    assert set(ELEMENTS) == set(abi.VECTOR_OPS)
    assert set(CUBE_K) == set(abi.CUBE_TYPES)


def test_rates_of_a_chip_by_hand() -> None:
    table = rates(CHIPS["910c"], 0.5)
    gm_to_ub, l1_to_a = abi.PATHS.index("GM-UB"), abi.PATHS.index("L1-L0A")
    assert table.move_bytes[gm_to_ub] == pytest.approx(100.9 * GIB / 1.8e9)
    assert (table.move_start[gm_to_ub], table.move_start[l1_to_a]) == (900, 0)
    assert table.move_bytes[l1_to_a] == 256
    assert table.hbm_bytes == pytest.approx(1.6e12 / 1.8e9)
    # The documented peaks: 354 TFLOPS in BF16, twice that in int8.
    assert 2 * CHIPS["910c"].products("b16") == pytest.approx(354e12, rel=0.001)
    assert 2 * CHIPS["910b3"].products("b16") == pytest.approx(295e12, rel=0.001)
    assert CHIPS["910b2"].products("int8") == 2 * CHIPS["910b2"].products("b16")


@pytest.mark.parametrize(("chip", "blocks", "hbm"), [("910c", 48, 1.6e12), ("910b4", 40, 0.8e12)])
def test_a_copy_shows_the_bound_of_hbm(chip: str, blocks: int, hbm: float) -> None:
    found = figures("reader", "--chip", chip)
    moved = blocks * 8 * E * 4
    times = found["times"]
    assert isinstance(times, list)
    assert found["bound"] == "HBM"
    assert times[0] == pytest.approx(moved / hbm * 1e6 + ISSUE, rel=1e-6)
    assert found["hbm"] == moved
    # Half a microsecond before each of eight transfers, at most; others use the bandwidth then.
    assert times[0] < times[1] <= times[0] + 8 * 0.5 + ISSUE
    assert times[1] < times[2] <= times[0] + 8 * 1.0 + ISSUE
    rows = {row["name"]: row for row in found["rows"]}  # type: ignore[attr-defined]
    assert rows["AIV.MTE2"]["work"] == pytest.approx(8 * E * 4 / (100.9 * GIB) * 1e6)


def test_products_show_the_bound_of_the_cube() -> None:
    found = figures("multiplier", "--shape", "t=50")
    assert found["bound"] == "AIC.M"
    assert found["times"] == [pytest.approx(50 * (512 + 60) / 1800 + ISSUE)] * 3
    assert found["cube_peak"] == pytest.approx(512 / 572, rel=1e-3)
    # The documentation's example takes 2108 cycles by this formula, and took 2172.
    long = 128 // 16 * 128 // 16 * 512 // 16 + 60
    assert long == 2108


def test_the_command_knows_every_chip() -> None:
    result = call("reader", "--chip", "nothing")
    assert result.exit_code == 2
    assert ", ".join(f"'{name}'" for name in CHIPS) in result.output


def test_text_says_what_it_is() -> None:
    result = call("reader")
    assert result.exit_code == 0, result.output
    for words in ("modelled, not measured", "launch head, apart", "HBM", "<- bound", "t=8"):
        assert words in result.stdout
    assert "EXTRAPOLATED" not in result.stdout


def test_long_emulations_are_a_line_and_say_so() -> None:
    arguments = ("reader", "--shape", "t=64")
    direct, drawn = figures(*arguments), figures(*arguments, "--limit", 40)
    assert (direct["extrapolated"], drawn["extrapolated"]) == (False, True)
    assert drawn["emulated"] == [{"t": 16}, {"t": 8}]
    for key in ("times", "bounds", "hbm", "floor_bytes", "floor_products"):
        assert drawn[key] == pytest.approx(direct[key], rel=1e-6), key
    assert "EXTRAPOLATED: emulated at t=16 and t=8" in call(*arguments, "--limit", 40).stdout


def test_the_picture_is_one_well_formed_file(tmp_path: Path) -> None:
    file = tmp_path / "pipes.svg"
    found = figures("reader", "--timeline", file)
    assert found["picture"] == str(file)
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for words in ("AIV.MTE2", "AIV0 MTE2", "mean of all cores", "block 0"):
        assert words in texts
    assert any("modelled, not measured" in text for text in texts)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if "x" in each.attrib]
    assert bars
    for bar in bars:
        x, y, w, h = (float(bar.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    assert "href" not in file.read_text()
    assert "url(" not in file.read_text()
    # All movers are busy all the time.
    assert max(float(bar.attrib["width"]) for bar in bars) == pytest.approx(800, abs=5)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nothing",), "nothing has no cost case"),
        (("reader", "--shape", "t=0"), "t is '0'"),
        (("reader", "--shape", "t=1,t=2"), "--shape: t stands twice\nhint: give each of t once"),
        (
            ("reader", "--shape", "z=1"),
            "'z=1' is no size of reader\nhint: its sizes are t: write t=8",
        ),
        (("reader", "--shape", "t"), "'t' is no size of reader"),
        (("reader", "--timeline", "/proc/none/x.svg"), "cannot use /proc/none"),
        (("reader", "--shape", "t=1000", "--limit", "1"), "no smaller shape is like it"),
        (("reader", "--shape", "t=8", "--limit", "1.6"), "the smallest shape of its kind"),
    ],
)
def test_mistakes_are_one_error(arguments: tuple[str, ...], error: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert error in result.stderr
    assert "hint: " in result.stderr


def test_what_memory_does_not_hold_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 8)  # 32 bytes to use, reader needs t
    result = figures("reader", "--shape", "t=64")
    assert result["extrapolated"]
    assert result["emulated"] == [{"t": 32}, {"t": 16}]
