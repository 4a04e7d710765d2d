"""Layouts clipped to four ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from glm5_ascend.config import Glm5Config
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.simulate.clip import clip, describe
from glm5_ascend.deploy.simulate.run import SMALL_MODEL

SMALL = Glm5Config.from_dir(SMALL_MODEL)


@pytest.mark.parametrize(
    ("layout", "clipped"),
    [
        ("dp8tp4", "dp2tp2"),
        ("dp2tp8", "dp2tp2"),
        ("dp32tp1", "dp4tp1"),
        ("dp1tp16", "dp1tp4"),
        ("dp1tp16dcp16", "dp1tp4"),
        ("dp2tp4pp4", "dp2tp2"),
        ("dp2tp1", "dp2tp1"),
        ("dp2tp2", "dp2tp2"),
        ("dp1tp2", "dp1tp2"),
        ("dp1tp1", "dp1tp1"),
        ("dp3tp1", "dp2tp1"),  # 16 experts over 3 ranks are uneven
        ("dp2tp3", "dp2tp1"),  # 4 heads
        ("dp1tp6", "dp1tp2"),
    ],
)
def test_layouts(layout: str, clipped: str) -> None:
    assert str(clip(Group.parse(layout), SMALL, True)) == clipped


def test_every_layout_keeps_its_directions() -> None:
    for dp, tp in product((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16)):
        found = clip(Group(dp, tp), SMALL, True)
        assert found.dies == min(4, dp * tp)
        assert (found.dp > 1, found.tp > 1) == (dp > 1, tp > 1)
        assert found.dp <= dp
        assert tp % found.tp == 0
        assert 16 % found.ep == 0


def test_halves_of_a_split_plan() -> None:
    assert str(clip(Group(8, 4), SMALL, True, 2)) == "dp2tp1"
    assert str(clip(Group(1, 16), SMALL, True, 2)) == "dp1tp2"
    assert str(clip(Group(32, 1), SMALL, True, 2)) == "dp2tp1"


def test_the_model_bounds_it() -> None:
    group = Group(1, 16)
    assert clip(group, replace(SMALL, num_attention_heads=2), True).tp == 2
    assert clip(group, replace(SMALL, moe_intermediate_size=50), True).tp == 2
    assert clip(group, replace(SMALL, intermediate_size=513), True).tp == 1
    few = replace(SMALL, n_routed_experts=2)
    assert clip(Group(8, 4), few, True).ep == 2
    assert str(clip(Group(8, 4), few, False)) == "dp2tp2"


def test_in_words() -> None:
    group, clipped = Group(8, 4), Group(2, 2)
    assert describe(group, clipped, True) == (
        "dp8tp4 (EP 32) on 32 dies -> dp2tp2 (EP 4) in 4 processes"
    )
    assert describe(Group(1, 1), Group(1, 1), False) == "dp1tp1 on 1 die -> dp1tp1 in 1 process"
