"""The grammar of layouts and the plan file, both ways."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from glm5_ascend.deploy.layout import Group, Layout, LayoutError
from glm5_ascend.deploy.plan_file import Plan, PlanError, RolePlan


def groups(seed: int) -> list[Group]:
    draw = random.Random(seed)
    found = []
    for _ in range(100):
        dcp = draw.randint(1, 8)
        dp, pp, copies = (draw.randint(1, 64) for _ in range(3))
        found.append(Group(dp, dcp * draw.randint(1, 8), pp, dcp, copies))
    return found


def test_a_group_survives_its_text() -> None:
    for group in groups(1):
        assert Group.parse(str(group)) == group
        assert Group.parse(str(group).upper()) == group


def test_a_layout_survives_its_text() -> None:
    for one, two in zip(groups(2), groups(3), strict=True):
        for layout in (Layout(mixed=one), Layout(prefill=one, decode=two)):
            assert Layout.parse(str(layout)) == layout
        assert Layout(prefill=one, decode=two).dies == one.dies + two.dies


def test_examples() -> None:
    assert Layout.parse("dp8tp4").mixed == Group(8, 4)
    assert Group.parse("tp16").ep == 16
    assert Layout.parse("p=2*dp2tp8,d=dp32tp1").dies == 64
    assert Layout.parse("d=dp32tp1,p=dp4tp8") == Layout.parse("p=dp4tp8,d=dp32tp1")


BAD = [
    "dp0tp4",
    "dp8tp4dp2",
    "8x4",
    "tp4dcp3",
    "p=dp4tp8",
    "p=dp4,p=dp8",
    "dp4,tp8",
    "x=dp4,d=dp4",
    "dp-1",
    "dp4tp",
]


@pytest.mark.parametrize("text", [*BAD, "", "p=,d=", "dp4 tp4"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(LayoutError):
        Layout.parse(text)


MIXED = RolePlan("mixed", (0, 1), "dp8tp4", {"max-num-seqs": 6}, {"HCCL_BUFFSIZE": "400"}, {})
PLAN = Plan("glm-5.1", "w8a8", "li-c8", "0.30.0rc2", "a3-752t", 2, (MIXED,), {"tpot_ms": 41.5})


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    PLAN.dump(file)
    assert Plan.load(file) == PLAN
    split = replace(
        PLAN,
        servers=4,
        roles=(
            RolePlan("prefill", (0,), "dp2tp8"),
            RolePlan("prefill", (1,), "dp2tp8"),
            RolePlan("decode", (2, 3), "dp32tp1"),
        ),
    )
    split.dump(file)
    assert Plan.load(file) == split


def broken(**changes: object) -> dict[str, object]:
    return {**PLAN.as_dict(), **changes}


ROLE = {"role": "mixed", "nodes": [0, 1], "layout": "dp8tp4"}
EMPTY = {"flags": {}, "env": {}, "additional_config": {}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (broken(schema=2), "schema 2"),
        (broken(quant="int3"), "`quant`"),
        (broken(extra=1), "unknown key"),
        ({k: v for k, v in PLAN.as_dict().items() if k != "kv"}, "missing key `kv`"),
        (broken(hardware={"sku": "a3-752t", "servers": "2"}), "hardware.servers"),
        (broken(roles=[]), "no roles"),
        (broken(roles=[ROLE]), "missing key"),
        (broken(roles=[{**ROLE, **EMPTY, "role": "decode"}]), "do not serve"),
        (broken(roles=[{**ROLE, **EMPTY, "nodes": [0]}]), "takes 2 servers"),
        (broken(roles=[{**ROLE, **EMPTY, "nodes": [1, 1]}]), "not free"),
        (broken(roles=[{**ROLE, **EMPTY, "nodes": [1, 2]}]), "not free"),
        (broken(roles=[{**ROLE, **EMPTY, "env": {"A": 1}}]), "no text"),
        (broken(roles=[{**ROLE, **EMPTY, "layout": "2*dp4tp4"}]), "one instance"),
        ([1], "no mapping"),
    ],
)
def test_a_plan_that_contradicts_itself(tmp_path: Path, data: object, words: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(PlanError, match=words):
        Plan.load(file)


def test_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    for text in (b"a: [", b"\xff\xfe", b"!!python/object:os.system {}", b"a: 2020-99-99"):
        file.write_bytes(text)
        with pytest.raises(PlanError, match="no YAML"):
            Plan.load(file)


def test_a_plan_is_checked_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        replace(PLAN, servers=1).dump(tmp_path / "plan.yaml")
    assert not (tmp_path / "plan.yaml").exists()


def test_a_plan_is_written_whole(tmp_path: Path) -> None:
    PLAN.dump(tmp_path / "plan.yaml")
    before = (tmp_path / "plan.yaml").read_text()
    (tmp_path / ".plan.yaml.part").mkdir()
    with pytest.raises(IsADirectoryError):
        PLAN.dump(tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").read_text() == before
    PLAN.dump(Path("/dev/null"))
    assert Path("/dev/null").is_char_device()
