"""Prometheus and Grafana for a plan: what to scrape, when to wake someone, what to look at."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.endpoint.metrics import series, used
from glm5_ascend.deploy.endpoint.site import Site, predicted
from glm5_ascend.deploy.plan_file import PlanError
from glm5_ascend.deploy.render.place import is_split

# As `accept` adds to a prediction.
MARGIN = 1.25
SOURCE = "prometheus"
_TABLE = Path(__file__).with_name("monitoring.toml")
_SCRAPE = "15s"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


def prometheus_yml(site: Site, npu_port: int | None = None) -> str:
    """Scrapes every API server, which also speaks for its headless servers, and npu-exporters."""
    import yaml

    jobs: list[dict[str, Any]] = [
        {
            "job_name": "vllm",
            "static_configs": [
                {
                    "targets": [engine.target],
                    "labels": {"role": engine.role, "group": str(engine.instance)},
                }
                for engine in site.engines
            ],
        }
    ]
    if npu_port is not None:
        targets = [f"{server}:{npu_port}" for server in site.servers]
        jobs.append({"job_name": "npu", "static_configs": [{"targets": targets}]})
    document = {
        "global": {"scrape_interval": _SCRAPE, "evaluation_interval": _SCRAPE},
        "rule_files": ["alerts.yml"],
        "scrape_configs": jobs,
    }
    return yaml.safe_dump(document, sort_keys=False, width=100)


def alerts_yml(site: Site, npu: bool = False) -> str:
    """The rules that make sense for the plan."""
    import yaml

    rules = [
        {
            "alert": row["name"],
            "expr": _filled(row["expr"], site),
            "for": row["for"],
            "labels": {"severity": row["severity"]},
            "annotations": {"summary": row["summary"]},
        }
        for row in _rows("alert", site, npu)
    ]
    document = {"groups": [{"name": "glm5-ascend", "rules": rules}]}
    return yaml.safe_dump(document, sort_keys=False, width=100)


def dashboard_json(site: Site, npu: bool = False) -> str:
    """A dashboard with three panels in a row."""
    panels = []
    for number, row in enumerate(_rows("panel", site, npu)):
        down, across = divmod(number, _COLUMNS)
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": row["title"],
                "datasource": {"type": "prometheus", "uid": SOURCE},
                "gridPos": {
                    "x": across * _WIDTH,
                    "y": down * _HEIGHT,
                    "w": _WIDTH,
                    "h": _HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": row["unit"], "min": 0}, "overrides": []},
                "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
                "targets": [
                    {
                        "refId": chr(ord("A") + index),
                        "datasource": {"type": "prometheus", "uid": SOURCE},
                        "expr": _filled(expression, site),
                        "legendFormat": legend,
                    }
                    for index, (legend, expression) in enumerate(row["expr"].items())
                ],
            }
        )
    plan = site.plan
    document = {
        "uid": "glm5-ascend",
        "title": f"{plan.model} {plan.quant} on {plan.servers} x {plan.sku}",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["vllm", "ascend"],
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def grafana_files() -> dict[str, str]:
    """Provisioning: where Prometheus is, and where the dashboard lies."""
    import yaml

    source = {
        "name": "Prometheus",
        "uid": SOURCE,
        "type": "prometheus",
        "access": "proxy",
        "url": "http://127.0.0.1:9090",
        "isDefault": True,
    }
    provider = {
        "name": "glm5-ascend",
        "type": "file",
        "options": {"path": "/var/lib/grafana/dashboards"},
    }
    return {
        "grafana-datasource.yml": yaml.safe_dump({"apiVersion": 1, "datasources": [source]}),
        "grafana-dashboards.yml": yaml.safe_dump({"apiVersion": 1, "providers": [provider]}),
    }


def left_out(site: Site) -> list[str]:
    """Alerts and panels whose metrics the plan's release has not."""
    known = series(release(site.plan.release).vllm)
    return [
        row.get("name") or row["title"]
        for kind in ("alert", "panel")
        for row in _table()[kind]
        if not _used(row) <= known
    ]


def _rows(kind: str, site: Site, npu: bool) -> list[dict[str, Any]]:
    plan = site.plan
    for role in plan.roles:
        if role.flags.get("disable-log-stats") is True:
            raise PlanError(
                f"{role.role} has disable-log-stats, so it exports no metrics",
                "take it out of the plan",
            )
    has = {
        "mtp": any("speculative-config" in role.flags for role in plan.roles),
        "split": is_split(plan),
        "ranks": any(role.group.dp > 1 for role in plan.roles),
        "npu": npu,
        "ttft": predicted(plan, "ttft_ms") is not None,
        "tpot": predicted(plan, "tpot_ms") is not None,
    }
    known = series(release(plan.release).vllm)
    rows: list[dict[str, Any]] = _table()[kind]
    return [
        row
        for row in rows
        if all(has[need] for need in row.get("needs", [])) and _used(row) <= known
    ]


def _used(row: dict[str, Any]) -> set[str]:
    expr = row["expr"]
    return used(expr if isinstance(expr, str) else "\n".join(expr.values()))


def _filled(expression: str, site: Site) -> str:
    for name, key in (("@TTFT@", "ttft_ms"), ("@TPOT@", "tpot_ms")):
        value = predicted(site.plan, key)
        if name in expression and value is not None:
            expression = expression.replace(name, f"{MARGIN * value / 1e3:.6g}")
    return " ".join(expression.split())


def _table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))
