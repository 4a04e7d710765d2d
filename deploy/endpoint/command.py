"""The work of ``glm5-ascend endpoint``: nginx, Prometheus and Grafana in front of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.console import note
from glm5_ascend.deploy.endpoint.keys import FILE, add_keys, check_names
from glm5_ascend.deploy.endpoint.monitoring import (
    alerts_yml,
    dashboard_json,
    grafana_files,
    left_out,
    prometheus_yml,
)
from glm5_ascend.deploy.endpoint.nginx import Gate, nginx_conf
from glm5_ascend.deploy.endpoint.site import site_of
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.command import Rendered, write_all
from glm5_ascend.deploy.render.place import PORT
from glm5_ascend.errors import Glm5Error
from glm5_ascend.files import refuse_inputs

# Not pulled here. Prometheus is a long-term support release.
IMAGES = {
    "nginx": "docker.io/library/nginx:1.28.0",
    "prometheus": "docker.io/prom/prometheus:v3.5.0",
    "grafana": "docker.io/grafana/grafana:12.0.0",
}
_FOLDER = "/etc/nginx/glm5"


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """What the user asked for.

    Attributes:
        hosts, port, external_dp: as for ``render``.
        gate: nginx's own settings.
        clients: names that get a key.
        npu_port: port of npu-exporter on every server.
    """

    plan: Path
    out: Path | None = None
    hosts: str | None = None
    port: int = PORT
    gate: Gate = field(default_factory=Gate)
    clients: tuple[str, ...] = ("default",)
    npu_port: int | None = None
    external_dp: bool = False
    dry_run: bool = False


def endpoint(options: EndpointOptions) -> Rendered:
    """Write the files; keys are made where a client has none, and never printed.

    Raises:
        Glm5Error: the plan or a setting is at fault.
        OSError: a file cannot be read or written.
    """
    site = site_of(
        Plan.load(options.plan),
        hosts=options.hosts,
        port=options.port,
        external_dp=options.external_dp,
    )
    npu = options.npu_port is not None
    if npu and options.npu_port is not None and options.npu_port > 65_535:
        raise Glm5Error(f"--npu-exporter {options.npu_port} is no port", "its own default is 8082")
    check_names(options.clients)
    texts = {
        "nginx.conf": nginx_conf(site, options.gate),
        "prometheus.yml": prometheus_yml(site, options.npu_port),
        "alerts.yml": alerts_yml(site, npu),
        "dashboard.json": dashboard_json(site, npu),
        **grafana_files(),
        "compose.yaml": compose_yaml(options.gate),
    }
    for name in left_out(site):
        note(f"left out, for the release has no metric of it: {name}")
    if options.dry_run:
        return Rendered("endpoint", texts, None)
    if options.out is None:
        raise Glm5Error("there is no folder to write to", "add --out DIR, or --dry-run")
    refuse_inputs((options.out / name for name in (FILE, *texts)), options.plan)
    options.out.mkdir(parents=True, exist_ok=True)
    fresh = add_keys(options.out, options.clients)
    write_all(options.out, texts)
    if fresh:
        note(f"new keys in {options.out / FILE}: {', '.join(fresh)}")
    return Rendered("endpoint", {FILE: "", **texts}, options.out)


def compose_yaml(gate: Gate) -> str:
    """All three as containers; only nginx can be reached from other machines."""
    import yaml

    def service(name: str, volumes: list[str], *command: str) -> dict[str, object]:
        found: dict[str, object] = {
            "image": IMAGES[name],
            "network_mode": "host",
            "restart": "unless-stopped",
            "volumes": volumes,
        }
        return found | ({"command": list(command)} if command else {})

    nginx = service(
        "nginx",
        [
            # The folder, for a mounted file would stay what it was when it is replaced.
            f".:{_FOLDER}:ro",
            f"{gate.cert}:{gate.cert}:ro",
            f"{gate.cert_key}:{gate.cert_key}:ro",
            f"./logs:{gate.logs}",
        ],
        *("nginx", "-g", "daemon off;", "-c", f"{_FOLDER}/nginx.conf"),
    )
    prometheus = service(
        "prometheus",
        [
            "./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
            "./alerts.yml:/etc/prometheus/alerts.yml:ro",
            "prometheus:/prometheus",
        ],
        *(
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            "--storage.tsdb.retention.time=30d",
            "--web.listen-address=127.0.0.1:9090",
        ),
    )
    grafana = service(
        "grafana",
        [
            "./grafana-datasource.yml:/etc/grafana/provisioning/datasources/glm5.yml:ro",
            "./grafana-dashboards.yml:/etc/grafana/provisioning/dashboards/glm5.yml:ro",
            "./dashboard.json:/var/lib/grafana/dashboards/glm5.json:ro",
            "grafana:/var/lib/grafana",
        ],
    )
    # Grafana asks for a new password at the first login as admin, admin.
    grafana["environment"] = {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    document = {
        "services": {"nginx": nginx, "prometheus": prometheus, "grafana": grafana},
        "volumes": {"prometheus": {}, "grafana": {}},
    }
    return yaml.safe_dump(document, sort_keys=False, width=100)
