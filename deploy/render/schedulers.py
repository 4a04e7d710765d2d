"""Volcano and MindCluster: gangs for the instances, and the labels that Ascend's plugin reads.

Without a PodGroup a scheduler may start half of an instance on the last free servers. Sources:
Volcano's ``PodGroup`` of scheduling.volcano.sh/v1beta1; MindCluster's tables of Pod and PodGroup
labels and annotations (7.3), its schedule policies, and its examples of inference jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.errors import brief

SCHEDULERS = ("default", "volcano", "mindcluster")
GROUP = "scheduling.k8s.io/group-name"
# Name of the device plugin's resource: MindCluster's.
_RESOURCES = {"A2": "huawei.com/Ascend910", "A3": "huawei.com/Ascend910", "A5": "huawei.com/npu"}
_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9_.-]*")
_QUEUE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
# Per chip: policy, and the label of its servers. A3 servers are taken to stand in a super-pod.
_POLICIES = {
    "A2": ("chip8-node8", "module-910b-8"),
    "A3": ("chip2-node16-sp", "module-a3-16-super-pod"),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is particular to a Kubernetes cluster.

    Attributes:
        scheduler: one of :data:`SCHEDULERS`.
        queue: of Volcano.
        resource: name of the NPU's resource; MindCluster's without it.
    """

    scheduler: str = "default"
    queue: str = "default"
    resource: str | None = None

    def check(self) -> Cluster:
        """Return it; raises ``PlanError`` for names that Kubernetes does not take."""
        if self.resource is not None and not _RESOURCE.fullmatch(self.resource):
            raise PlanError(
                f"{brief(self.resource)} is no name of a resource", "see `kubectl describe node`"
            )
        if not _QUEUE.fullmatch(self.queue):
            raise PlanError(f"{brief(self.queue)} is no name of a queue", "see `kubectl get queue`")
        if self.queue != "default" and self.scheduler == "default":
            raise PlanError("a queue needs Volcano", "add --scheduler volcano or mindcluster")
        return self

    def npu(self, plan: Plan) -> str:
        """Name of the NPU's resource."""
        return self.resource or _RESOURCES[hardware(plan.sku).sku.chip]


def scheduled(plan: Plan, cluster: Cluster, workload: dict[str, Any]) -> list[dict[str, object]]:
    """The objects of a rendered LeaderWorkerSet: itself, behind the group of its pods.

    Raises:
        PlanError: MindCluster publishes no policy for the chip.
    """
    if cluster.scheduler == "default":
        return [workload]
    name = workload["metadata"]["name"]
    template = workload["spec"]["leaderWorkerTemplate"]
    size = int(template["size"])
    pods = [template[key] for key in ("leaderTemplate", "workerTemplate") if key in template]
    (container,) = pods[0]["spec"]["containers"]
    needed = container["resources"]["requests"]
    group: dict[str, Any] = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "labels": dict(workload["metadata"]["labels"])},
        "spec": {
            "minMember": size,
            "queue": cluster.queue,
            "minResources": {key: _times(value, size) for key, value in needed.items()},
        },
    }
    for pod in pods:
        pod["metadata"]["annotations"] = {GROUP: name}
        pod["spec"]["schedulerName"] = "volcano"
    if cluster.scheduler == "mindcluster":
        _mindcluster(plan, cluster, size, group, pods)
    return [group, workload]


def _mindcluster(
    plan: Plan, cluster: Cluster, size: int, group: dict[str, Any], pods: list[dict[str, Any]]
) -> None:
    sku = hardware(plan.sku).sku
    if sku.chip not in _POLICIES:
        raise PlanError(
            f"MindCluster's objects are not rendered for {sku.chip}", "use --scheduler volcano"
        )
    policy, servers = _POLICIES[sku.chip]
    labels = {"ring-controller.atlas": "ascend-910b", "fault-scheduling": "force"}
    annotations = {
        "huawei.com/schedule_policy": policy,
        "huawei.com/schedule_minAvailable": str(size),
    }
    if policy.endswith("-sp"):
        # All dies of an instance in one super-pod, its neighbours there too where there is room.
        annotations["sp-block"] = str(size * sku.dies_per_server)
        labels["inferserviceid"] = group["metadata"]["labels"]["app"]
    group["metadata"]["labels"] |= labels
    group["metadata"]["annotations"] = dict(annotations)
    for pod in pods:
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], **labels}
        pod["metadata"]["annotations"] |= annotations
        pod["spec"]["nodeSelector"] = {"accelerator-type": servers}
        (container,) = pod["spec"]["containers"]
        chosen = f"metadata.annotations['{cluster.npu(plan)}']"
        container["env"].append(
            {"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": chosen}}}
        )


def _times(quantity: int | str, count: int) -> int | str:
    """A quantity of Kubernetes, so many times: ``512Gi`` twice is ``1024Gi``."""
    if isinstance(quantity, int):
        return quantity * count
    match = re.fullmatch(r"(\d+)(\w*)", quantity)
    assert match is not None
    return f"{int(match[1]) * count}{match[2]}"
