"""Prometheus and Grafana: names against vLLM's source, rules and queries with promtool."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from glm5_ascend.deploy.endpoint import monitoring
from glm5_ascend.deploy.endpoint.metrics import series, used
from glm5_ascend.deploy.endpoint.site import Site, site_of
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.engine_releases import RELEASES
from glm5_ascend.errors import Glm5Error
from tests.deploy.render.plans import HOSTS, PLANS
from tools.catalogue import metrics as recorder

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
FULL = replace(PLANS["split"], predicted={"ttft_ms": 2000.0, "tpot_ms": 40.0})


def site(plan: Plan) -> Site:
    return site_of(plan, hosts=",".join(HOSTS[: plan.servers]))


def expressions(plan: Plan, npu: bool = True) -> dict[str, str]:
    """Every expression that is written for a plan, by its place."""
    rules = yaml.safe_load(monitoring.alerts_yml(site(plan), npu))["groups"][0]["rules"]
    found = {rule["alert"]: rule["expr"] for rule in rules}
    for panel in json.loads(monitoring.dashboard_json(site(plan), npu))["panels"]:
        found |= {f"{panel['title']} {t['refId']}": t["expr"] for t in panel["targets"]}
    return found


# ----- names


def installed() -> Path | None:
    found = find_spec("vllm")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) if places else None


def base(name: str, kinds: dict[str, str]) -> str | None:
    """The registered metric that a series is of."""
    suffixes = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return next(
        (
            metric
            for metric, kind in kinds.items()
            for suffix in suffixes[kind]
            if name == metric + suffix
        ),
        None,
    )


def test_every_name_is_registered_by_the_vllm_that_is_installed() -> None:
    folder = installed()
    if folder is None:
        pytest.skip("vLLM is not installed; the recorded names are tested below")
    sources = [(folder.parent / name).read_text() for name in recorder.FILES]
    kinds = recorder.read_metrics(sources)
    assert len(kinds) > 40
    names = {name for text in expressions(FULL).values() for name in used(text)}
    assert len(names) > 20
    assert {name for name in names if base(name, kinds) is None} == set()
    assert base("vllm:gpu_cache_usage_perc", kinds) is None
    assert base("vllm:prompt_tokens", kinds) is None  # a counter without _total
    # Labels that the expressions and legends use; role and instance are of the scrape.
    text = json.dumps(expressions(FULL)) + monitoring.dashboard_json(site(FULL))
    labels = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(", ")}
    labels |= set(re.findall(r"{{(\w+)}}", monitoring.dashboard_json(site(FULL))))
    labels -= {"role", "instance", "group", "le", "status"}
    assert labels == {"engine", "position", "finished_reason", "reason"}
    words = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert labels <= words


def test_the_http_metric_is_of_the_instrumentator() -> None:
    found = find_spec("prometheus_fastapi_instrumentator")
    if found is None or not found.submodule_search_locations:
        pytest.skip("prometheus-fastapi-instrumentator is not installed")
    folder = Path(found.submodule_search_locations[0])
    words = set(re.findall(r'"(\w+)"', "".join(p.read_text() for p in folder.rglob("*.py"))))
    assert {"http_requests_total", "status", "handler", "method"} <= words


@pytest.mark.parametrize("release", [release.text for release in RELEASES])
def test_every_name_is_known_of_the_release(release: str) -> None:
    plan = replace(FULL, release=release)
    known = series(site_version(release))
    texts = expressions(plan)
    assert {name for text in texts.values() for name in used(text)} <= known
    old = release.startswith(("0.17", "0.18", "0.19"))
    assert monitoring.left_out(site(plan)) == (["Waiting requests by reason"] if old else [])
    assert ("Waiting requests by reason A" in texts) != old


def site_version(release: str) -> str:
    from glm5_ascend.deploy.catalogue.releases import release as find

    return find(release).vllm


def test_series_of_a_version() -> None:
    found = series("0.30.0")
    assert {"vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total"} <= found
    assert {f"vllm:iteration_tokens_total_{s}" for s in ("bucket", "sum", "count")} <= found
    assert found.isdisjoint({"vllm:prompt_tokens", "vllm:prompt_tokens_recomputed_total"})
    assert "vllm:prompt_tokens_recomputed_total" in series("0.18.0")
    with pytest.raises(Glm5Error, match="are not known"):
        series("0.1.0")


def test_reading_of_registrations() -> None:
    source = """
class A:
    def __init__(self):
        self._gauge_cls(name="vllm:a", documentation="vllm:not this")
        for name, doc in [("vllm:b", "vllm: c"), ("vllm:d", "")]:
            self._counter_cls(name=name)
    def other(self):
        Histogram(name="vllm:e_seconds")
        self.note(name="vllm:f")
