"""Plans, sites and folders that cannot be: one error, one hint, nothing written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.plan_file import Plan
from tests.deploy.render.plans import HOSTS, PLANS, role, site, written
from tests.deploy.render.plans import plan as make

ONE, SPLIT = PLANS["mixed one node"], PLANS["split"]
ALL = ",".join(HOSTS)


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["render", *map(str, words)])


def refused(result: Result, message: str, code: int = 1) -> None:
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (code, "")
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    assert message in lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts", "10.0.0.1,10.0.0.2"], "2 addresses for 4 servers"),
        (["--hosts", f"{ALL},10.0.0.5"], "5 addresses for 4 servers"),
        (["--hosts", "10.0.0.1,,10.0.0.3,10.0.0.4"], "'' is no IPv4"),
        (["--hosts", ""], "addresses of 4 servers are missing"),
        (["--hosts", "fe80::1,fe80::2,fe80::3,fe80::4"], "'fe80::1' is an IPv6 address"),
        (["--hosts", "n1;rm,n2,n3,n4"], "'n1;rm' is no IPv4"),
        (["--hosts", "$(reboot),10.0.0.2,10.0.0.3,10.0.0.4"], "is no IPv4"),
        (["--hosts", "0.0.0.0,10.0.0.2,10.0.0.3,10.0.0.4"], "no address of a server"),
        (["--hosts", "224.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4"], "no address of a server"),
        (["--hosts", "255.255.255.255,10.0.0.2,10.0.0.3,10.0.0.4"], "no address of a server"),
        (["--hosts", "127.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4"], "every server's address of itself"),
        (["--hosts", ALL, "--nic", ""], "'' is no name of an interface"),
        (["--hosts", ALL, "--nic", "-e"], "'-e' is no name"),
        (["--hosts", ALL, "--nic", "a b"], "'a b' is no name"),
        (["--hosts", ALL, "--nic", "$NIC_NAME"], "is no name"),
        (["--hosts", ALL, "--nic", "x" * 16], "is no name"),
        (["--hosts", ALL, "--port", 12880], "port 12980 is one of those between the servers"),
        (["--hosts", ALL, "--port", 20000], "port 20000 is one of those"),
        (["--hosts", ALL, "--port", 36150], "port 36150 is one of those"),
        (["--hosts", ALL, "--checkpoint", ""], "checkpoint '' is no absolute path"),
        (["--hosts", ALL, "--checkpoint", "m/x"], "checkpoint 'm/x' is no absolute path"),
        (["--hosts", ALL, "--checkpoint", "/m\nrm"], "is no absolute path"),
        (["--hosts", ALL, "--checkpoint", "/m:x", "--format", "k8s"], "cannot be mounted"),
        (["--hosts", ALL, "--checkpoint", "/m/../.."], "'/m/../..' has .. in it"),
        (["--hosts", ALL, "--proxy-script", "p.py"], "'p.py' is no absolute path"),
        (["--hosts", ALL, "--proxy-script", "/opt/"], "'/opt/' is no absolute path of a file"),
        (["--hosts", ALL, "--name", ""], "'' is no model name"),
        (["--hosts", ALL, "--name", "--headless"], "is no model name"),
        (["--hosts", ALL, "--name", "$MASTER_IP"], "which is filled in when it runs"),
    ],
)
def test_sites(words: list[Any], message: str, tmp_path: Path) -> None:
    nic = [] if "--nic" in words else ["--nic", "eth0"]
    refused(run(written(SPLIT, tmp_path), *words, *nic, "--dry-run"), message)


FORMATS = ["bash", "docker", "compose", "k8s", "ci"]
SYSTEM = ["/", "//", "/./", "/etc", "/etc/hccn.conf", "/usr/local/", "/usr/local/Ascend", "/proc/1"]
SYSTEM += ["/usr/local/Ascend/driver", "/usr/local/dcmi/x", "/dev", "/vllm-workspace", "/root"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("path", SYSTEM)
def test_checkpoints_that_are_the_systems(path: str, form: str, tmp_path: Path) -> None:
    words = [written(SPLIT, tmp_path), "--format", form, *site(SPLIT), "--checkpoint", path]
    refused(run(*words, "--dry-run"), "is a folder of the system")


@pytest.mark.parametrize("form", FORMATS)
def test_checkpoints_that_are_here_and_are_none(form: str, tmp_path: Path) -> None:
    words = [written(SPLIT, tmp_path), "--format", form, *site(SPLIT), "--dry-run", "--checkpoint"]
    folder = tmp_path / "model"
    folder.mkdir()
    refused(run(*words, folder), "is a folder without config.json on this machine")
    (folder / "config.json").mkdir()
    refused(run(*words, folder), "is no file")
    refused(run(*words, tmp_path / "plan.yaml"), "is a file on this machine")
    refused(run(*words, tmp_path / "plan.yaml" / "x"), "is below a file on this machine")
    (folder / "config.json").rmdir()
    (folder / "config.json").write_text("{}")
    assert run(*words, folder).exit_code == 0
    assert run(*words, "/models/only/on/the/servers").exit_code == 0
    found = run(*words, f"/{folder}/.//")
    assert found.exit_code == 0
    assert f"{folder}/." not in found.stdout


@pytest.mark.parametrize("form", [*FORMATS, "plan"])
@pytest.mark.parametrize(
    "address", ["fe80::1", "2001:db8::1", "[2001:db8::1]", "fe80::1%eth0", "::"]
)
def test_ipv6_is_refused_by_name(address: str, form: str, tmp_path: Path) -> None:
    words = ["--hosts", f"10.0.0.1,{address},10.0.0.3,10.0.0.4", "--nic", "eth0", "--format", form]
    refused(run(written(SPLIT, tmp_path), *words, "--dry-run"), f"'{address}' is an IPv6 address")


@pytest.mark.parametrize("nic", ["eth0", "bond0.100", "enp1s0f0np0", "eth0@if2", "ib_0-a"])
def test_odd_interfaces_that_exist(nic: str, tmp_path: Path) -> None:
    assert run(written(SPLIT, tmp_path), "--hosts", ALL, "--nic", nic, "--dry-run").exit_code == 0


def changed(**changes: Any) -> dict[str, Any]:
    return {**ONE.as_dict(), **changes}


def flagged(value: object) -> dict[str, Any]:
    """A plan with a flag of this value."""
    roles = yaml.safe_load(yaml.safe_dump(ONE.as_dict()["roles"]))
    roles[0]["flags"]["chat-template"] = value
    return changed(roles=roles)


def misspelt() -> dict[str, Any]:
    roles = yaml.safe_load(yaml.safe_dump(ONE.as_dict()["roles"]))
    roles[0]["flags"]["max-num-seq"] = 4
    return changed(roles=roles)


def with_env(name: str, value: object = "1") -> dict[str, Any]:
    roles = yaml.safe_load(yaml.safe_dump(ONE.as_dict()["roles"]))
    roles[0]["env"] = {name: value}
    return changed(roles=roles)


def test_brackets_without_end(tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("[" * 50_000)
    refused(run(file, "--dry-run"), "deep.yaml is no YAML: nested too deeply")


def servers(count: object) -> dict[str, Any]:
    return changed(hardware={"sku": "a3-752t", "servers": count})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed(schema=2), "schema 2, not 1"),
        (changed(schema=True), "schema True, not 1"),
        (changed(schema=1.0), "schema 1.0, not 1"),
        (changed(schema=2, roles=None, news={}), "schema 2, not 1"),
        (changed(news={}), "unknown key 'news'"),
        (changed(model="deepseek-v3"), "deepseek-v3 is no GLM-5"),
        (changed(model="glm-5.2;x"), "no model"),
        (changed(release="9.9"), "9.9"),
        (changed(hardware={"sku": "a9", "servers": 1}), "no hardware 'a9'"),
        (servers(0), "is no number from 1"),
        (servers(10**12), "is no number from 1"),
        (servers(True), "is no number from 1"),
        (changed(roles=[]), "has no roles"),
        (changed(roles=[ONE.as_dict()["roles"][0]] * 2), "node 0 is not free"),  # type: ignore[index]
        (flagged(float("nan")), "nan is no number"),
        (flagged(float("-inf")), "-inf is no number"),
        (flagged(b"hi"), "no text and no number"),
        (flagged("a\0b"), "is no text"),
        (flagged("--headless"), "flag chat-template of mixed is '--headless'"),
        (flagged(None), "has no value"),
        (flagged([]), "has no value"),
        (flagged([1, {"a": 2}]), "lists or mappings in a list"),
        (flagged("$POD_IP"), "filled in when it runs"),
        (misspelt(), "flag 'max-num-seq' of mixed is none of vllm-ascend 0.30.0rc2"),
        (with_env("A B"), "no environment variable"),
        (with_env("HCCL_IF_IP"), "no environment variable of a plan"),
        (with_env("X", 1), "is no text"),
        (with_env("X", "$((LWS_WORKER_INDEX * 4))"), "filled in when it runs"),
        ([ONE.as_dict()], "is no mapping"),
        (None, "is no mapping"),
    ],
)
def test_plans(document: object, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(document))
    refused(run(file, "--dry-run"), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 1\nschema: 1\n", "the key 'schema' is there twice"),
        ('a: "\\ud800"\n', "is no text"),
        ("a: 2020-01-01\n", "no text and no number"),
        ("a: &a [*a]\n", "more than 100,000 parts"),
        ("".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 9)), "a0"),
        (
            "a0: &a0 x\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 9)),
            "more than 100,000 parts",
        ),
        ("[" * 3_000, "no YAML"),
        ("a: 1\n---\nb: 1\n", "no YAML"),
        ("deployment: 3\n", "not numbered from 0"),
    ],
)
def test_texts(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    prefix = "npu_per_node: 16\n" if text.startswith("deploy") else ""
    file.write_text(prefix + text)
    refused(run(file, "--dry-run"), message)


def test_a_reference_that_the_ci_would_fill_in(tmp_path: Path) -> None:
    made = make(
        "a3-752t", 1, role("mixed", (0,), "dp2tp8", 9, **{"chat-template": "a $SERVER_PORT"})
    )
    file = written(made, tmp_path)
    refused(run(file, "--format", "ci", "--dry-run"), "which the CI fills in")
    assert "'a $SERVER_PORT'" in run(file, "--dry-run").stdout


# ----- folders


def test_out_that_cannot_be(tmp_path: Path) -> None:
    file = written(ONE, tmp_path)
    (tmp_path / "f").write_text("mine")
    for out in ("f", "f/g"):
        refused(run(file, "--out", tmp_path / out), "cannot use")
    assert (tmp_path / "f").read_text() == "mine"
    refused(run(tmp_path, "--dry-run"), "Is a directory")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_out_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir(mode=0o555)
    refused(run(written(ONE, tmp_path), "--out", tmp_path / "ro"), "cannot use")


def test_all_files_or_none(tmp_path: Path) -> None:
    """The last file cannot be written: the others are the old ones, and nothing else is left."""
    out = tmp_path / "out"
    (out / "proxy.sh").mkdir(parents=True)
    (out / "node0.sh").write_text("old")
    file = written(SPLIT, tmp_path)
    refused(run(file, "--out", out, *site(SPLIT)), "proxy.sh: Is a directory")
    assert (out / "node0.sh").read_text() == "old"
    assert sorted(path.name for path in out.iterdir()) == ["node0.sh", "proxy.sh"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    mine.write_text("mine")
    (out / "node0.sh").symlink_to(mine)
    assert run(written(ONE, tmp_path), "--out", out).exit_code == 0
    assert mine.read_text() == "mine"
    assert not (out / "node0.sh").is_symlink()


def test_files_of_an_earlier_plan_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(written(SPLIT, tmp_path), "--out", out, *site(SPLIT)).exit_code == 0
    (out / "notes.txt").touch()
    result = run(written(ONE, tmp_path), "--out", out)
    assert result.exit_code == 0
    names = ["node1.sh", "node2.sh", "node3.sh", "proxy.sh"]
    assert result.stderr.splitlines() == [
        f"warning: {out / name} is of an earlier plan" for name in names
    ]
    again = run(written(ONE, tmp_path), "--out", tmp_path / "new")
    assert (again.exit_code, again.stderr) == (0, "")


def test_options_without_effect_are_named(tmp_path: Path) -> None:
    file = written(SPLIT, tmp_path)
    result = run(file, "--format", "k8s", "--dry-run", *site(SPLIT))
    assert result.stderr == "warning: --hosts is not used for k8s\n"
    result = run(file, "--format", "plan", "--dry-run", "--name", "x", "--port", "9000")
    assert result.stderr.splitlines() == [
        "warning: --port is not used for plan",
        "warning: --name is not used for plan",
    ]


def test_the_recipe_of_the_readme(tmp_path: Path) -> None:
    readme = Path(__file__).parents[3] / "deploy" / "README.md"
    (text,) = re.findall(r"```yaml\n(schema: 1\n.*?)```", readme.read_text(), re.DOTALL)
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    assert run(file, "--out", tmp_path / "out").exit_code == 0
    words = ["check", str(tmp_path / "out" / "node0.sh"), "--for", "0.30", "--hw", "a3-752t:1"]
    assert " 0 errors, 0 warnings" in CliRunner().invoke(cli, words).stdout


def test_a_plan_loads_as_it_was_written(tmp_path: Path) -> None:
    for name, made in PLANS.items():
        (tmp_path / name).mkdir()
        assert Plan.load(written(made, tmp_path / name)) == made
