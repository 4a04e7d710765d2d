"""Commands around a plan's engines: the entrance with its monitoring, and the offline bundle."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Count, Glm5Command
from glm5_ascend.cli_deploy import HOSTS_HELP
from glm5_ascend.errors import ExitCode

_COUNT = Count(1)


@click.command(cls=Glm5Command, short_help="Write nginx, Prometheus and Grafana for a plan.")
@click.argument("plan", metavar="PLAN", type=DIRECTORY)
@click.option("--out", type=DIRECTORY, metavar="DIR", help="Folder to write to.")
@click.option("--hosts", metavar="IP,IP", help=HOSTS_HELP)
@click.option("--port", type=_COUNT, default=8000, show_default=True, help="As given to render.")
@click.option("--listen", type=_COUNT, default=443, show_default=True, help="nginx's own port.")
@click.option("--domain", default="", metavar="NAME", help="Host name of the endpoint.")
@click.option(
    "--cert",
    default="/etc/nginx/tls/fullchain.pem",
    show_default=True,
    metavar="FILE",
    help="Certificate on nginx's machine.",
)
@click.option(
    "--cert-key",
    default="/etc/nginx/tls/privkey.pem",
    show_default=True,
    metavar="FILE",
    help="Its private key.",
)
@click.option(
    "--logs", default="/var/log/nginx", show_default=True, metavar="DIR", help="For logs."
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    default=("default",),
    show_default=True,
    metavar="NAME",
    help="Client that gets a key of its own; may be repeated.",
)
@click.option(
    "--rate", type=_COUNT, default=600, show_default=True, help="Requests of a client per minute."
)
@click.option(
    "--burst", type=_COUNT, default=60, show_default=True, help="Requests beyond that at once."
)
@click.option(
    "--concurrent",
    type=_COUNT,
    help="Running requests of a client.  [default: what the engines run at once]",
)
@click.option("--external-dp", is_flag=True, help="As given to render.")
@click.option("--npu-exporter", "npu_port", type=_COUNT, metavar="PORT", help="Watch NPUs too.")
@click.option("--dry-run", is_flag=True, help="Print the files but the keys, write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the list of files as JSON.")
def endpoint(as_json: bool, **options: Any) -> int:
    """Write what stands in front of a plan's engines, and what watches them.

    nginx.conf has TLS, API keys, limits per client and address, streams that are passed on at once,
    timeouts and body size from the plan, and an audit log without prompts or keys. prometheus.yml,
    alerts.yml and dashboard.json read vLLM's metrics; compose.yaml starts all three. Keys are made
    once and kept in api_keys.map.

    \b
    Example:
      glm5-ascend endpoint plan.yaml --hosts 10.0.0.1,10.0.0.2 --client alice --out endpoint
    """
    from glm5_ascend.deploy.endpoint.command import EndpointOptions
    from glm5_ascend.deploy.endpoint.command import endpoint as run
    from glm5_ascend.deploy.endpoint.nginx import Gate

    if options["out"] is None and not options["dry_run"]:
        raise click.UsageError("give --out DIR, or --dry-run")
    names = ("listen", "domain", "cert", "cert_key", "logs", "rate", "burst", "concurrent")
    gate = Gate(**{name: options.pop(name) for name in names})
    written = run(EndpointOptions(gate=gate, **options))
    console.emit(written.as_dict(), written.as_text(), as_json=as_json)
    return int(ExitCode.DONE)


@click.command(cls=Glm5Command, short_help="Collect what a site without network needs.")
@click.argument("plan", metavar="[PLAN]", required=False, type=DIRECTORY)
@click.option("--out", type=DIRECTORY, metavar="DIR|FILE.tar", help="What to write.")
@click.option("--verify", type=DIRECTORY, metavar="DIR|FILE.tar", help="Check a bundle's files.")
@click.option(
    "--format",
    type=click.Choice(["bash", "docker", "compose", "k8s"]),
    default="docker",
    show_default=True,
    help="Of the scripts, as for render.",
)
@click.option("--checkpoint", metavar="DIR", help="On the servers.  [default: /models/MODEL-QUANT]")
@click.option("--hosts", metavar="IP,IP", help=HOSTS_HELP)
@click.option("--nic", metavar="NAME", help="Interface of these addresses.")
@click.option("--port", type=_COUNT, default=8000, show_default=True, help="Of the endpoint.")
@click.option("--name", metavar="NAME", help="Served model name.  [default: the model's]")
@click.option(
    "--scripts", type=DIRECTORY, metavar="DIR", help="What render wrote, in place of the six above."
)
@click.option("--wheels/--no-wheels", default=False, help="Fetch glm5-ascend and its needs by pip.")
@click.option("--images/--no-images", default=False, help="Pull and save images by docker.")
@click.option("--python", default="3.11", show_default=True, help="The servers' Python.")
@click.option(
    "--arch",
    type=click.Choice(["aarch64", "x86_64"]),
    default="aarch64",
    show_default=True,
    help="The servers' machine.",
)
@click.option(
    "--project",
    type=DIRECTORY,
    metavar="DIR|WHEEL",
    help="Source or wheel of glm5-ascend.  [default: where it was installed from]",
)
@click.option("--dry-run", is_flag=True, help="List what there would be; nothing is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def bundle(as_json: bool, **options: Any) -> int:
    """Collect what a plan needs on a site without network: scripts, images, wheels, sums.

    Images are named in images.txt, and save-images.sh pulls and saves them, here with --images or
    later elsewhere. install.sh checks every file against SHA256SUMS, refuses what is not listed,
    and installs without network; --verify checks without installing. Interrupted, the same command
    goes on.

    \b
    Example:
      glm5-ascend bundle plan.yaml --hosts 10.0.0.1,10.0.0.2 --nic eth0 --wheels --out site.tar
    """
    from glm5_ascend.deploy.bundle.command import BundleOptions, verify
    from glm5_ascend.deploy.bundle.command import bundle as run

    source = options.pop("verify")
    if (source is None) == (options["plan"] is None):
        raise click.UsageError("give either PLAN or --verify")
    if source is not None:
        given = [name for name in options if _given(name)]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise click.UsageError(f"--verify makes nothing: leave out {names}")
        found = verify(source)
        console.emit(found.as_dict(), found.as_text(), as_json=as_json)
        return int(found.exit_code)
    if options["out"] is None and not options["dry_run"]:
        raise click.UsageError("give --out DIR|FILE.tar, or --dry-run")
    for name in ("format", "checkpoint", "hosts", "nic", "port", "name"):
        if _given(name) and options["scripts"] is not None:
            raise click.UsageError(f"--{name} is settled by what --scripts names")
    for name in ("python", "project"):
        if _given(name) and not options["wheels"]:
            raise click.UsageError(f"--{name} goes with --wheels")
    made = run(BundleOptions(**options))
    for text in made.unused:
        console.note(f"warning: {text}")
    console.emit(made.as_dict(), made.as_text(), as_json=as_json)
    return int(ExitCode.DONE)


def _given(name: str) -> bool:
    """Whether the command line says it."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not ParameterSource.DEFAULT
