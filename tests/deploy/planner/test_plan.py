"""The search, its report and what it writes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click import UsageError
from click.testing import CliRunner, Result

from glm5_ascend.cli_deploy import plan
from glm5_ascend.deploy.catalogue import hardware, model
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory.settings import NEWEST
from glm5_ascend.deploy.performance.parameters import fitted
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.planner.analytic import times
from glm5_ascend.deploy.planner.candidates import Choices, candidates
from glm5_ascend.deploy.planner.chart import front, html, terminal
from glm5_ascend.deploy.planner.command import PlanOptions, _confidence
from glm5_ascend.deploy.planner.command import plan as run_plan
from glm5_ascend.deploy.planner.flags import plan_file
from glm5_ascend.deploy.planner.nearest import nearest
from glm5_ascend.deploy.planner.search import Search, search
from glm5_ascend.deploy.planner.targets import Targets
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import Glm5Error
from tools import bench_planner

TARGETS = Targets(
    model=model("glm-5.1"),
    hardware=hardware("a3-752t:2"),
    quant="w8a8",
    release=NEWEST,
    prompt=3500,
    output=1500,
    prefix=0.0,
    shared=0.0,
    concurrency=64,
    rate=None,
    tpot=0.06,
    ttft=5.0,
)
CHOICES = Choices(("li-c8",), (0, 3))


@pytest.fixture(scope="module")
def found() -> Search:
    return search(TARGETS, CHOICES, fitted(), 4, 5)


def test_the_best_meet_the_limits_and_are_ranked(found: Search) -> None:
    assert found.best
    speeds = [point.values[0] for point in found.best]
    assert speeds == sorted(speeds, reverse=True)
    for point in found.best:
        _, ttft, tpot = point.values
        assert ttft <= TARGETS.ttft
        assert tpot <= TARGETS.tpot
        assert point.first.bill.fits
        dies = point.first.settings.group.dies
        dies += point.second.settings.group.dies if point.second else 0
        assert dies == TARGETS.hardware.dies


def test_rejections_are_counted(found: Search) -> None:
    assert sum(found.rejected.values()) > 0
    assert any("cache" in reason or "limit" in reason for reason in found.rejected)


def test_every_kind_of_choice_is_tried() -> None:
    every = candidates(TARGETS, Choices(("bf16", "both"), (0, 3)))
    settings = [candidate.settings for candidate in every]
    assert {s.role for s in settings} == {"mixed", "prefill", "decode"}
    assert {s.kv for s in settings} == {"bf16", "both"}
    assert {s.dsa_cp for s in settings} == {True, False}
    assert {s.draft_tokens for s in settings if s.role != "prefill"} == {0, 3}
    assert {s.group.tp for s in settings} == {1, 2, 4, 8, 16}
    assert any(s.group.dcp > 1 for s in settings)
    assert any(s.group.copies == 2 for s in settings)
    assert all(candidate.reason or candidate.bill.fits for candidate in every)


def test_tighter_limits_never_find_more(found: Search) -> None:
    tight = search(replace(TARGETS, tpot=0.04), CHOICES, fitted(), 4, 5)
    assert all(point.values[2] <= 0.04 for point in tight.best)
    slow = [point for point in tight.points if point.tpot > 0.04]
    assert tight.rejected["TPOT above the limit"] == len(slow) > 0
    if tight.best:
        assert tight.best[0].throughput <= max(point.throughput for point in found.points)
    none = search(replace(TARGETS, tpot=0.001), CHOICES, fitted(), 4, 5)
    assert not none.best
    assert none.nearest


def test_the_benchmark_counts_what_it_times() -> None:
    speed, roles = bench_planner.rate(0.01)
    assert roles > 1000
    assert speed > 5_000


def test_ten_thousand_evaluations_a_second() -> None:
    every = [c for c in candidates(TARGETS, CHOICES) if c.settings.role == "mixed"] * 40
    started = time.perf_counter()
    rated = times(TARGETS, every, fitted(), 4)
    seconds = time.perf_counter() - started
    assert rated.evaluations == 8 * len(every)
    assert np.isfinite(rated.step).all()
    # 20,000 a second on one idle core; a quarter of that is left for a busy machine.
    assert rated.evaluations / seconds > 5_000


def test_acceptance_of_other_numbers_of_drafts() -> None:
    targets = replace(TARGETS, accepted=2.8)
    assert targets.accepted_with(0) == 1.0
    assert targets.accepted_with(3) == pytest.approx(2.8)
    assert 1.7 < targets.accepted_with(1) < 1.9
    values = [targets.accepted_with(drafts) for drafts in range(6)]
    assert values == sorted(values)


def test_the_front_has_no_point_that_another_beats(found: Search) -> None:
    chosen = front(found.points)
    for point in chosen:
        assert not any(
            other.tpot < point.tpot and other.throughput > point.throughput
            for other in found.points
        )
    assert "tokens/s per user" in terminal(found.points, TARGETS)
    page = html(found.points, TARGETS, "a < b")
    assert "<script" not in page
    assert page.count("<circle") == len(found.points)
    assert "a &lt; b" in page


@pytest.mark.parametrize(
    ("release", "kv", "flags", "extra"),
    [
        ("0.30.0rc2", "both", {"kv-cache-dtype", "attention-config"}, set()),
        ("0.30.0rc2", "li-c8", {"attention-config"}, set()),
        ("0.28.0rc1", "both", set(), {"enable_sparse_sfa_c8", "enable_sparse_li_c8"}),
        ("0.22.1rc1", "li-c8", set(), {"enable_sparse_c8"}),
        ("0.30.0rc2", "bf16", set(), set()),
    ],
)
def test_c8_is_spelled_as_the_release_does(
    release: str, kv: str, flags: set[str], extra: set[str]
) -> None:
    targets = replace(TARGETS, release=Release.parse(release), tpot=1.0, ttft=1000.0)
    best = search(targets, Choices((kv,), (3,)), fitted(), 4, 1).best[0]
    written = plan_file(targets, best, 4, {})
    every = {"kv-cache-dtype", "attention-config"}
    for role in written.roles:
        assert every & role.flags.keys() == flags
        assert {key for key in role.additional_config if "c8" in key} == extra


def run(*words: str) -> Result:
    base = ["--model", "glm-5.1", "--hw", "a3-752t:2", "--isl", "3500", "--osl", "1500"]
    base += ["--kv", "li-c8", "--mtp", "3"]
    return CliRunner().invoke(plan, [*base, *words], standalone_mode=False)


def test_the_command_writes_a_plan_and_a_chart(tmp_path: Path) -> None:
    file, page = tmp_path / "plan.yaml", tmp_path / "chart.html"
    words = ("--concurrency", "64", "--tpot", "60", "--out", str(file), "--chart", str(page))
    started = time.perf_counter()
    result = run(*words, "--json")
    assert time.perf_counter() - started < 10
    assert result.return_value == 0
    report = json.loads(result.stdout)
    best = report["layouts"][0]
    assert (report["kind"], best["simulated"]) == ("modelled", True)
    assert best["confidence"] in ("fair", "low")
    assert best["nearest_published"]["id"].startswith("M")
    written = Plan.load(file)
    assert written.as_dict() == report["plan"]
    assert sum(len(role.nodes) for role in written.roles) == 2
    assert "<svg" in page.read_text()


def test_exit_code_4_names_the_nearest() -> None:
    result = run("--concurrency", "64", "--tpot", "1")
    assert result.return_value == 4
    assert "NO LAYOUT" in result.stdout
    assert "nearest" in result.stdout
    error, hint = result.stderr.splitlines()
    assert error == "error: no layout meets TPOT 1 ms and TTFT 5000 ms"
    assert hint.startswith("hint: ")
    assert "relax the limits" in hint


def test_a_rate_is_met_or_refused() -> None:
    assert run("--rate", "0.3", "--tpot", "80").return_value == 0
    refused = run("--rate", "300")
    assert refused.return_value == 4
    assert "cannot keep up with the offered rate" in refused.stdout
    assert "keeps up with 300 requests/s" in refused.stderr


def test_a_million_users_are_a_long_queue_not_a_long_run() -> None:
    words = ("--ttft", "1e12", "--tpot", "1e9", "--top", "1", "--json")
    started = time.perf_counter()
    queued = json.loads(run("--concurrency", "1000000", *words).stdout)["layouts"][0]
    assert time.perf_counter() - started < 30
    # All of them wait for the users in front of them, on the mean for all but a few.
    alone = 1e6 * 1500 / queued["tokens_per_s"]
    assert queued["ttft_ms"] == pytest.approx(1e3 * alone, rel=0.05)


def test_many_servers_are_split_where_the_experts_allow() -> None:
    targets = replace(TARGETS, hardware=hardware("a3-752t:48"))
    every = candidates(targets, CHOICES)
    decoding = {c.servers for c in every if c.settings.role == "decode"}
    assert decoding == {1, 2, 4, 8, 16}
    filling = {c.servers for c in every if c.settings.role == "prefill"}
    assert filling == {48 - servers for servers in decoding}
    few = candidates(replace(TARGETS, hardware=hardware("a3-752t:4")), CHOICES)
    assert {c.servers for c in few if c.settings.role == "decode"} == {1, 2, 3}


def test_dcp_and_many_drafts_are_never_sure(found: Search) -> None:
    point = found.best[0]
    near = nearest(TARGETS, point, fitted())
    sure = replace(near, distance=0.0, error=0.0)
    for dcp, drafts, wanted in ((1, 3, "fair"), (16, 3, "low"), (1, 5, "low")):
        group = Group(2, 16, dcp=dcp)
        settings = replace(point.first.settings, group=group, draft_tokens=drafts)
        split = replace(point, first=replace(point.first, settings=settings), second=None)
        assert _confidence(split, sure) == wanted


OPTIONS = PlanOptions("glm-5.1", "w8a8", "a3-752t:2", 3500, 1500, concurrency=8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate": 1.0}, "either"),
        ({"concurrency": None}, "either"),
        ({"out": Path("same"), "chart": Path("same")}, "same file"),
        ({"model": ""}, "no model ''"),
        ({"hw": "a3-752t:129"}, "128 is the most"),
        ({"hw": "a3:0"}, "names no hardware"),
        ({"hw": "atlas-350:1"}, "no plan for"),
        ({"isl": 300_000}, "exceed"),
        ({"model": "glm-6"}, "no model"),
        ({"model": "deepseek-r1"}, "validate the model"),
    ],
)
def test_what_cannot_be_planned(change: dict[str, object], words: str) -> None:
    with pytest.raises(Glm5Error, match=words):
        run_plan(replace(OPTIONS, **change))  # type: ignore[arg-type]


def test_an_output_that_cannot_be_written_stops_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glm5_ascend.deploy.planner.command.search", pytest.fail)
    out = tmp_path / "plan.yaml"
    (tmp_path / "file").touch()
    for chart in (tmp_path, tmp_path / "file" / "chart.html"):
        with pytest.raises(OSError, match=chart.name):
            run_plan(replace(OPTIONS, out=out, chart=chart))
        assert not out.exists()


def test_one_of_load_and_rate_is_wrong_usage() -> None:
    for words in ((), ("--concurrency", "8", "--rate", "1")):
        assert "either" in str(run(*words).exception)
        assert isinstance(run(*words).exception, UsageError)


def test_acceptance_without_drafts_is_wrong_usage() -> None:
    words = ("--concurrency", "8", "--mtp", "0", "--accept-len")
    for length in ("2.0", "2.8"):
        error = run(*words, length).exception
        assert isinstance(error, UsageError)
        assert "--accept-len" in str(error)


def test_nothing_near_is_said() -> None:
    options = replace(OPTIONS, model="glm-5.2", quant="bf16", hw="a2:1")
    planned = run_plan(options)
    assert "NO LAYOUT meets the targets, and none is near" in planned.as_text()
    assert planned.trouble is not None
    assert "fits on no layout of a2-280t:1" in planned.trouble[0]
