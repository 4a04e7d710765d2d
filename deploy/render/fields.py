"""Checks rendered manifests against the published fields of their kinds.

Not a full schema: the fields that are rendered, which of them must be there, and their types.
Sources: LeaderWorkerSet API reference, leaderworkerset.x-k8s.io/v1; Volcano's PodGroup,
scheduling.volcano.sh/v1beta1; Kubernetes API 1.33, PodSpec,
Container, Probe, Volume, DeploymentSpec and ServiceSpec; Compose specification, services.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glm5_ascend.errors import Glm5Error

# A field's type, a mapping of fields, a list with the form of its items, or a set of words.
# A name that ends in ! must be there; "*" stands for any name.
Form = type | dict[str, Any] | list[Any] | set[str]

_TEXTS: Form = {"*": str}
_PROBE: Form = {
    "httpGet!": {"path!": str, "port!": int},
    "periodSeconds": int,
    "failureThreshold": int,
    "initialDelaySeconds": int,
    "timeoutSeconds": int,
}
_CONTAINER: Form = {
    "name!": str,
    "image!": str,
    "command": [str],
    "args": [str],
    "env": [{"name!": str, "value": str, "valueFrom": {"fieldRef!": {"fieldPath!": str}}}],
    "ports": [{"containerPort!": int, "name": str}],
    "resources": {"limits": {"*": object}, "requests": {"*": object}},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
    "startupProbe": _PROBE,
    "readinessProbe": _PROBE,
    "livenessProbe": _PROBE,
}
_VOLUME: Form = {
    "name!": str,
    "hostPath": {"path!": str, "type": str},
    "emptyDir": {"medium": {"", "Memory"}, "sizeLimit": str},
}
_POD: Form = {
    "metadata": {"labels": _TEXTS, "annotations": _TEXTS},
    "spec!": {
        "containers!": [_CONTAINER],
        "volumes": [_VOLUME],
        "hostNetwork": bool,
        "dnsPolicy": {"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"},
        "terminationGracePeriodSeconds": int,
        "nodeSelector": _TEXTS,
        "schedulerName": str,
    },
}
_OBJECT: dict[str, Any] = {
    "apiVersion!": str,
    "kind!": str,
    "metadata!": {"name!": str, "namespace": str, "labels": _TEXTS, "annotations": _TEXTS},
}
_KINDS: dict[tuple[str, str], Form] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        **_OBJECT,
        "spec!": {
            "replicas": int,
            "startupPolicy": {"LeaderCreated", "LeaderReady"},
            "networkConfig": {"subdomainPolicy!": {"Shared", "UniquePerReplica"}},
            "rolloutStrategy": {"type!": {"RollingUpdate"}},
            "leaderWorkerTemplate!": {
                "size": int,
                "restartPolicy": {"RecreateGroupOnPodRestart", "None"},
                "leaderTemplate": _POD,
                "workerTemplate!": _POD,
            },
        },
    },
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): {
        **_OBJECT,
        "spec!": {
            "minMember!": int,
            "queue": str,
            "priorityClassName": str,
            "minResources": {"*": object},
            "minTaskMember": {"*": int},
        },
    },
    ("apps/v1", "Deployment"): {
        **_OBJECT,
        "spec!": {"replicas": int, "selector!": {"matchLabels": _TEXTS}, "template!": _POD},
    },
    ("v1", "Service"): {
        **_OBJECT,
        "spec!": {
            "selector": _TEXTS,
            "ports": [{"name": str, "port!": int, "targetPort": int, "protocol": str}],
        },
    },
}
COMPOSE: Form = {
    "services!": {
        "*": {
            "image!": str,
            "container_name": str,
            "network_mode": str,
            "init": bool,
            "shm_size": str,
            "stop_grace_period": str,
            "devices": [str],
            "volumes": [str],
            "environment": _TEXTS,
            "entrypoint": [str],
            "command": [str],
        }
    }
}


class FieldError(Glm5Error):
    """A manifest has a field that its kind has not, or lacks one, or of another type."""


def check_fields(document: Mapping[str, Any], form: Form | None = None) -> None:
    """Check a document against the form of its kind, or against ``form``.

    Raises:
        FieldError: it differs; the message names the path.
    """
    if form is None:
        kind = (str(document.get("apiVersion")), str(document.get("kind")))
        if kind not in _KINDS:
            raise FieldError(f"{kind[1]} of {kind[0]} is not known", "give one of the known kinds")
        form = _KINDS[kind]
    _check(document, form, str(document.get("kind", "document")))


def _check(value: object, form: Any, path: str) -> None:
    if isinstance(form, list):
        if not isinstance(value, list):
            raise FieldError(f"{path} is no list", "see the API reference")
        for index, item in enumerate(value):
            _check(item, form[0], f"{path}[{index}]")
    elif isinstance(form, dict):
        _check_mapping(value, form, path)
    elif isinstance(form, set):
        if value not in form:
            raise FieldError(f"{path} is {value!r}", f"known are {', '.join(sorted(form))}")
    elif not isinstance(value, form) or (form is int and isinstance(value, bool)):
        raise FieldError(f"{path} is no {form.__name__}", "see the API reference")


def _check_mapping(value: object, form: dict[str, Any], path: str) -> None:
    if not isinstance(value, dict):
        raise FieldError(f"{path} is no mapping", "see the API reference")
    known = {name.removesuffix("!"): inner for name, inner in form.items()}
    for name in form:
        if name.endswith("!") and name[:-1] not in value:
            raise FieldError(f"{path}.{name[:-1]} is missing", "see the API reference")
    for name, item in value.items():
        if name not in known and "*" not in known:
            raise FieldError(f"{path}.{name} is no field", "see the API reference")
        _check(item, known.get(name, known.get("*")), f"{path}.{name}")
