"""``render``: what it writes passes ``check`` and starts exactly the commands of the plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.render.command import write_whole
from glm5_ascend.deploy.render.fields import COMPOSE, FieldError, check_fields
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import Place, place_of
from glm5_ascend.errors import Glm5Error
from tests.deploy.render.plans import HOSTS, PLANS, plan, role, site, written

FORMATS = ("bash", "docker", "compose", "k8s", "ci")
STUB = """#!{python} -S
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def rendered(made: Plan, format: str, tmp_path: Path) -> list[Path]:
    """The files of a format, in their order."""
    result = run(
        *("render", written(made, tmp_path), "--format", format, "--out", tmp_path / "out"),
        *site(made),
        "--json",
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["schema"], found["format"]) == (1, format)
    paths = [Path(name) for name in found["files"]]
    assert sorted(paths) == sorted((tmp_path / "out").iterdir())
    return paths


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", PLANS)
def test_check_has_nothing_against_it(name: str, format: str, tmp_path: Path) -> None:
    made = PLANS[name]
    files = [path for path in rendered(made, format, tmp_path) if path.stem != "proxy"]
    words = ["check", *files, "--for", made.release, "--hw", f"{made.sku}:{made.servers}", "--json"]
    found = json.loads(run(*words).stdout)
    # A set has one template for all its workers.
    few = format == "k8s"
    assert found["commands"] == (
        sum(min(len(r.nodes), 2) for r in made.roles) if few else made.servers
    )
    serious = [f for f in found["findings"] if f["severity"] != "note"]
    # The CI sets the variables of the interface itself.
    known = {"nic-variables"} if format == "ci" else set()
    assert {f["rule"] for f in serious} <= known


def test_check_sees_a_damaged_one(tmp_path: Path) -> None:
    files = [p for p in rendered(PLANS["split"], "bash", tmp_path) if p.stem != "proxy"]
    files[2].write_text(files[2].read_text().replace('"kv_consumer"', '"kv_producer"'))
    assert run("check", *files, "--for", "0.30", "--hw", "a3-752t:4").exit_code == 1


# ----- what really starts


def stubs(folder: Path) -> dict[str, str]:
    """An environment whose vllm and docker say how they were called, and that has a mooncake."""
    folder.mkdir()
    for name in ("vllm", "docker"):
        (folder / name).write_text(STUB.format(python=sys.executable))
        (folder / name).chmod(0o755)
    (folder / "python3").symlink_to(sys.executable)
    (folder / "mooncake").mkdir()
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}


