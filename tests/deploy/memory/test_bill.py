"""The bill against published logs and verdicts, and its directions."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.config import Glm5Config
from glm5_ascend.deploy.catalogue import hardware, model
from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory import Settings, bill
from glm5_ascend.deploy.memory.cache import token_bytes
from glm5_ascend.deploy.memory.overhead import MIB, least_buffsize
from glm5_ascend.inspection import cache_bytes_per_token
from tests.deploy.memory.rows import NOT_MODELLED, RELEASE, VERDICTS, WEIGHTS, Row

A3 = hardware("a3-560t").sku
A2 = hardware("a2-313t").sku


@pytest.mark.parametrize("row", VERDICTS, ids=lambda row: row.name)
def test_published_verdicts(row: Row) -> None:
    found = bill(row.settings())
    assert found.fits == row.fits, (found.margin / GIB, found.refused)
    if not found.refused:
        assert (found.margin >= 0) == row.fits


def test_every_row_is_judged_or_listed_with_a_reason() -> None:
    judged = {row.name.split()[0] for row in VERDICTS}
    assert not judged & NOT_MODELLED.keys()
    numbers = {int(name[1:]) for name in judged | NOT_MODELLED.keys()}
    gone = {4, 9, 13, 20, 22, 26, 31, 33, 38}  # numbers that the list does not use
    assert numbers | gone == set(range(1, 41))


@pytest.mark.parametrize(("logged", "name", "quant", "layout", "flags", "source"), WEIGHTS)
def test_logged_weights_within_5_percent(
    logged: float, name: str, quant: str, layout: str, flags: dict[str, Any], source: str
) -> None:
    found = bill(Settings(model(name), A3, Group.parse(layout), quant, **flags))
    assert abs(found.weights / GIB / logged - 1) < 0.05, source


def old(**flags: Any) -> Settings:
    release = RELEASE("0.22.1rc1")
    group = Group.parse("dp4tp8")
    return Settings(model("glm-5.2"), A2, group, "bf16", release=release, **flags)


def test_blocks_are_exact_given_the_logged_bytes() -> None:
    # "2.01 GiB available, estimated maximum 19328" and "200000 tokens need 20.73 GiB" (#10918).
    found = bill(old(max_model_len=200_000), kv_bytes=int(2.01 * GIB))
    assert (found.blocks, found.max_context) == (151, 19_328)
    assert round(found.needed_kv / GIB, 2) == 20.73
    # 235,008 tokens per DP rank (UCM's report on vllm-ascend 0.18.0rc1).
    ucm = Settings(model("glm-5.1"), A3, Group.parse("dp8tp4"), release=RELEASE("0.18.0rc1"))
    assert bill(ucm, kv_bytes=235_008 * 111_232).blocks * 128 == 235_008


@pytest.mark.parametrize(
    ("tokens", "settings"),
    [
        # #10700: 21.26 GiB of cache at 0.92 of 60.96 GiB.
        (
            21.26 * GIB / 111_232,
            Settings(model("glm-5.1"), A2, Group.parse("dp2tp8"), "w4a8", max_num_seqs=2),
        ),
        (
            235_008,
            replace(
                Settings(model("glm-5.1"), A3, Group.parse("dp8tp4"), role="decode"),
                max_num_seqs=8,
                max_num_batched_tokens=32,
                buffsize=256,
            ),
        ),
    ],
)
def test_capacity_from_flags_alone_within_10_percent(tokens: float, settings: Settings) -> None:
    found = bill(settings)
    assert abs(found.blocks * settings.block / tokens - 1) < 0.10


@pytest.mark.parametrize("name", ["glm-5", "glm-5.2"])
def test_cache_bytes_equal_those_of_inspect(name: str) -> None:
    file = Path(__file__).parents[2] / "data" / "configs" / f"{name.upper()}.json"
    expected = cache_bytes_per_token(Glm5Config.from_dict(json.loads(file.read_text()), source="x"))
    keys = {"bf16": "bf16", "li-c8": "li_c8", "sfa-c8": "sfa_c8", "both": "li_c8_sfa_c8"}
    for kv, key in keys.items():
        settings = Settings(model(name), A3, Group.parse("dp4tp4"), kv=kv)
        assert token_bytes(settings) == expected[key]


def test_dcp_splits_the_latent_and_not_the_indexer() -> None:
    split = Settings(model("glm-5.2"), A3, Group.parse("dp1tp16dcp16"), kv="li-c8")
    assert token_bytes(split) == 79 * 1152 / 16 + 22 * 130


def grid() -> list[Settings]:
    base = Settings(model("glm-5.1"), A3, Group.parse("dp8tp4"))
    changes: list[dict[str, Any]] = [
        {},
        {"quant": "w4a8", "kv": "both"},
        {"role": "decode", "dsa_cp": True, "max_num_batched_tokens": 128},
        {"model": model("glm-5.2"), "group": Group.parse("dp1tp16dcp16"), "kv": "li-c8"},
        {"quant": "bf16", "sku": A2, "draft_tokens": 0},
        {"role": "prefill", "graph": False, "max_num_batched_tokens": 16384},
    ]
    return [replace(base, **change) for change in changes]


@pytest.mark.parametrize("settings", grid())
def test_directions(settings: Settings) -> None:
    def margins(name: str, values: list[Any]) -> list[float]:
        return [bill(replace(settings, **{name: value})).cache_margin for value in values]

    lengths = margins("max_model_len", [1, 128, 129, 1000, 4096, 65_536, 131_072, 202_752])
    assert lengths == sorted(lengths, reverse=True)
    sequences = margins("max_num_seqs", [1, 2, 8, 64, 512])
    assert all(a > b for a, b in pairwise(sequences))
    shares = margins("utilisation", [0.5, 0.7, 0.9, 0.92, 0.95, 0.99])
    assert all(a < b for a, b in pairwise(shares))
    batches = margins("max_num_batched_tokens", [32, 1024, 4096, 16_384])
    assert all(a > b for a, b in pairwise(batches))
    wider = [replace(settings.group, dp=settings.group.dp * times) for times in (1, 2, 4, 8)]
    dies = margins("group", [group for group in wider if group.ep <= 256])
    assert all(a < b for a, b in pairwise(dies))


@pytest.mark.parametrize("settings", grid())
def test_sequences_at_once_fall_with_length_and_rise_with_memory(settings: Settings) -> None:
    def held(**change: Any) -> int:
        return bill(replace(settings, **change)).max_sequences

    counts = [held(max_model_len=length) for length in (1024, 4096, 16_384, 65_536)]
    assert counts == sorted(counts, reverse=True)
    assert held(utilisation=0.8) <= held(utilisation=0.9)


def test_buffer_bound_equals_what_logs_and_recipes_say() -> None:
    glm, group = model("glm-5.1"), Group.parse("dp32tp1")
    assert [least_buffsize(glm, group, rows) for rows in (31, 62, 119, 159)] == [
        200,
        400,
        767,
        1024,
    ]
    assert least_buffsize(glm, group, 96) == 618  # vllm-ascend's recipe of 256 is too small
    v3 = least_buffsize(model("deepseek-r1"), group, 78)
    assert v3 <= 650  # sglang's setting for 78 tokens per rank
    assert bill(grid()[0]).parts["hccl"] == 2 * 200 * MIB


def test_what_comes_late_must_fit_outside_of_the_budget() -> None:
    base = replace(grid()[0], utilisation=0.94, buffsize=1024)
    spare = 61.27 * 0.06 - 0.67 - 2 * 1024 / 1024
    assert bill(base).outside_margin / GIB == pytest.approx(spare, abs=1e-6)
    decode = bill(replace(base, role="decode"))
    assert decode.outside_margin / GIB == pytest.approx(spare + 2.0, abs=1e-6)


def test_refusals_are_named() -> None:
    base = grid()[0]
    five = bill(replace(base, group=Group.parse("dp5tp8")))
    assert any("24 redundant experts" in text for text in five.refused)
    mended = bill(replace(base, group=Group.parse("dp5tp8"), redundant=24))
    assert not mended.refused
    assert bill(replace(base, sku=A2, group=Group.parse("dp5tp8"), redundant=24)).refused
    packed = replace(base, kv="both", group=Group.parse("dp2tp16dcp16"))
    assert bill(replace(packed, release=RELEASE("0.23.0"))).refused
    assert not bill(packed).refused
    assert bill(replace(base, max_model_len=300_000)).refused
