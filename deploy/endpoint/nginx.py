"""nginx in front of a plan's API servers: TLS, keys, limits, audit log, unbuffered streams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.deploy.addresses import is_ipv6
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.endpoint.site import BYTES_PER_TOKEN, Site, predicted
from glm5_ascend.deploy.plan_file import PlanError
from glm5_ascend.errors import brief

_TEMPLATE = Path(__file__).with_name("nginx.conf.in")
_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*[A-Za-z0-9._+@-]")
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
# Many clients may share an address behind a gateway.
_PER_ADDRESS = 10


@dataclass(frozen=True, slots=True)
class Gate:
    """What the user decides about the entrance.

    Attributes:
        listen: port.
        cert, cert_key: absolute paths on nginx's machine.
        domain: name of the server; empty for any.
        rate: requests per minute and client.
        burst: requests of a client at once before the rate counts.
        concurrent: running requests of a client; as many as the engines run at once by default.
        logs: folder of the logs on nginx's machine.
    """

    listen: int = 443
    cert: str = "/etc/nginx/tls/fullchain.pem"
    cert_key: str = "/etc/nginx/tls/privkey.pem"
    domain: str = ""
    rate: int = 600
    burst: int = 60
    concurrent: int | None = None
    logs: str = "/var/log/nginx"


def nginx_conf(site: Site, gate: Gate) -> str:
    """The configuration; it includes ``api_keys.map``, which lies beside it.

    Raises:
        PlanError: a path or name that nginx would read otherwise, or numbers out of range.
    """
    _check(gate)
    plan = site.plan
    layouts = " ".join(f"{role.role} {role.layout}" for role in plan.roles)
    known = "predicted" if predicted(plan, "tpot_ms") else "assumed"
    values = {
        "ABOUT": f"{plan.model} {plan.quant}, vllm-ascend {release(plan.release).text}: {layouts}",
        "LOGS": gate.logs,
        "RATE": gate.rate,
        "BURST": gate.burst,
        "ADDRESS_RATE": _PER_ADDRESS * gate.rate,
        "ADDRESS_BURST": _PER_ADDRESS * gate.burst,
        "CONCURRENT": gate.concurrent or site.sequences,
        "SERVERS": "\n".join(f"        server {entry};" for entry in site.entries),
        "KEEP_ALIVE": site.keep_alive_s,
        "BODY": site.body_mib,
        "BODY_WHY": f"{site.context} tokens of at most {BYTES_PER_TOKEN} bytes, 8 MiB at least.",
        "LISTEN": gate.listen,
        "DOMAIN": gate.domain or "_",
        "CERT": gate.cert,
        "CERT_KEY": gate.cert_key,
        "TIMEOUT": site.timeout_s,
        "TIMEOUT_WHY": (
            f"An answer may come in one piece: {site.context} tokens of {site.tpot_ms:g} ms"
            f" ({known}), twice; 10 minutes at least, a day at most."
        ),
        "HEALTH": site.health,
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda found: str(values[found[1]]), text)


def _check(gate: Gate) -> None:
    for option, path in (
        ("--cert", gate.cert),
        ("--cert-key", gate.cert_key),
        ("--logs", gate.logs),
    ):
        if not _PATH.fullmatch(path):
            raise PlanError(
                f"{option} {path!r} is no plain absolute path",
                "use letters, digits and . _ - + @ between the slashes",
            )
    if is_ipv6(gate.domain):
        raise PlanError(f"--domain {brief(gate.domain)} is an IPv6 address", "give the host name")
    if gate.domain and not _DOMAIN.fullmatch(gate.domain):
        raise PlanError(f"--domain {gate.domain!r} is no host name", "glm.example.org")
    if gate.listen > 65_535:
        raise PlanError(f"--listen {gate.listen} is no port", "give one from 1 to 65535")
    for option, number in (("--rate", gate.rate), ("--burst", gate.burst)):
        if number > 1_000_000:
            raise PlanError(f"{option} {number} is no limit", "give at most 1000000")
