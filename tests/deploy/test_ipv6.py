"""IPv6 addresses: one error wherever a plan's servers are named, support where one URL is."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.addresses import is_ipv6
from glm5_ascend.deploy.doctor.machines import parse_nodes
from glm5_ascend.errors import Glm5Error
from tests.deploy.accept import fake
from tests.deploy.http_server import running
from tests.deploy.render.plans import HOSTS, PLANS, site, written

SPLIT = PLANS["split"]
MIXED = ",".join([*HOSTS[:3], "2001:db8::4"])
NIC = ["--nic", "eth0"]


def refused(*words: object) -> None:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    error, hint = result.stderr.splitlines()[-2:]
    assert (result.exit_code, result.stdout) == (1, "")
    assert error == "error: '2001:db8::4' is an IPv6 address"
    assert hint.startswith("hint: plans are rendered for IPv4 only")


def test_every_command_that_names_a_plans_servers(tmp_path: Path) -> None:
    plan = written(SPLIT, tmp_path)
    refused("render", plan, "--hosts", MIXED, *NIC, "--dry-run")
    refused("render", plan, "--hosts", MIXED, *NIC, "--format", "k8s", "--out", tmp_path / "k")
    refused("bundle", plan, "--hosts", MIXED, *NIC, "--dry-run")
    refused("endpoint", plan, "--hosts", MIXED, "--dry-run")
    refused("serve", "--plan", plan, "--node-rank", 0, "--hosts", MIXED, *NIC, "--dry-run")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_a_ci_file(tmp_path: Path) -> None:
    plan = written(SPLIT, tmp_path)
    words = ["render", str(plan), *site(SPLIT), "--format", "ci", "--dry-run"]
    text = CliRunner().invoke(cli, words).stdout
    document = yaml.safe_load(text)
    document["cluster_hosts"] = MIXED.split(",")
    ci = tmp_path / "ci.yaml"
    ci.write_text(yaml.safe_dump(document))
    refused("render", ci, *NIC, "--dry-run")


def test_a_domain(tmp_path: Path) -> None:
    words = ["endpoint", str(written(SPLIT, tmp_path)), "--hosts", ",".join(HOSTS), "--dry-run"]
    result = CliRunner().invoke(cli, [*words, "--domain", "[2001:db8::4]"])
    assert result.exit_code == 1
    assert "error: --domain '[2001:db8::4]' is an IPv6 address" in result.stderr


class Endpoint(fake.Endpoint):
    """The same on the IPv6 loopback."""

    address_family: ClassVar[int] = socket.AF_INET6

    def server_bind(self) -> None:
        self.server_address = ("::1", 0)
        super().server_bind()


@pytest.mark.parametrize("tail", ["", "/v1"])
def test_accept(tail: str) -> None:
    try:
        server = Endpoint("")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with running(server):
        url = f"http://[::1]:{server.server_address[1]}{tail}"
        result = CliRunner().invoke(cli, ["accept", url])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "go")
    wrong = CliRunner().invoke(cli, ["accept", "http://::1:8000"])
    assert wrong.exit_code == 1
    assert wrong.stderr.splitlines()[0].startswith("error: ")


def test_doctor_gives_ssh_plain_addresses() -> None:
    assert parse_nodes("root@[2001:db8::1],fe80::2%eth0") == [
        "root@2001:db8::1",
        "root@fe80::2%eth0",
    ]
    for bad in (
        "root@[2001:db8::1",
        "[abc",
        "::::",
        "-oProxyCommand=x",
        "root@::1:22:x",
        "fe80::1%$(id)",
    ):
        with pytest.raises(Glm5Error, match="is no host"):
            parse_nodes(bad)


@pytest.mark.parametrize("text", ["::", "::1", "[::1]", "fe80::1%eth0", "2001:db8::1"])
def test_addresses(text: str) -> None:
    assert is_ipv6(text)
    assert not any(map(is_ipv6, ("", "10.0.0.1", "abc", "1:2", "n1", "[10.0.0.1]")))
