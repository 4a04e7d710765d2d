"""Reads vllm-ascend's multi-node CI files as plans, and names what a plan cannot say.

Both forms are read: ``deployment`` with a ``server_cmd`` per node (internal data parallelism), and
``config`` with ``templates`` (a server per rank).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import yaml

from glm5_ascend.deploy.catalogue.hardware import Sku, hardware
from glm5_ascend.deploy.catalogue.releases import Release, release
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import LI, SFA, Context
from glm5_ascend.deploy.check.sites_yaml import yaml_sites
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.plan_file import Plan, PlanError, RolePlan
from glm5_ascend.deploy.render.ci_lost import SITE_VARIABLES, lost, values
from glm5_ascend.errors import brief
from glm5_ascend.yaml_file import PlainLoader

# A root key of ours: what the CI's own keys cannot say. Its loader reads the keys that it knows.
OWN = "glm5_ascend"
_OWN_KEYS = {"model", "quant", "release", "sku", "predicted"}
_READ = {"model", "num_nodes", "npu_per_node", "env_common", "deployment", "config", "templates"}
_READ |= {"disaggregated_prefill", "routing", "cluster_hosts", OWN}
_CHIPS = {8: "a2", 16: "a3"}
_CACHES = {(): "bf16", (LI,): "li-c8", (SFA,): "sfa-c8", (LI, SFA): "both"}
# Flags that follow from the plan or the site.
_DERIVED = (
    *("--host", "--port", "--headless", "--served-model-name", "--model", "--additional-config"),
    *("--kv-transfer-config", "--data-parallel-address", "--data-parallel-rpc-port"),
    *("--data-parallel-size-local", "--data-parallel-start-rank", "--data-parallel-rank"),
    *("--data-parallel-size", "--tensor-parallel-size", "--decode-context-parallel-size"),
    *("--pipeline-parallel-size", "--nnodes", "--node-rank", "--master-addr", "--master-port"),
)


@dataclass(frozen=True, slots=True)
class Imported:
    """A CI file as a plan.

    Attributes:
        checkpoint: absolute path that the file names, or None.
        hosts: ``cluster_hosts`` with commas between, or None.
        lost: what the plan does not say, in words.
    """

    plan: Plan
    checkpoint: str | None
    hosts: str | None
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    number: int
    role: str
    command: ServeCommand
    ranks: int  # data-parallel ranks that it starts
    first: int  # of these


def is_ci(document: object) -> TypeGuard[dict[str, Any]]:
    """Whether a YAML document is a CI file of several nodes."""
    return isinstance(document, dict) and ("deployment" in document or "templates" in document)


def read_ci(
    name: str, text: str, engine: str | None = None, machine: str | None = None
) -> Imported:
    """Read a CI file.

    Args:
        name: of the file, for messages.
        engine: release of vllm-ascend; the file's own, or 0.30, without it.
        machine: SKU; the file's own, or the slowest of its chip, without it.

    Raises:
        Glm5Error: it is none, or its nodes do not make a deployment.
    """
    document = _document(name, text)
    own = _own(name, document)
    found = release(engine or str(own.get("release", "0.30")))
    sku, notes = _sku(name, document.get("npu_per_node"), machine, own.get("sku"))
    nodes = _nodes(name, text, document, found)
    roles = _roles(name, nodes, found)
    first = Context(nodes[0].command, found)
    plan = Plan(
        model=str(own.get("model") or first.model_name),
        quant=str(own.get("quant") or first.quant or "bf16"),
        kv=_CACHES[tuple(sorted(first.effective_caches))],
        release=found.text,
        sku=sku.name,
        servers=len(nodes),
        roles=roles,
        predicted=own.get("predicted", {}),
    ).check(name)
    if not plan.model:
        raise PlanError(f"{name}: its model is none of GLM-5 to 5.3", "only these are planned for")
    notes += [f"`{key}` is not part of a plan" for key in document if key not in _READ]
    if "release" not in own and engine is None:
        notes.append(f"the release is not said: {found.text} is assumed, --for says another")
    hosts = document.get("cluster_hosts")
    path = str(first.command.model)
    absolute = path.startswith("/")
    if not absolute:
        notes.append(f"the checkpoint is {path}: --checkpoint says where the servers have it")
    if first.int8_caches != first.effective_caches:
        notes.append(f"{found.text} does not make the caches int8 as the file asks: see `check`")
    notes += lost(plan, [(node.number, node.command) for node in nodes], found)
    return Imported(
        plan,
        path if absolute else None,
        ",".join(map(str, hosts)) if isinstance(hosts, list) else None,
        tuple(dict.fromkeys(notes)),
    )


def _document(name: str, text: str) -> dict[str, Any]:
    try:
        document = yaml.load(text, PlainLoader)
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise PlanError(f"{name} is no YAML: {reason}", "correct the YAML") from error
    if not is_ci(document):
        raise PlanError(
            f"{name} is no CI file of several nodes", "it needs `deployment`, or `templates`"
        )
    return document


def _own(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    own = document.get(OWN, {})
    if not isinstance(own, dict) or not own.keys() <= _OWN_KEYS:
        raise PlanError(f"{name}: `{OWN}` has keys that are not known", "remove it, or render anew")
    predicted = own.get("predicted", {})
    texts = (own[key] for key in own if key != "predicted")
    if not isinstance(predicted, dict) or not all(isinstance(value, str) for value in texts):
        raise PlanError(f"{name}: `{OWN}` has values of a wrong kind", "remove it, or render anew")
    return own


def _sku(name: str, dies: object, said: str | None, own: str | None) -> tuple[Sku, list[str]]:
    """The SKU, and what is to be noted of it."""
    chip = _CHIPS.get(dies) if isinstance(dies, int) else None
    if chip is None and said is None:
        raise PlanError(
            f"{name}: npu_per_node is {brief(dies)}",
            "a server has 8 dies (A2) or 16 (A3): add --hw",
        )
    sku = hardware(said or own or str(chip)).sku
    if said and sku.dies_per_server != dies:
        return sku, [
            f"npu_per_node {brief(dies)}: a server of {sku.name} has {sku.dies_per_server}"
        ]
    if said is None and own is None:
        return sku, [f"the SKU is not said: {sku.name} is assumed, --hw says another"]
    return sku, []


def _nodes(name: str, text: str, document: Mapping[str, Any], found: Release) -> list[_Node]:
    sites = list(yaml_sites(name, text, found.switches))
    numbers = list(range(len(sites)))
    if "templates" in document:
        listed = document["templates"] if isinstance(document["templates"], list) else []
        entries = [item for item in listed if isinstance(item, dict)]
        numbers = [item.get("node_index", -1) for item in entries]
    if sorted(numbers, key=str) != sorted(range(len(sites)), key=str) or not sites:
        raise PlanError(f"{name}: its nodes are not numbered from 0", "give every node one command")
    if document.get("num_nodes", len(sites)) != len(sites):
        raise PlanError(
            f"{name}: {len(sites)} commands for {brief(document['num_nodes'])} nodes",
            "give every node one command",
        )
    made = []
    for number, site in sorted(zip(numbers, sites, strict=True), key=lambda pair: int(pair[0])):
        env = {k: v for k, v in site.command.env.items() if not k.startswith("__")}
        command = replace(site.command, env=env)
        context = Context(command, found, launch=site.launch)
        rank = command.whole("--data-parallel-rank", 0)
        first = command.whole("--data-parallel-start-rank", rank)
        made.append(
            _Node(number, _role(name, document, number), command, context.local_ranks, first)
        )
    return made


def _role(name: str, document: Mapping[str, Any], number: int) -> str:
    split = document.get("disaggregated_prefill")
    routing = document.get("routing")
    if isinstance(split, dict) and split.get("enabled", True):
        sides = (split.get("prefiller_host_index"), split.get("decoder_host_index"))
    elif isinstance(routing, dict) and isinstance(routing.get("groups"), dict):
        sides = (routing["groups"].get("prefiller"), routing["groups"].get("decoder"))
        if sides == (None, None):
            return "mixed"
    else:
        return "mixed"
    for role, side in zip(("prefill", "decode"), sides, strict=True):
        if isinstance(side, list) and number in side:
            return role
    raise PlanError(f"{name}: node {number} neither prefills nor decodes", "list it on one side")


def _roles(name: str, nodes: Sequence[_Node], found: Release) -> tuple[RolePlan, ...]:
    """Nodes with the rank 0 begin an instance, the others continue the last one of their role."""
    instances: list[list[_Node]] = []
    for node in nodes:
        later = node.command.whole("--node-rank", 0) > 0
        if not node.first and not later:
            instances.append([node])
            continue
        open_ = [one for one in instances if one[0].role == node.role]
        expected = sum(one.ranks for one in open_[-1]) if open_ else -1
        if not open_ or (not later and node.first != expected):
            raise PlanError(
                f"{name}: node {node.number} begins with rank {node.first},"
                " and the ranks before it are not started",
                "give every rank a node, in order",
            )
        open_[-1].append(node)
    roles = []
    for instance in instances:
        command = instance[0].command
        size = {f: command.whole(f"--{f}", 1) for f in _SIZES}
        group = Group(*(size[f] for f in _SIZES))
        started = sum(node.ranks for node in instance)
        if group.pp == 1 and group.dp != started:
            raise PlanError(
                f"{name}: node {instance[0].number} has {group.dp} ranks,"
                f" its nodes start {started}",
                "give every rank a node",
            )
        numbers = tuple(node.number for node in instance)
        flags = {
            flag.removeprefix("--"): value
            for flag, value in values(command, found).items()
            if flag not in _DERIVED
        }
        env = {k: v for k, v in command.env.items() if k not in SITE_VARIABLES and "$" not in v}
        extra = command.json("--additional-config")
        roles.append(RolePlan(instance[0].role, numbers, str(group), flags, env, extra))
    return tuple(roles)


# In the order of Group's fields.
_SIZES = (
    "data-parallel-size",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "decode-context-parallel-size",
)
