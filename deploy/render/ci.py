"""vllm-ascend's multi-node CI file, in its form with one ``server_cmd`` per node."""

from __future__ import annotations

import re
from dataclasses import replace

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.catalogue.models import model
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.render.ci_read import OWN
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import VARIABLE, Place, engine_port, is_split
from glm5_ascend.deploy.render.script import quoted
from glm5_ascend.errors import brief

# The CI sets these itself, after looking at the machine.
_SITE = ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_FILLED = ("LOCAL_IP", "MASTER_IP", "NIC_NAME", "SERVER_PORT")
_REFERENCE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
# Data sets that its own files use; a baseline is yours to measure.
_BENCHMARKS = {
    "acc": {
        "case_type": "accuracy",
        "dataset_path": "vllm-ascend/gsm8k-lite",
        "request_conf": "vllm_api_general_chat",
        "dataset_conf": "gsm8k/gsm8k_gen_0_shot_cot_chat_prompt",
        "max_out_len": 4096,
        "batch_size": 64,
        "baseline": 95,
        "threshold": 5,
    },
    "perf": {
        "case_type": "performance",
        "dataset_path": "vllm-ascend/GSM8K-in3500-bs2800",
        "request_conf": "vllm_api_stream_chat",
        "dataset_conf": "gsm8k/gsm8k_gen_0_shot_cot_str_perf",
        "num_prompts": 160,
        "max_out_len": 1500,
        "batch_size": 40,
        "request_rate": 0,
        "baseline": 1,
        "threshold": 0.97,
    },
}


def files(plan: Plan, place: Place) -> dict[str, str]:
    """``MODEL.yaml``.

    Raises:
        PlanError: the format cannot say it: its order is prefill before decode, with one master
            address for each.
    """
    import yaml

    _check(plan)
    made = [_command(plan, place, number) for number in range(plan.servers)]
    envs = [{k: v for k, v in one.env.items() if k not in _SITE} for one in made]
    common = {k: v for k, v in envs[0].items() if all(env.get(k) == v for env in envs)}
    document: dict[str, object] = {
        "test_name": f"{place.name} {plan.quant} {' '.join(r.layout for r in plan.roles)}",
        "model": place.checkpoint,
        "num_nodes": plan.servers,
        "npu_per_node": hardware(f"{plan.sku}:{plan.servers}").sku.dies_per_server,
        "env_common": {**common, "SERVER_PORT": str(engine_port(plan, place))},
    }
    if is_split(plan):
        document["disaggregated_prefill"] = {
            "enabled": True,
            "prefiller_host_index": _first(plan, "prefill"),
            "decoder_host_index": _first(plan, "decode"),
        }
    document["deployment"] = [
        {"envs": {k: v for k, v in env.items() if k not in common}, "server_cmd": _line(one)}
        for env, one in zip(envs, made, strict=True)
    ]
    document["benchmarks"] = _BENCHMARKS
    document[OWN] = {
        "model": plan.model,
        "quant": plan.quant,
        "release": plan.release,
        "sku": plan.sku,
        "predicted": dict(plan.predicted),
    }
    text = yaml.safe_dump(document, sort_keys=False, width=100)
    return {f"{model(plan.model).title}-{plan.quant}.yaml": text}


def _check(plan: Plan) -> None:
    order = [node for role in plan.roles for node in role.nodes]
    if order != list(range(plan.servers)):
        raise PlanError("the CI wants every node, prefill first", "number the plan's nodes so")
    for kind in ("mixed", "prefill", "decode"):
        several = [role for role in plan.roles if role.role == kind]
        if len(several) > 1 and any(len(role.nodes) > 1 for role in several):
            raise PlanError(
                f"the CI knows one master for {kind}, the plan has {len(several)} instances"
                " over several servers",
                "render bash or k8s instead",
            )


def _heads(plan: Plan, node: int) -> bool:
    return any(role.nodes[0] == node for role in plan.roles)


def _first(plan: Plan, kind: str) -> list[int]:
    return [node for role in plan.roles if role.role == kind for node in role.nodes]


def _command(plan: Plan, place: Place, number: int) -> ServeCommand:
    hosts = tuple("$LOCAL_IP" if n == number else "$MASTER_IP" for n in range(plan.servers))
    site = replace(place, hosts=hosts, nic="$NIC_NAME")
    command = next(node.command for node in nodes(plan, site) if node.number == number)
    return command.with_flag("--port", "$SERVER_PORT") if _heads(plan, number) else command


def _line(command: ServeCommand) -> str:
    """One line: the CI splits it as a shell would, after it has filled in its variables.

    Raises:
        PlanError: a word of the plan has a variable that the CI would fill in, quoted or not.
    """
    for word in command.to_argv():
        for match in _REFERENCE.finditer(word):
            name = match[1] or match[2]
            if name in (*command.env, *_SITE, *_FILLED) and not VARIABLE.fullmatch(word):
                raise PlanError(
                    f"{brief(word)} has ${name}, which the CI fills in", "render bash instead"
                )
    words = [re.sub(r'^"(\$[A-Z_]+)"$', r"\1", quoted(word)) for word in command.to_argv()]
    return " ".join(words)
