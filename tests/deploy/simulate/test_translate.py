"""``serve --plan --simulate --dry-run``: what runs, and that everything that does not is named."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import place_of
from glm5_ascend.deploy.simulate.run import SMALL_MODEL
from tests.deploy.render.plans import MTP, PLANS, plan, role, site, written


def run(*words: object, **environ: str) -> Result:
    return CliRunner().invoke(cli, ["serve", *(str(word) for word in words)], env=environ)


def simulated(made: Plan, folder: Path, *words: object) -> tuple[list[list[str]], list[str]]:
    """The commands of a dry run, and the lines on stderr."""
    result = run("--plan", written(made, folder), "--simulate", "--dry-run", *words)
    assert result.exit_code == 0, result.stderr
    commands = [shlex.split(line) for line in result.stdout.replace("\\\n", " ").splitlines()]
    return commands, result.stderr.splitlines()


def flags_of(words: list[str]) -> dict[str, str]:
    """Flags and their values, of those that have one or none."""
    start = words.index("serve") + 2
    found: dict[str, str] = {}
    name = ""
    for word in words[start:]:
        if word.startswith("--"):
            name = word
            found[name] = ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_dropped_in_silence(name: str, tmp_path: Path) -> None:
    """Every flag and variable of the rendered heads is in the command, or named on stderr."""
    made = PLANS[name]
    commands, lines = simulated(made, tmp_path)
    hosts = ",".join(f"10.0.0.{n + 1}" for n in range(made.servers))
    rendered = nodes(made, place_of(made, hosts=hosts, nic="eth0"))
    kinds = ("mixed",) if made.roles[0].role == "mixed" else ("decode", "prefill")
    engines = [words for words in commands if "glm5_ascend.simulator" in words]
    assert len(engines) == len(kinds)
    # Said by the line of the layout, or with the address.
    elsewhere = ("--tensor-parallel-size", "--data-parallel-size", "--served-model-name")
    for kind, words in zip(kinds, engines, strict=True):
        node = next(node for node in rendered if node.role == kind)
        ours = flags_of(words)
        # What both engines have in common begins with the names of both.
        starts = ("",) if len(kinds) == 1 else (f"{kind}: ", f"{' and '.join(kinds)}: ")
        text = "\n".join(line for line in lines if line.startswith(starts))
        for option in node.command.options:
            kept = ours.get(option.name) == " ".join(option.values)
            assert kept or option.name in text or option.name in elsewhere, option
        for variable in node.command.env:
            assert variable in text, variable
        assert not any("HCCL" in word for word in words)


def test_a_mixed_plan(tmp_path: Path) -> None:
    (quantize, serve), lines = simulated(PLANS["mixed two nodes"], tmp_path)
    assert quantize[-5:] == [
        "quantize",
        str(SMALL_MODEL),
        "small-glm5-w8a8",
        "--scheme",
        "w8a8",
    ]
    assert serve[serve.index("serve") + 1] == "small-glm5-w8a8"
    flags = flags_of(serve)
    assert json.loads(flags.pop("--speculative-config")) == MTP
    assert flags == {
        "--enforce-eager": "",
        "--kv-cache-memory-bytes": str(256 << 20),
        "--host": "127.0.0.1",
        "--port": "8000",
        "--served-model-name": "GLM-5.2 glm5-ascend-simulated",
        "--tensor-parallel-size": "2",
        "--data-parallel-size": "2",
        "--enable-expert-parallel": "",
        "--max-model-len": "4096",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "4096",
        "--trust-remote-code": "",
        "--quantization": "ascend",
        "--seed": "1024",
        "--enable-auto-tool-choice": "",
        "--tool-call-parser": "glm47",
        "--reasoning-parser": "glm45",
        "--api-server-count": "1",
    }
    assert lines[0].startswith("simulation on this CPU: no NPU")
    assert "stands in for GLM-5.2 w8a8" in lines[1]
    assert lines[2] == "layout: mixed: dp8tp4 (EP 32) on 32 dies -> dp2tp2 (EP 4) in 4 processes"
    assert "changed: --max-model-len 65536 -> 4096, the stand-in's most" in lines


def test_a_split_plan_is_two_engines_and_a_proxy(tmp_path: Path) -> None:
    (_, decode, prefill), lines = simulated(PLANS["two prefills"], tmp_path, "--port", "9000")
    assert lines[2:4] == [
        "layout: decode: dp32tp1 (EP 32) on 32 dies -> dp2tp1 (EP 2) in 2 processes",
        "layout: prefill: dp1tp16 (EP 16) on 16 dies -> dp1tp2 (EP 2) in 2 processes",
    ]
    assert "prefill: left out: 1 more of these instances" in lines
    assert "changed: the proxy is this program's" in lines
    # What both have in common is said once.
    assert len(set(lines)) == len(lines)
    both = [line.partition(": ")[2] for line in lines if line.startswith("decode and prefill: ")]
    assert any("the cache has 256 MiB" in line for line in both)
    assert not any(line.endswith(tuple(both)) for line in lines if line.startswith("prefill: "))
    for words, port, kind, tokens in (
        (decode, "9100", "kv_consumer", "64"),
        (prefill, "9101", "kv_producer", "4096"),
    ):
        flags = flags_of(words)
        assert (flags["--port"], flags["--max-num-batched-tokens"]) == (port, tokens)
        assert json.loads(flags["--kv-transfer-config"]) == {
            "kv_connector": "FolderConnector",
            "kv_connector_module_path": "glm5_ascend.simulator.transfer",
            "kv_role": kind,
            "kv_connector_extra_config": {"folder": "caches"},
        }
    assert flags_of(decode)["--data-parallel-size"] == "2"
    assert flags_of(prefill)["--tensor-parallel-size"] == "2"
    assert any(
        line.startswith("decode: changed: --kv-transfer-config ") and "MooncakeConnectorV1" in line
        for line in lines
    )


def test_one_worker_per_rank_runs_in_its_engine(tmp_path: Path) -> None:
    made = plan("a2-313t", 1, role("mixed", (0,), "dp2tp1", 400), quant="bf16")
    (serve,), _ = simulated(replace(made, quant="bf16"), tmp_path)
    assert serve[serve.index("serve") + 1] == str(SMALL_MODEL)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING=0" in serve
    assert flags_of(serve)["--distributed-executor-backend"] == "uni"


def test_several_instances(tmp_path: Path) -> None:
    _, lines = simulated(PLANS["mixed two instances"], tmp_path)
    assert "left out: 1 more of these instances" in lines


def changed(**flags: Any) -> Plan:
    return plan("a3-752t", 1, role("mixed", (0,), "dp1tp16", 400, **flags))


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("kv-cache-dtype", "int8", "--kv-cache-dtype int8 (the CPU engine keeps caches"),
        ("attention-config", {"indexer_kv_dtype": "int8"}, '"indexer_kv_dtype":"int8"} (the CPU'),
        ("async-scheduling", True, "--async-scheduling (the CPU engine does not schedule"),
        ("hf-overrides", {"index_topk_freq": 4}, '{"index_topk_freq":4} (the model that stands in'),
        ("enable-eplb", True, "--enable-eplb (the CPU engine does not balance"),
    ],
)
def test_flags_without_meaning_here(flag: str, value: Any, words: str, tmp_path: Path) -> None:
    (_, serve), lines = simulated(changed(**{flag: value}), tmp_path)
    assert any(line.startswith("dropped: ") and words in line for line in lines)
    assert f"--{flag}" not in serve


def test_other_flags_are_vllms(tmp_path: Path) -> None:
    (_, serve), _ = simulated(changed(**{"enable-prefix-caching": False}), tmp_path)
    assert "--no-enable-prefix-caching" in serve


def test_variables_of_vllm_are_kept(tmp_path: Path) -> None:
    made = changed()
    (first,) = made.roles
    own = {**first.env, "VLLM_USE_RUST_FRONTEND": "0", "OMP_NUM_THREADS": "10", "MINE": "1"}
    (_, serve), lines = simulated(replace(made, roles=(replace(first, env=own),)), tmp_path)
    assert "VLLM_USE_RUST_FRONTEND=0" in serve
    assert "OMP_NUM_THREADS=10" not in serve
    assert any(
        line.startswith("dropped: ") and "OMP_NUM_THREADS=10, MINE=1 (a setting" in line
        for line in lines
    )


def test_a_checkpoint_of_the_users(checkpoint: Path, tmp_path: Path) -> None:
    (serve,), lines = simulated(changed(), tmp_path, "--model", checkpoint)
    assert serve[serve.index("serve") + 1] == str(checkpoint)
    assert "--quantization" not in serve
    assert f"dropped: --quantization ascend ({checkpoint} is not quantised)" in lines


def test_what_is_for_the_servers_is_not_used(tmp_path: Path) -> None:
    made = PLANS["split"]
    _, lines = simulated(made, tmp_path, "--node-rank", 3, *site(made), "--port", "9000")
    assert lines[-1].startswith("not used: --node-rank 3, --hosts 10.0.0.1,")
    result = run("/models/big", "--plan", written(made, tmp_path), "--simulate", "--dry-run")
    assert "not used: /models/big (for the plan's servers)" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--max-model-len", "5"], 1, "--max-model-len is given beside a plan"),
        (["--port", "many"], 1, "port many is out of range"),
        (["--port", "65435"], 1, "port 65435 is out of range"),
        (["--port", "0"], 1, "port 0 is out of range"),
        (["--model", "/nowhere"], 1, "/nowhere"),
        (["--model", ""], 2, "--model is empty"),
        (["--op-backend", "triton"], 5, "triton does not run in the CPU engine"),
    ],
)
def test_refusals(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = run("--plan", written(changed(), tmp_path), "--simulate", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr.split("hint:")[0]
    assert "hint:" in result.stderr


def test_a_plan_of_another_model(tmp_path: Path) -> None:
    made = replace(PLANS["split"], model="deepseek-v3")
    result = run("--plan", written(made, tmp_path), "--simulate", "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "deepseek-v3 is no GLM-5" in result.stderr


def test_without_a_plan(checkpoint: Path) -> None:
    assert run(checkpoint, "--simulate").exit_code == 2
    # Of plain serving these are vLLM's.
    words = shlex.split(run(checkpoint, "--dry-run", "--model", "x").stdout.replace("\\\n", " "))
    assert words[-2:] == ["--model", "x"]


def test_it_does_not_import_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from click.testing import CliRunner; from glm5_ascend.cli import cli;"
        f"r = CliRunner().invoke(cli, ['serve', '--plan', {str(written(changed(), tmp_path))!r},"
        " '--simulate', '--dry-run']); assert r.exit_code == 0, r.output;"
        "assert 'torch' not in sys.modules and 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