"""
    found = recorder.read_metrics([source])
    assert {n: k for n, k in found.items() if n != "vllm:a"} == {
        "vllm:b": "counter",
        "vllm:d": "counter",
        "vllm:e_seconds": "histogram",
    }
    table = recorder.table({"1": {"vllm:a": "gauge"}, "2": {"vllm:a": "gauge", "vllm:b": "gauge"}})
    assert '"vllm:a" = ["1", "2"]' in table
    assert '"vllm:b" = ["2", "2"]' in table
    with pytest.raises(SystemExit, match="comes and goes"):
        recorder.table({"1": {"vllm:a": "gauge"}, "2": {}, "3": {"vllm:a": "gauge"}})


# ----- what is written


def test_what_is_scraped() -> None:
    document = yaml.safe_load(monitoring.prometheus_yml(site(PLANS["two prefills"]), 8082))
    vllm, npu = document["scrape_configs"]
    assert vllm["static_configs"] == [
        {"targets": ["10.0.0.1:8100"], "labels": {"role": "prefill", "group": "0"}},
        {"targets": ["10.0.0.2:8100"], "labels": {"role": "prefill", "group": "1"}},
        {"targets": ["10.0.0.3:8100"], "labels": {"role": "decode", "group": "2"}},
    ]
    assert npu["static_configs"] == [{"targets": [f"{host}:8082" for host in HOSTS]}]
    one = yaml.safe_load(monitoring.prometheus_yml(site_of(PLANS["mixed one node"])))
    assert [job["job_name"] for job in one["scrape_configs"]] == ["vllm"]
    assert one["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:8000"]


def test_rules_follow_the_plan() -> None:
    full = expressions(FULL)
    assert full["TokensSlow"].endswith("> 0.05")
    assert full["FirstTokenLate"].endswith("> 2.5")
    plain = PLANS["mixed one node"]
    role = plain.roles[0]
    flags = {k: v for k, v in role.flags.items() if k != "speculative-config"}
    bare = replace(plain, predicted={}, roles=(replace(role, layout="dp1tp16", flags=flags),))
    few = expressions(bare, npu=False)
    gone = {"FirstTokenLate", "TokensSlow", "DraftsRejected", "RanksUneven", "NpuUnhealthy"}
    assert gone <= full.keys()
    assert gone.isdisjoint(few)
    assert {"EngineDown", "NoTokens"} <= few.keys()
    assert "Queues of prefill and decode A" in full.keys() - few.keys()
    quiet = replace(role, flags={**flags, "disable-log-stats": True})
    with pytest.raises(PlanError, match="exports no metrics"):
        expressions(replace(plain, roles=(quiet,)))


def test_the_dashboard_has_no_overlaps() -> None:
    document = json.loads(monitoring.dashboard_json(site(FULL), npu=True))
    cells: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        own = {
            (place["x"] + a, place["y"] + b) for a in range(place["w"]) for b in range(place["h"])
        }
        assert not own & cells
        assert max(x for x, _ in own) < 24
        cells |= own
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"prometheus"}
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"]) > 15
    files = monitoring.grafana_files()
    source = yaml.safe_load(files["grafana-datasource.yml"])["datasources"][0]
    assert (source["uid"], source["type"]) == ("prometheus", "prometheus")
    provider = yaml.safe_load(files["grafana-dashboards.yml"])["providers"][0]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


# ----- promtool


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROMTOOL or "", *map(str, words)], capture_output=True, text=True)


@needs_promtool
def test_promtool_reads_configuration_rules_and_queries(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(monitoring.prometheus_yml(site(FULL), 8082))
    (tmp_path / "alerts.yml").write_text(monitoring.alerts_yml(site(FULL), npu=True))
    done = promtool("check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stderr
    queries = [
        {"record": f"q{n}", "expr": text.replace("$__rate_interval", "5m")}
        for n, text in enumerate(expressions(FULL).values())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": queries}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stderr
    assert f"{len(queries)} rules found" in done.stdout
    file.write_text(file.read_text().replace("sum by (role)", "sum by role)", 1))
    assert promtool("check", "rules", file).returncode != 0


# Series and their values per minute with which an alert fires, and with which it does not.
FIRING: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "EngineDown": ({"up": "0x60"}, {"up": "1x60"}),
    "NoTokens": (
        {
            "vllm:num_requests_running": "3x60",
            "vllm:generation_tokens_total": "0+500x20 10000x40",
            "vllm:prompt_tokens_total": "9x60",
        },
        {
            "vllm:num_requests_running": "3x60",
            "vllm:generation_tokens_total": "9x60",
            "vllm:prompt_tokens_total": "0+500x60",
        },
    ),
    "QueueGrows": (
        {"vllm:num_requests_waiting": "9x60", "vllm:num_requests_running": "8x60"},
        {"vllm:num_requests_waiting": "7x60", "vllm:num_requests_running": "8x60"},
    ),
    "FirstTokenLate": (
        {
            "vllm:time_to_first_token_seconds_sum@prefill": "0+260x60",
            "vllm:time_to_first_token_seconds_count@prefill": "0+100x60",
        },
        {
            "vllm:time_to_first_token_seconds_sum@decode": "0+260x60",
            "vllm:time_to_first_token_seconds_count@decode": "0+100x60",
        },
    ),
    "TokensSlow": (
        {
            "vllm:request_time_per_output_token_seconds_sum": "0+51x60",
            "vllm:request_time_per_output_token_seconds_count": "0+1000x60",
        },
        {
            "vllm:request_time_per_output_token_seconds_sum": "0+49x60",
            "vllm:request_time_per_output_token_seconds_count": "0+1000x60",
        },
    ),
    "CacheFull": ({"vllm:kv_cache_usage_perc": "0.96x60"}, {"vllm:kv_cache_usage_perc": "0.9x60"}),
    "Preemptions": (
        {"vllm:num_preemptions_total": "0+7x60"},
        {"vllm:num_preemptions_total": "0+5x60"},
    ),
    "DraftsRejected": (
        {
            "vllm:spec_decode_num_accepted_tokens_total": "0+29x60",
            "vllm:spec_decode_num_draft_tokens_total": "0+100x60",
        },
        {
            "vllm:spec_decode_num_accepted_tokens_total": "0+31x60",
            "vllm:spec_decode_num_draft_tokens_total": "0+100x60",
        },
    ),
    "RequestsFail": (
        {"vllm:request_success_total!finished_reason=error": "0+1x60"},
        {"vllm:request_success_total!finished_reason=stop": "0+1x60"},
    ),
    "ServerErrors": (
        {"http_requests_total!status=5xx": "0+4x60"},
        {"http_requests_total!status=4xx": "0+4x60"},
    ),
    "RanksUneven": (
        {
            **{f"vllm:num_requests_running!engine={n}": "3x60" for n in range(3)},
            "vllm:num_requests_running!engine=9": "12x60",
        },
        {
            **{f"vllm:num_requests_running!engine={n}": "3x60" for n in range(3)},
            "vllm:num_requests_running!engine=9": "5x60",
        },
    ),
    "NpuUnhealthy": (
        {"npu_chip_info_health_status": "0x60"},
        {"npu_chip_info_health_status": "1x60"},
    ),
    "NpuUnseen": ({"up!job=npu": "0x60"}, {"up!job=npu": "1x60"}),
}


def written_series(given: dict[str, str], instance: str) -> list[dict[str, str]]:
    """``name@role!label=value`` with defaults."""
    found = []
    for text, values in given.items():
        name, _, label = text.partition("!")
        name, _, role = name.partition("@")
        labels = {"instance": instance, "group": instance, "job": "vllm", "role": role or "decode"}
        if label:
            key, _, value = label.partition("=")
            labels[key] = value
        inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
        found.append({"series": f"{name}{{{inner}}}", "values": values})
    return found


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    text = monitoring.alerts_yml(site(FULL), npu=True)
    (tmp_path / "alerts.yml").write_text(text)
    alerts = {rule["alert"] for rule in yaml.safe_load(text)["groups"][0]["rules"]}
    assert alerts == FIRING.keys()
    given: list[dict[str, str]] = []
    expected: list[dict[str, Any]] = []
    for name, pair in FIRING.items():
        for case, fires in zip(pair, (True, False), strict=True):
            instance = f"{name}-{fires}"
            given += written_series(case, instance)
            labels = f'alertname="{name}",alertstate="firing",'
            labels += ("group" if name == "RanksUneven" else "instance") + f'="{instance}"'
            samples = [{"labels": "{}", "value": 1}] if fires else []
            query = {"expr": f"count(ALERTS{{{labels}}})", "exp_samples": samples}
            expected.append({**query, "eval_time": "40m"})
    one = {"interval": "1m", "input_series": given, "promql_expr_test": expected}
    document = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [one]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    done = promtool("test", "rules", tmp_path / "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "alerts.yml").write_text(text.replace("> 0.95", "> 0.97"))
    assert promtool("test", "rules", tmp_path / "test.yml").returncode == 1
