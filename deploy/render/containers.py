"""``docker run`` and compose files: one per server, the host's network, every NPU."""

from __future__ import annotations

import shlex

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.catalogue.releases import images, release
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.render.mounts import MOUNTS
from glm5_ascend.deploy.render.nodes import Node, nodes
from glm5_ascend.deploy.render.place import Place
from glm5_ascend.deploy.render.proxy import proxy_node
from glm5_ascend.deploy.render.script import body, proxy_body, quoted

SHARED_MEMORY = "512g"
# vllm-ascend's installation page.
_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def image(plan: Plan) -> str:
    """Image of the release for the chip, as vllm-ascend's CI names them.

    Raises:
        PlanError: no image is built for the chip.
    """
    found = images()
    chip = hardware(f"{plan.sku}:{plan.servers}").sku.chip
    suffixes = [s for s, known in found["chip_of_suffix"].items() if known == chip]
    if not suffixes:
        raise PlanError(f"vllm-ascend has no image for {chip}", "render bash instead")
    tag = str(found["tag"]).format(release=release(plan.release).text)
    shortest = min(suffixes, key=len)
    return f"{found['repository']}:{tag}{'-' + shortest if shortest else ''}"


def devices(plan: Plan) -> list[str]:
    """Device nodes of a whole server."""
    dies = hardware(f"{plan.sku}:{plan.servers}").sku.dies_per_server
    return [f"/dev/davinci{die}" for die in range(dies)] + list(_MANAGERS)


def mounts(place: Place) -> list[str]:
    """Host paths, each mounted where it is; the checkpoint cannot be written."""
    return [f"{path}:{path}" for path in MOUNTS] + [f"{place.checkpoint}:{place.checkpoint}:ro"]


def _model(plan: Plan) -> str:
    return plan.model.replace(".", "-")


def _name(plan: Plan, node: Node) -> str:
    return f"{_model(plan)}-node{node.number}"


def docker_files(plan: Plan, place: Place) -> dict[str, str]:
    """``node0.sh`` and so on, each one ``docker run``, and ``proxy.sh``."""
    _colons(place)
    made = {}
    for node in nodes(plan, place):
        rows = [
            ["exec docker run --rm --init"],
            [f"--name {_name(plan, node)}"],
            ["--network host"],
            [f"--shm-size {SHARED_MEMORY}"],
            *([f"--device {path}"] for path in devices(plan)),
            *(["--volume", quoted(mount)] for mount in mounts(place)),
            *(["--env", shlex.quote(f"{k}={v}")] for k, v in node.command.env.items()),
            ["--entrypoint", "bash"],
            [image(plan), "-c", shlex.quote(body(plan, node, exports=False))],
        ]
        text = " \\\n  ".join(" ".join(row) for row in rows)
        made[f"node{node.number}.sh"] = f"#!/usr/bin/env bash\nset -eu\n{text}\n"
    proxy = proxy_body(plan, place)
    if proxy:
        run = f"exec docker run --rm --init --network host --name {_model(plan)}-proxy"
        run += f" --entrypoint bash {image(plan)} \\\n  -c {shlex.quote(proxy)}"
        about = f"# For node {proxy_node(plan)}, or any machine that reaches all others."
        made["proxy.sh"] = f"#!/usr/bin/env bash\n{about}\nset -eu\n{run}\n"
    return made


def compose_files(plan: Plan, place: Place) -> dict[str, str]:
    """``node0.compose.yaml`` and so on; the proxy is a service of the first prefill server."""
    import yaml

    from glm5_ascend.yaml_file import BlockDumper

    _colons(place)
    made = {}
    proxy = proxy_body(plan, place)
    for node in nodes(plan, place):
        engine = {
            "image": image(plan),
            "container_name": _name(plan, node),
            "network_mode": "host",
            "init": True,
            "shm_size": SHARED_MEMORY,
            "stop_grace_period": "60s",
            "devices": [f"{path}:{path}" for path in devices(plan)],
            "volumes": mounts(place),
            "environment": {k: _kept(v) for k, v in node.command.env.items()},
            "entrypoint": ["bash", "-c"],
            "command": [_kept(body(plan, node, exports=False))],
        }
        services: dict[str, object] = {"engine": engine}
        if node.number == proxy_node(plan):
            services["proxy"] = {
                "image": image(plan),
                "network_mode": "host",
                "init": True,
                "entrypoint": ["bash", "-c"],
                "command": [_kept(proxy)],
            }
        text = yaml.dump({"services": services}, Dumper=BlockDumper, sort_keys=False, width=100)
        made[f"node{node.number}.compose.yaml"] = text
    return made


def _kept(text: str) -> str:
    """Compose expands ``$``; a doubled one stays."""
    return text.replace("$", "$$")


def _colons(place: Place) -> None:
    if ":" in place.checkpoint or "$" in place.checkpoint:
        raise PlanError(
            f"checkpoint {place.checkpoint!r} cannot be mounted", "use a path without : and $"
        )