def started(words: list[str], environ: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    argv, seen = json.loads(done.stdout)
    return argv, seen


def wanted(made: Plan) -> list[tuple[list[str], dict[str, str]]]:
    """Arguments and variables of every node."""
    place = place_of(made, hosts=",".join(HOSTS[: made.servers]), nic="eth0")
    found = nodes(made, place)
    return [(node.command.to_argv()[1:], dict(node.command.env)) for node in found]


ODD = {
    "hf-overrides": {"a b": ["$HOME", "it's", '"', "`x`", "$(y)"]},
    "seed": 7,
    "chat-template": "$HOME $(POD_IP) $$A",
}
ODD_PLAN = plan("a3-752t", 1, role("mixed", (0,), "dp2tp8", 400, **ODD))
# A user's own words are no variables of ours.
ODD_PLAN = replace(ODD_PLAN, release="0.30")
STARTED = {
    **PLANS,
    "odd": replace(ODD_PLAN, roles=(replace(ODD_PLAN.roles[0], env={"A": "b $c '"}),)),
}


@pytest.mark.parametrize("name", ["mixed two nodes", "split", "odd"])
def test_scripts_start_the_commands(name: str, tmp_path: Path) -> None:
    made = STARTED[name]
    environ = stubs(tmp_path / "bin")
    files = [p for p in rendered(made, "bash", tmp_path) if p.stem != "proxy"]
    for path, (argv, env) in zip(files, wanted(made), strict=True):
        found, seen = started([str(path)], environ)
        assert found == argv
        assert env.items() <= seen.items()
        if name == "split":
            assert seen["LD_LIBRARY_PATH"].split(":")[0] == str(tmp_path / "bin" / "mooncake")


@pytest.mark.parametrize("name", ["mixed two nodes", "split", "odd"])
def test_containers_start_the_commands(name: str, tmp_path: Path) -> None:
    made = STARTED[name]
    environ = stubs(tmp_path / "bin")
    files = [p for p in rendered(made, "docker", tmp_path) if p.stem != "proxy"]
    for path, (argv, env) in zip(files, wanted(made), strict=True):
        docker, _ = started([str(path)], environ)
        given = [docker[n + 1] for n, word in enumerate(docker) if word == "--env"]
        assert dict(entry.split("=", 1) for entry in given) == env
        assert docker.count("--device") == 16 + 3
        assert docker[-3:-1] == ["quay.io/ascend/vllm-ascend:v0.30.0rc2-a3", "-c"]
        assert started(["bash", "-c", docker[-1]], environ)[0] == argv


@pytest.mark.parametrize("name", ["mixed two nodes", "split", "odd"])
def test_compose_starts_the_commands(name: str, tmp_path: Path) -> None:
    made = STARTED[name]
    environ = stubs(tmp_path / "bin")
    for path, (argv, env) in zip(rendered(made, "compose", tmp_path), wanted(made), strict=True):
        document = yaml.safe_load(path.read_text())
        check_fields(document, COMPOSE)
        engine = document["services"]["engine"]
        values = {k: composed(v) for k, v in engine["environment"].items()}
        assert values == env
        words = [*engine["entrypoint"], *(composed(word) for word in engine["command"])]
        assert started(words, environ)[0] == argv
        assert ("proxy" in document["services"]) == (name == "split" and path.stem[:5] == "node0")


@pytest.mark.parametrize("name", ["mixed on A2", "two prefills", "odd"])
def test_kubernetes_starts_the_commands(name: str, tmp_path: Path) -> None:
    made = STARTED[name]
    environ = stubs(tmp_path / "bin")
    (path,) = rendered(made, "k8s", tmp_path)
    documents = list(yaml.safe_load_all(path.read_text()))
    commands = wanted(made)
    sets = [d for d in documents if d["kind"] == "LeaderWorkerSet"]
    assert len(sets) == len(made.roles)
    for one, planned in zip(sets, made.roles, strict=True):
        group = one["spec"]["leaderWorkerTemplate"]
        assert group["size"] == len(planned.nodes)
        for index, number in enumerate(planned.nodes):
            template = (
                group["workerTemplate"] if index or group["size"] == 1 else group["leaderTemplate"]
            )
            (container,) = template["spec"]["containers"]
            ports = {"LWS_WORKER_INDEX": str(index), "LWS_LEADER_ADDRESS": HOSTS[planned.nodes[0]]}
            values = {"POD_IP": HOSTS[number], **ports}
            for entry in container["env"][1:]:
                values[entry["name"]] = expanded(entry["value"], values)
            argv, env = commands[number]
            words = [*container["command"], *(expanded(w, values) for w in container["args"])]
            found, seen = started(words, {**environ, **values})
            assert sorted(found) == sorted(argv)
            assert env.items() <= seen.items()
            assert ("startupProbe" in container) == (index == 0)


def composed(text: str) -> str:
    """What compose makes of ``$NAME`` and ``$$``, with no variable set."""
    return re.sub(r"\$\$|\$\{?\w+\}?", lambda m: "$" if m[0] == "$$" else "", text)


def expanded(text: str, values: dict[str, str]) -> str:
    """What Kubernetes makes of ``$(NAME)`` and ``$$``."""
    return re.sub(r"\$\$|\$\(([A-Z_]+)\)", lambda m: values[m[1]] if m[1] else "$", text)


def test_ci_file(tmp_path: Path) -> None:
    (path,) = rendered(PLANS["split"], "ci", tmp_path)
    document = yaml.safe_load(path.read_text())
    assert path.name == "GLM-5.2-w8a8.yaml"
    assert (document["num_nodes"], document["npu_per_node"]) == (4, 16)
    assert document["disaggregated_prefill"] == {
        "enabled": True,
        "prefiller_host_index": [0, 1],
        "decoder_host_index": [2, 3],
    }
    lines = [one["server_cmd"] for one in document["deployment"]]
    masters = ["$LOCAL_IP", "$MASTER_IP"] * 2
    for master, line in zip(masters, lines, strict=True):
        assert f"--data-parallel-address {master} " in line
    assert ["--headless" in line for line in lines] == [False, True, False, True]
    assert ["--port $SERVER_PORT" in line for line in lines] == [True, False, True, False]
    assert {"acc", "perf"} == document["benchmarks"].keys()
    assert document["env_common"]["HCCL_OP_EXPANSION_MODE"] == "AIV"
    assert [one["envs"]["HCCL_BUFFSIZE"] for one in document["deployment"]] == ["3300"] * 2 + [
        "256"
    ] * 2


# ----- commands


def test_ranks_ports_and_roles_of_a_split_plan() -> None:
    place = place_of(PLANS["two prefills"], hosts=",".join(HOSTS), nic="eth0")
    found = nodes(PLANS["two prefills"], place)
    commands = [node.command for node in found]
    transfers = [command.json("--kv-transfer-config") for command in commands]
    assert [t["kv_role"] for t in transfers] == ["kv_producer"] * 2 + ["kv_consumer"] * 2
    assert [t["kv_port"] for t in transfers] == ["36000", "36100", "36200", "36200"]
    assert [t["engine_id"] for t in transfers] == ["0", "1", "2", "2"]
    sizes = {"prefill": {"dp_size": 1, "tp_size": 16}, "decode": {"dp_size": 32, "tp_size": 1}}
    assert all(sizes.items() <= t["kv_connector_extra_config"].items() for t in transfers)
    assert commands[3].whole("--data-parallel-start-rank", 0) == 16
    assert commands[3].whole("--data-parallel-size-local", 0) == 16
    assert [c.text("--data-parallel-address") for c in commands] == ["", "", *["10.0.0.3"] * 2]
    assert [c.switch("--headless") for c in commands] == [False, False, False, True]
    assert [c.whole("--port", 0) for c in commands] == [8100, 8100, 8100, 0]


def test_proxy_names_one_endpoint_per_instance(tmp_path: Path) -> None:
    files = rendered(PLANS["two prefills"], "bash", tmp_path)
    text = " ".join(files[-1].read_text().replace("\\\n", "").split())
    assert "--port 8000 --prefiller-hosts 10.0.0.1 10.0.0.2 --prefiller-ports 8100 8100" in text
    assert text.endswith("--decoder-hosts 10.0.0.3 --decoder-ports 8100")


def site_error(made: Plan, **said: Any) -> str:
    with pytest.raises(PlanError) as caught:
        place_of(made, **said)
    assert caught.value.hint
    return caught.value.message


def test_what_the_site_must_say() -> None:
    two, one = PLANS["mixed two nodes"], PLANS["mixed one node"]
    assert place_of(one) == Place("/models/GLM-5.3-w4a8", name="GLM-5.3")
    assert "addresses of 2 servers are missing" in site_error(two, nic="eth0")
    assert "no interface" in site_error(two, hosts="10.0.0.1,10.0.0.2")
    assert "1 addresses for 2" in site_error(two, hosts="10.0.0.1", nic="e")
    assert "twice" in site_error(two, hosts="10.0.0.1,10.0.0.1", nic="e")
    assert "no IPv4" in site_error(two, hosts="node1,node2", nic="e")
    assert "no name of an interface" in site_error(two, hosts="10.0.0.1,10.0.0.2", nic="e; x")
    assert "absolute" in site_error(one, checkpoint="models/a")
    assert "out of range" in site_error(one, port=65_500)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (plan("a2-313t", 2, role("mixed", (0, 1), "dp1tp16", 400)), "one rank on several servers"),
        (plan("a3-752t", 2, role("mixed", (0, 1), "dp5tp6", 400)), "does not fit on 2 servers"),
        (plan("a3-752t", 1, role("mixed", (0,), "dp2tp8", 4, port=1)), "'port'"),
        (plan("a3-752t", 1, role("mixed", (0,), "dp2tp8", 4, **{"a;b": 1})), "'a;b'"),
        (
            plan("a3-752t", 1, role("mixed", (0,), "dp2tp8", 4, **{"tensor-parallel-size": 4})),
            "is 4, its layout is dp2tp8",
        ),
        (
            plan(
                *("a3-752t", 3),
                role("prefill", (0,), "dp2tp8", 4),
                role("prefill", (1,), "dp1tp16", 4),
                role("decode", (2,), "dp16tp1", 4),
            ),
            "different layouts",
        ),
    ],
)
def test_plans_that_cannot_be_rendered(made: Plan, words: str) -> None:
    hosts = ",".join(HOSTS[: made.servers])
    place = place_of(made, hosts=hosts, nic="eth0")
    with pytest.raises(PlanError) as caught:
        nodes(made, place)
    assert words in caught.value.message


