"""Where a plan is to run: addresses, interface, checkpoint and ports, which no plan file knows."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from glm5_ascend.deploy.addresses import IPV6_HINT, is_ipv6
from glm5_ascend.deploy.catalogue.models import model
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.render.mounts import checkpoint_path
from glm5_ascend.errors import brief

PORT = 8000
# In the images of vllm-ascend.
PROXY_SCRIPT = (
    "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1/"
    "load_balance_proxy_server_example.py"
)
_NIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
# Words of ours that the shell, LeaderWorkerSet or the CI is to fill in.
VARIABLE = re.compile(
    r"\$(LWS_LEADER_ADDRESS|POD_IP|LOCAL_IP|MASTER_IP|NIC_NAME|SERVER_PORT)"
    r"|\$\(\(LWS_WORKER_INDEX \* \d+\)\)"
)
# 100 ports above: the proxy has the public one.
BEHIND_PROXY = 100
_ADDRESS_HINT = "give the IPv4 address of the interface itself, as HCCL wants it"


@dataclass(frozen=True, slots=True)
class Place:
    """What is particular to a site.

    Attributes:
        checkpoint: absolute path of the checkpoint, the same on every server.
        hosts: IPv4 address per node, or what stands for it in a template; may be empty where no
            server talks to another.
        nic: interface of these addresses; empty where no server talks to another.
        port: of the public endpoint.
        name: served model name.
        proxy_script: absolute path of vllm-ascend's proxy.
        external_dp: every data-parallel rank is a server of its own, all of them behind the proxy.
    """

    checkpoint: str
    hosts: tuple[str, ...] = ()
    nic: str = ""
    port: int = PORT
    name: str = ""
    proxy_script: str = PROXY_SCRIPT
    external_dp: bool = False


def is_split(plan: Plan) -> bool:
    """Whether prefill and decode are apart."""
    return plan.roles[0].role != "mixed"


def is_networked(plan: Plan) -> bool:
    """Whether servers of the plan talk to each other."""
    return is_split(plan) or any(len(role.nodes) > 1 for role in plan.roles)


def engine_port(plan: Plan, place: Place) -> int:
    """Port of an engine: the public one, or one behind the proxy."""
    return place.port + BEHIND_PROXY if is_split(plan) else place.port


def default_checkpoint(plan: Plan) -> str:
    """``/models/GLM-5.2-w8a8``."""
    return f"/models/{model(plan.model).title}-{plan.quant}"


def glm5_title(plan: Plan) -> str:
    """Name of the plan's model, ``GLM-5.2``.

    Raises:
        PlanError: it is another one.
        CatalogueError: it is not known.
    """
    found = model(plan.model)
    if found.validation_only:
        raise PlanError(f"{plan.model} is no GLM-5", "its sizes validate the model of performance")
    return found.title


def place_of(
    plan: Plan,
    *,
    checkpoint: str | None = None,
    hosts: str | None = None,
    nic: str | None = None,
    port: int = PORT,
    name: str | None = None,
    proxy_script: str | None = None,
    external_dp: bool = False,
    templated: bool = False,
) -> Place:
    """Check what the user says of the site against the plan.

    Args:
        hosts: addresses in the order of the nodes, with commas between.
        templated: the format takes addresses from its runtime, so ``hosts`` may be missing.

    Raises:
        PlanError: an address, interface or path that cannot be, or that is missing.
        CatalogueError: a model that is not known.
    """
    title = glm5_title(plan)  # refuses models that are not known
    addresses = tuple(text.strip() for text in hosts.split(",")) if hosts else ()
    _check_hosts(addresses, plan, templated)
    if nic is not None and not _NIC.fullmatch(nic):
        raise PlanError(f"{brief(nic)} is no name of an interface", "see `ip -br address`")
    if nic is None and is_networked(plan) and not templated:
        raise PlanError("the servers talk to each other and no interface is named", "add --nic")
    path = checkpoint_path(default_checkpoint(plan) if checkpoint is None else checkpoint)
    script = PROXY_SCRIPT if proxy_script is None else proxy_script
    if not script.startswith("/") or not script.isprintable() or script.endswith("/"):
        raise PlanError(
            f"proxy script {brief(script)} is no absolute path of a file",
            "give the path on the servers",
        )
    # Behind the proxy a server may have a port for each of its dies.
    if not 1 <= port <= 65_535 - 2 * BEHIND_PROXY:
        raise PlanError(f"port {port} is out of range", "give a port from 1 to 65335")
    served = title if name is None else name
    refuse_variable("the model's name", served)
    if not served or served.startswith("-") or not served.isprintable():
        raise PlanError(
            f"{brief(served)} is no model name", "give a name without control characters"
        )
    if external_dp and not is_split(plan):
        raise PlanError(
            "a server per rank needs a balancer, and a plan without prefill and decode has none",
            "leave --external-dp out: the engine balances its ranks itself",
        )
    return Place(path, addresses, nic or "", port, served, script, external_dp)


def refuse_variable(what: str, text: str) -> None:
    """Raise ``PlanError`` for a text of the user that would be taken for a variable of ours."""
    if VARIABLE.fullmatch(text):
        raise PlanError(f"{what} is {text}, which is filled in when it runs", "give the value")


def _check_hosts(addresses: Sequence[str], plan: Plan, templated: bool) -> None:
    for text in addresses:
        if is_ipv6(text):
            raise PlanError(f"{brief(text)} is an IPv6 address", IPV6_HINT)
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError as error:
            raise PlanError(f"{brief(text)} is no IPv4 address", _ADDRESS_HINT) from error
        if address.is_unspecified or address.is_multicast or address.is_reserved:
            raise PlanError(f"{text} is no address of a server", _ADDRESS_HINT)
    here = [text for text in addresses if text.startswith("127.")]
    if here and len(here) != len(addresses):
        raise PlanError(f"{here[0]} is every server's address of itself", _ADDRESS_HINT)
    if len(set(addresses)) != len(addresses):
        raise PlanError("an address is named twice", "give one address per node")
    if addresses and len(addresses) != plan.servers:
        raise PlanError(
            f"{len(addresses)} addresses for {plan.servers} servers", "give one address per node"
        )
    if not addresses and is_networked(plan) and not templated:
        raise PlanError(
            f"the addresses of {plan.servers} servers are missing",
            "add --hosts 10.0.0.1,10.0.0.2 in the order of the plan's nodes",
        )
