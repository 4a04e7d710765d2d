"""CI files read as plans: what we write comes back, what others write is read or named."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import place_of
from tests.deploy.render.plans import HOSTS, PLANS, site, written

MODEL = "org/GLM-5.2-w8a8c8"
COMMAND = f"""
  vllm serve {MODEL} --host 0.0.0.0 --port $SERVER_PORT --tensor-parallel-size 8
  -dp 4 --data-parallel-size-local 2 --data-parallel-rpc-port 13389 --quantization ascend
  --attention_config.indexer_kv_dtype int8 --max-num-seqs 16 --gpu-memory-utilization 0.92
  --no-enable-prefix-caching --speculative-config.num_speculative_tokens 3
  --speculative-config.method deepseek_mtp
  --additional-config '{{"enable_dsa_cp": true,
  "enable_flashcomm1": true}}'
"""


def internal(**changes: Any) -> dict[str, Any]:
    """A CI file of two nodes that somebody else wrote."""
    return {
        "test_name": "a test",
        "model": MODEL,
        "num_nodes": 2,
        "npu_per_node": 16,
        "special_dependencies": {"transformers": "5.2.0"},
        "env_common": {"SERVER_PORT": 8080, "HCCL_BUFFSIZE": 800, "LD_PATH": "/a:$LD_PATH"},
        "deployment": [
            {"envs": {}, "server_cmd": COMMAND + " --data-parallel-address $LOCAL_IP"},
            {
                "envs": {"TASK_QUEUE_ENABLE": 1},
                "server_cmd": COMMAND.replace("0.92", "0.9")
                + " --data-parallel-address $MASTER_IP --data-parallel-start-rank 2 --headless",
            },
        ],
        "benchmarks": {"perf": {"baseline": 1}},
        **changes,
    }


def external() -> dict[str, Any]:
    """A CI file with a server per rank, prefill on node 1."""
    common = {"SERVER_PORT": "${PORT}", "ASCEND_RT_VISIBLE_DEVICES": "${VISIBLE_DEVICES}"}
    transfer = {
        "kv_connector": "MooncakeConnectorV1",
        "kv_port": "30000",
        "kv_connector_extra_config": {
            "use_ascend_direct": True,
            "prefill": {"dp_size": 2, "tp_size": 8},
            "decode": {"dp_size": 4, "tp_size": 4},
        },
    }
    sizes = {0: (4, 4, "kv_consumer"), 1: (2, 8, "kv_producer")}
    words = ["--port", "$SERVER_PORT", "--data-parallel-size", "${DP_SIZE}"]
    words += ["--data-parallel-rank", "${DP_RANK}", "--tensor-parallel-size", "${TP_SIZE}"]
    words += ["--data-parallel-address", "${DP_ADDRESS}", "--enable-expert-parallel"]
    return {
        "model": MODEL,
        "num_nodes": 2,
        "npu_per_node": 16,
        "cluster_hosts": ["10.1.0.1", "10.1.0.2"],
        "routing": {
            "type": "disaggregated_prefill",
            "groups": {"prefiller": [1], "decoder": [0]},
        },
        "config": [
            {
                "node_index": number,
                "port_start": 7100,
                "dp_size": dp,
                "dp_size_local": dp,
                "dp_rank_start": 0,
                "tp_size": tp,
                "dp_address": f"${{NODE_{number}_IP}}",
            }
            for number, (dp, tp, _) in sizes.items()
        ],
        "templates": [
            {
                "node_index": number,
                "envs": common,
                "server_cmd_template": [
                    *words,
                    "--kv-transfer-config",
                    json.dumps({**transfer, "kv_role": sizes[number][2]}),
                ],
            }
            for number in (1, 0)
        ],
        "benchmarks": {},
    }


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["render", *map(str, words)])


def imported(document: object, folder: Path, *words: object) -> tuple[Plan, list[str]]:
    """The plan of a CI file, and what is said of it on stderr."""
    file = folder / "ci.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    result = run(file, "--format", "plan", "--out", folder / "plan", *words)
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert all(line.startswith("not kept: ") for line in lines)
    return Plan.load(folder / "plan" / "plan.yaml"), [line[10:] for line in lines]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back(name: str, tmp_path: Path) -> None:
    made = PLANS[name]
    (tmp_path / "0").mkdir()
    file = written(made, tmp_path / "0")
    assert run(file, "--format", "ci", "--out", tmp_path / "ci", *site(made)).exit_code == 0
    (ci,) = (tmp_path / "ci").iterdir()
    again, lost = imported(yaml.safe_load(ci.read_text()), tmp_path)
    assert lost == ["`test_name` is not part of a plan", "`benchmarks` is not part of a plan"]
    # Flags come back explicitly that rendering adds, so commands are compared.
    place = place_of(made, hosts=",".join(HOSTS[: made.servers]), nic="eth0")
    for old, new in zip(nodes(made, place), nodes(again, place), strict=True):
        assert sorted(old.command.to_argv()) == sorted(new.command.to_argv())
        assert old.command.env == new.command.env
        assert (old.number, old.role, old.instance, old.ranks) == (
            new.number,
            new.role,
            new.instance,
            new.ranks,
        )
    same = ("model", "quant", "kv", "release", "sku", "servers", "predicted")
    assert [getattr(again, field) for field in same] == [getattr(made, field) for field in same]
    # And a second time through nothing changes at all.
    assert again == imported_again(again, tmp_path)


def imported_again(made: Plan, folder: Path) -> Plan:
    (folder / "1").mkdir()
    file = written(made, folder / "1")
    text = run(file, "--format", "ci", "--dry-run", *site(made)).stdout
    return imported(yaml.safe_load(text), folder / "1")[0]


def test_a_foreign_file(tmp_path: Path) -> None:
    made, lost = imported(internal(), tmp_path, "--hw", "a3-752t")
    assert (made.model, made.quant, made.kv) == ("glm-5.2", "w8a8", "li-c8")
    assert (made.sku, made.servers, made.release) == ("a3-752t", 2, "0.30.0rc2")
    (role,) = made.roles
    assert (role.role, role.nodes, role.layout) == ("mixed", (0, 1), "dp4tp8")
    assert role.flags == {
        "quantization": "ascend",
        "attention-config": {"indexer_kv_dtype": "int8"},
        "max-num-seqs": 16,
        "gpu-memory-utilization": 0.92,
        "enable-prefix-caching": False,
        "speculative-config": {"num_speculative_tokens": 3, "method": "deepseek_mtp"},
    }
    assert role.env == {"HCCL_BUFFSIZE": "800"}
    assert role.additional_config == {"enable_dsa_cp": True, "enable_flashcomm1": True}
    assert set(lost) == {
        "`test_name` is not part of a plan",
        "`special_dependencies` is not part of a plan",
        "`benchmarks` is not part of a plan",
        "the release is not said: 0.30.0rc2 is assumed, --for says another",
        f"the checkpoint is {MODEL}: --checkpoint says where the servers have it",
        "LD_PATH /a:$LD_PATH is dropped",
        "--seed 1024 is added",
        "--enable-auto-tool-choice true is added",
        "--tool-call-parser glm47 is added",
        "--reasoning-parser glm45 is added",
        "VLLM_ENGINE_READY_TIMEOUT_S 3600 is added",
        "node 1: --gpu-memory-utilization was 0.9 and becomes 0.92",
        "node 1: TASK_QUEUE_ENABLE 1 is dropped",
    }


def test_words_without_a_flag_are_named(tmp_path: Path) -> None:
    document = internal(num_nodes=1)
    command = f"vllm serve {MODEL} --enforce-eager lost -tp 16"
    document["deployment"] = [{"envs": {}, "server_cmd": command}]
    _, lost = imported(document, tmp_path)
    assert "'lost', which belongs to no flag, is dropped" in lost


def test_a_server_per_rank(tmp_path: Path) -> None:
    made, lost = imported(external(), tmp_path, "--for", "0.23")
    assert [(role.role, role.nodes, role.layout) for role in made.roles] == [
        ("decode", (0,), "dp4tp4"),
        ("prefill", (1,), "dp2tp8"),
    ]
    assert (made.release, made.sku) == ("0.23.0.post1", "a3-560t")
    assert "a server per rank becomes one engine per instance, but for --external-dp" in lost
    assert "node 1: --kv-transfer-config.kv_port was 30000 and becomes 36100" in lost
    assert not any("PORT" in text or "VISIBLE" in text for text in lost)
    # The file's addresses are the site's.
    file = tmp_path / "ci.yaml"
    result = run(file, "--nic", "eth0", "--dry-run", "--json")
    found = json.loads(result.stdout)
    assert "HCCL_IF_IP=10.1.0.2" in found["texts"]["node1.sh"]
    assert found["lost"] == [line[10:] for line in result.stderr.splitlines()]


def test_hardware_that_the_file_gets_wrong(tmp_path: Path) -> None:
    document = internal()
    for entry in document["deployment"]:
        entry["server_cmd"] = (
            entry["server_cmd"]
            .replace("-dp 4", "-dp 2")
            .replace("-size-local 2", "-size-local 1")
            .replace("start-rank 2", "start-rank 1")
        )
    made, lost = imported(document, tmp_path, "--hw", "a2-313t")
    assert (made.sku, made.roles[0].layout) == ("a2-313t", "dp2tp8")
    assert "npu_per_node 16: a server of a2-313t has 8" in lost


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (internal(npu_per_node=7), "npu_per_node is 7"),
        (without(internal(), "npu_per_node"), "npu_per_node is None"),
        (internal(templates=3), "not numbered from 0"),
        (internal(num_nodes=3), "2 commands for 3 nodes"),
        (internal(deployment=[]), "not numbered from 0"),
        (internal(deployment=[{"server_cmd": "echo"}] * 2), "not numbered"),
        (internal(deployment=[{"server_cmd": COMMAND}] * 2), "has 4 ranks, its nodes start 2"),
        (internal(model="org/x", deployment=[{"server_cmd": "vllm serve org/x"}]), "2 nodes"),
        (
            internal(num_nodes=1, deployment=[{"server_cmd": "vllm serve org/x -tp 16"}]),
            "none of GLM-5 to 5.3",
        ),
        (
            internal(disaggregated_prefill={"prefiller_host_index": [0], "decoder_host_index": []}),
            "node 1 neither prefills nor decodes",
        ),
        (
            internal(deployment=[{"server_cmd": f"vllm serve {MODEL} --additional-config {{"}] * 2),
            "--additional-config '{' is no JSON object",
        ),
        (
            internal(deployment=[{"server_cmd": f"vllm serve {MODEL} --hf-overrides 3"}] * 2),
            "--hf-overrides '3' is no JSON object",
        ),
        (internal(glm5_ascend={"x": 1}), "keys that are not known"),
        (internal(glm5_ascend={"sku": 1}), "of a wrong kind"),
        ({"test_cases": [{"server_cmd": "vllm serve m"}]}, "is a CI file of vllm-ascend, not a"),
    ],
)
def test_files_that_are_no_deployment(document: object, message: str, tmp_path: Path) -> None:
    file = tmp_path / "ci.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    result = run(file, "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    error, hint = result.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")


def test_release_and_hardware_of_a_plan_are_its_own(tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    assert "a plan says both" in run(file, "--dry-run", "--hw", "a3").stderr


def test_serve_says_how_a_ci_file_becomes_a_plan(tmp_path: Path) -> None:
    file = tmp_path / "ci.yaml"
    file.write_text(yaml.safe_dump(internal()))
    words = ["serve", "--plan", str(file), "--node-rank", "0", "--dry-run"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert "render FILE --format plan" in shlex.join(result.stderr.split())
