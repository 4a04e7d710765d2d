"""Kubernetes: one LeaderWorkerSet per instance, a Service, and the proxy's Deployment."""

from __future__ import annotations

import re
from dataclasses import replace

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.render.containers import image
from glm5_ascend.deploy.render.fields import check_fields
from glm5_ascend.deploy.render.mounts import MOUNTS
from glm5_ascend.deploy.render.nodes import READY_S, Node, nodes
from glm5_ascend.deploy.render.place import Place, engine_port, is_networked, is_split
from glm5_ascend.deploy.render.schedulers import Cluster, scheduled
from glm5_ascend.deploy.render.script import body, proxy_body

# Of a pod with all NPUs of a 16-die server, as vllm-ascend's CI asks for.
_CPU, _MEMORY, _SHARED = 125, "512Gi", "512Gi"
_LABEL = "leaderworkerset.sigs.k8s.io"
_PROBE_S = 10
DEFAULT = Cluster()
_LEADER, _RANK = "$LWS_LEADER_ADDRESS", "$((LWS_WORKER_INDEX * {}))"
_POD_IP = "$POD_IP"


def files(plan: Plan, place: Place, cluster: Cluster = DEFAULT) -> dict[str, str]:
    """``MODEL.yaml``: several documents.

    Raises:
        PlanError: no interface is named, ranks that are not the same on all servers, or a name that
            the cluster cannot have.
    """
    import yaml

    from glm5_ascend.yaml_file import BlockDumper

    cluster.check()
    if ":" in place.checkpoint:
        raise PlanError(f"checkpoint {place.checkpoint} cannot be mounted", "use a path without :")
    if is_networked(plan) and not place.nic:
        raise PlanError("the servers talk to each other and no interface is named", "add --nic")
    # What stands for an address depends on the pod: its own, and its leader's.
    heads = {role.nodes[0] for role in plan.roles}
    made: dict[int, Node] = {}
    for number in range(plan.servers):
        hosts = tuple(
            _LEADER if n in heads and n != number else _POD_IP for n in range(plan.servers)
        )
        site = replace(place, hosts=hosts)
        made |= {node.number: node for node in nodes(plan, site) if node.number == number}
    documents: list[dict[str, object]] = []
    for instance, role in enumerate(plan.roles):
        members = [made[number] for number in role.nodes]
        if len({node.ranks for node in members}) > 1:
            raise PlanError(
                f"{role.layout} puts different numbers of ranks on its servers",
                "a LeaderWorkerSet has one template for its workers: use another layout",
            )
        documents += scheduled(plan, cluster, _set(plan, place, cluster, instance, members))
    documents += _proxy(plan, place) if is_split(plan) else []
    documents.append(_service(plan, place))
    for document in documents:
        check_fields(document)
    text = yaml.dump_all(documents, Dumper=BlockDumper, sort_keys=False, width=100)
    return {f"{_model(plan)}.yaml": text}


def _model(plan: Plan) -> str:
    return re.sub(r"[^a-z0-9]+", "-", plan.model.lower())


def _name(plan: Plan, instance: int) -> str:
    return f"{_model(plan)}-{plan.roles[instance].role}-{instance}"


def _set(
    plan: Plan, place: Place, cluster: Cluster, instance: int, members: list[Node]
) -> dict[str, object]:
    labels = {"app": _model(plan), "role": members[0].role}
    template: dict[str, object] = {
        "size": len(members),
        "restartPolicy": "RecreateGroupOnPodRestart",
    }
    leader = _pod(plan, place, cluster, members[0], labels)
    if len(members) > 1:
        template |= {"leaderTemplate": leader}
    template["workerTemplate"] = _pod(plan, place, cluster, members[-1], labels)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": _name(plan, instance), "labels": labels},
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": template,
        },
    }


def _pod(
    plan: Plan, place: Place, cluster: Cluster, node: Node, labels: dict[str, str]
) -> dict[str, object]:
    machine = hardware(f"{plan.sku}:{plan.servers}").sku
    command = node.command
    if not node.is_head:
        rank = _RANK.format(node.ranks)
        command = command.with_flag("--data-parallel-start-rank", rank)
    script = body(plan, Node(*_but_command(node), command), exports=False)
    env: list[dict[str, object]] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    ]
    env += [
        {"name": name, "value": "$(POD_IP)" if value == _POD_IP else _plain(value)}
        for name, value in command.env.items()
    ]
    resources = {cluster.npu(plan): machine.dies_per_server, "cpu": _CPU, "memory": _MEMORY}
    volumes = [*MOUNTS, place.checkpoint]
    container: dict[str, object] = {
        "name": "engine",
        "image": image(plan),
        "command": ["bash", "-c"],
        "args": [_plain(script)],
        "env": env,
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [
            *({"name": f"host-{n}", "mountPath": path} for n, path in enumerate(volumes)),
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if node.is_head:
        container |= _probes(engine_port(plan, place))
    spec: dict[str, object] = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [
            *({"name": f"host-{n}", "hostPath": {"path": path}} for n, path in enumerate(volumes)),
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED}},
        ],
    }
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def _but_command(node: Node) -> tuple[int, str, int, bool, int]:
    return node.number, node.role, node.instance, node.is_head, node.ranks


def _plain(text: str) -> str:
    """Kubernetes expands ``$(NAME)`` and halves ``$$``; doubled, every ``$`` reaches the shell."""
    return text.replace("$", "$$")


def _probes(port: int) -> dict[str, object]:
    """Weights of 400 to 750 GB take up to an hour to load."""
    health = {"httpGet": {"path": "/health", "port": port}}
    return {
        "ports": [{"containerPort": port, "name": "http"}],
        "startupProbe": {
            **health,
            "periodSeconds": _PROBE_S,
            "failureThreshold": READY_S // _PROBE_S,
        },
        "readinessProbe": {**health, "periodSeconds": 5},
        "livenessProbe": {**health, "periodSeconds": _PROBE_S, "failureThreshold": 6},
    }


def _proxy(plan: Plan, place: Place) -> list[dict[str, object]]:
    """The leader of group 0 of a set is reached at NAME-0.NAME."""
    names = {n: f"{_name(plan, n)}-0.{_name(plan, n)}" for n in range(len(plan.roles))}
    labels = {"app": _model(plan), "role": "proxy"}
    container = {
        "name": "proxy",
        "image": image(plan),
        "command": ["bash", "-c"],
        "args": [_plain(proxy_body(plan, place, names))],
        "ports": [{"containerPort": place.port, "name": "http"}],
        "readinessProbe": {
            "httpGet": {"path": "/healthcheck", "port": place.port},
            "periodSeconds": 5,
        },
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"{_model(plan)}-proxy", "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
    ]


def _service(plan: Plan, place: Place) -> dict[str, object]:
    selector = {"app": _model(plan), "role": "proxy"}
    if not is_split(plan):
        selector = {"app": _model(plan), "role": "mixed", f"{_LABEL}/worker-index": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _model(plan)},
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": place.port, "targetPort": place.port}],
        },
    }