def test_a_bad_variable() -> None:
    made = PLANS["mixed one node"]
    bad = replace(made, roles=(replace(made.roles[0], env={"A B": "1"}),))
    with pytest.raises(PlanError, match="no environment variable"):
        nodes(bad, place_of(bad))


# ----- files


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    result = run("render", file, "--dry-run")
    assert result.exit_code == 0
    assert "# ----- node0.sh" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]
    found = json.loads(run("render", file, "--dry-run", "--json").stdout)
    assert found["files"] == list(found["texts"]) == ["node0.sh"]
    assert run("render", file).exit_code == 2
    assert run("render", tmp_path / "none.yaml", "--dry-run").exit_code == 1


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.sh"
    write_whole(target, "#!old\n")
    assert os.access(target, os.X_OK)

    def broken(*names: object) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, "#!new\n")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.sh", "#!old\n")]


def damage(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *outer, last = path.split(".")
    inner: Any = document
    for key in outer:
        inner = inner[int(key)] if key.isdigit() else inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.leaderWorkerTemplate.size", "2", "is no int"),
        ("spec.leaderWorkerTemplate.restartPolicy", "Always", "is 'Always'"),
        ("spec.leaderWorkerTemplate.workerTemplate", None, "workerTemplate is missing"),
        ("spec.template", {}, "spec.template is no field"),
        ("spec.leaderWorkerTemplate.workerTemplate.spec.containers.0.image", None, "image is"),
        ("spec.leaderWorkerTemplate.workerTemplate.spec.containers", {}, "is no list"),
        ("spec.networkConfig", "Shared", "is no mapping"),
        ("apiVersion", "v1", "is not known"),
    ],
)
def test_fields_that_a_kind_has_not(path: str, value: object, words: str, tmp_path: Path) -> None:
    (file,) = rendered(PLANS["mixed two nodes"], "k8s", tmp_path)
    document = next(iter(yaml.safe_load_all(file.read_text())))
    check_fields(document)
    with pytest.raises(FieldError, match=words):
        check_fields(damage(document, path, value))


def test_names_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    flags = ("--out", tmp_path / "a" / "b", "--name", "../x", "--format", "ci", "--nic", "eth0")
    result = run("render", file, *flags)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.rglob("*.yaml")) == [
        "GLM-5.3-w4a8.yaml",
        "plan.yaml",
    ]
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["GLM-5.3-w4a8.yaml"]


def test_a_release_without_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(release("0.30"), connectors=frozenset())
    monkeypatch.setattr("glm5_ascend.deploy.render.nodes.release", lambda text: lacking)
    made = PLANS["split"]
    with pytest.raises(PlanError, match="has no MooncakeConnectorV1"):
        nodes(made, place_of(made, hosts=",".join(HOSTS), nic="eth0"))


def test_an_unknown_model() -> None:
    with pytest.raises(Glm5Error):
        place_of(replace(PLANS["mixed one node"], model="x\nrm"), name="m", checkpoint="/m")
