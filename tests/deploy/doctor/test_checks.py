"""Each check passes on healthy machines and fails on the damage that it is for.

The answers of machines are reconstructed from documented formats (``recorded.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from glm5_ascend.deploy.doctor.result import table
from glm5_ascend.deploy.doctor.run import Diagnosis, diagnose
from glm5_ascend.errors import ExitCode, Glm5Error
from tests.deploy.doctor.recorded import Recorded, answer_pings, npu_smi, server

HOSTS = "root@a,root@b"


def run(servers: Mapping[str, Recorded], pings: Callable[[str], str] = answer_pings) -> Diagnosis:
    def ask(host: str, script: str) -> str:
        return pings(script) if "=== ping" in script else servers[host].text()

    return diagnose(
        ",".join(servers), engine="0.30", model="/m", ports=(8000, 30000), ask=ask, environ={}
    )


def statuses(diagnosis: Diagnosis, check: str) -> set[str]:
    return {result.status for result in diagnosis.results if result.check == check}


def pair(chip: str = "A2") -> dict[str, Recorded]:
    return {"root@a": server(0, chip), "root@b": server(1, chip)}


@pytest.mark.parametrize("chip", ["A2", "A3"])
def test_healthy_machines_pass(chip: str) -> None:
    found = run(pair(chip))
    bad = [result for result in found.results if result.status in ("fail", "advice")]
    assert bad == []
    assert found.exit_code is ExitCode.DONE
    skipped = {result.check for result in found.results if result.status == "skipped"}
    assert skipped == {"nic"} | ({"super-pod"} if chip == "A2" else set())
    assert {result.check for result in found.results} == set(table())


def busy(one: Recorded) -> None:
    line = "| No running processes found in NPU 3      |"
    one.change(
        "npu-smi", line, "| 3       0                 | 4242          | python3   | 5000   |"
    )


DAMAGES: dict[str, tuple[str, str, Callable[[Recorded], None]]] = {
    "alarm": ("chips", "A2", lambda one: one.change("npu-smi", "| OK ", "| Alarm ")),
    "sixteen cards": (
        "chips",
        "A2",
        lambda one: one.sections.update({"npu-smi": npu_smi("910B2C", 16, 1)}),
    ),
    "process": ("free", "A2", busy),
    "memory": ("free", "A2", lambda one: one.change("npu-smi", "3102 / 65536", "60000 / 65536")),
    "other super-pod": (
        "super-pod",
        "A3",
        lambda one: one.change("spod", "Super Pod ID : 3", "Super Pod ID : 4", 99),
    ),
    "link down": ("link", "A2", lambda one: one.change("link", "status: UP", "status: DOWN")),
    "unhealthy": ("health", "A2", lambda one: one.change("net_health", "Success", "Fault")),
    "address twice": ("address", "A2", lambda one: one.change("ip", "10.20.2.13", "10.20.2.14")),
    "stale hccn.conf": (
        "hccn-conf",
        "A2",
        lambda one: one.change("hccn.conf", "address_5=10.20.2.15", "address_5=10.20.2.99"),
    ),
    "no hccn.conf": ("hccn-conf", "A2", lambda one: one.sections.update({"hccn.conf": ""})),
    "tls": ("tls", "A2", lambda one: one.change("tls", "switch[0]", "switch[1]")),
    "cann": ("software", "A2", lambda one: one.change("cann", "9.2.0", "8.5.1", 9)),
    "driver": ("software", "A2", lambda one: one.change("driver", "26.0", "24.1")),
    "torch-npu": (
        "software",
        "A2",
        lambda one: one.change("packages", "2.10.0.post4", "2.9.0"),
    ),
    "other vllm": (
        "same-software",
        "A2",
        lambda one: one.change("packages", "vllm 0.30.0", "vllm 0.29.0"),
    ),
    "fastapi": ("fastapi", "A2", lambda one: one.change("packages", "0.134.0", "0.123.9")),
    "image of A3": (
        "device-type",
        "A2",
        lambda one: one.change("packages", "device-type A2", "device-type A3"),
    ),
    "no hccn_tool": ("container", "A2", lambda one: one.sections.pop("link") and None),
    "bridge": (
        "container",
        "A2",
        lambda one: one.sections.update({"addresses": "2: eth0 inet 172.17.0.2/16 eth0"}),
    ),
    "small shm": ("shm", "A2", lambda one: one.change("shm", "536870912 0", "65536 0")),
    "clock": ("clock", "A2", lambda one: one.sections.update({"time": "1791000090"})),
    "user": ("user", "A2", lambda one: one.sections.update({"user": "1001\n0\n1\n1000"})),
    "port": ("ports", "A2", lambda one: one.change("listening", "0.0.0.0:22", "0.0.0.0:30000")),
    "shard size": ("checkpoint", "A2", lambda one: one.change("checkpoint", "900 ", "899 ")),
    "no shards": ("checkpoint", "A2", lambda one: one.sections.update({"checkpoint": "x"})),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_nothing_else(name: str) -> None:
    check, chip, damage = DAMAGES[name]
    servers = pair(chip)
    damage(servers["root@b"])
    found = run(servers)
    failed = {result.check for result in found.results if result.status == "fail"}
    # A version that differs from the release also differs between the machines.
    of_versions = {"software", "same-software", "fastapi", "device-type"}
    also = {check, "same-software"} if check in of_versions else {check}
    also |= {"software"} if check == "same-software" else set()
    also |= {"hccn-conf"} if check == "address" else set()
    assert check in failed
    assert failed <= also
    assert found.exit_code is ExitCode.PREFLIGHT
    rows = [r.as_dict() for r in found.results if r.status == "fail"]
    assert all(row["remedy"] and row["source"] for row in rows)


ADVISED: dict[str, tuple[str, Callable[[Recorded], None]]] = {
    "4 GiB of shm": ("shm", lambda one: one.change("shm", "536870912 0", "4194304 0")),
    "huge pages": ("hugepages", lambda one: one.change("meminfo", "Free: 0", "Free: 1024")),
    "open files": ("limits", lambda one: one.change("limits", "1048576", "1024")),
    "governor": ("tuning", lambda one: one.sections.update({"governor": "powersave"})),
    "balancing": ("tuning", lambda one: one.sections.update({"numa_balancing": "1"})),
}


@pytest.mark.parametrize("name", ADVISED)
def test_advice_is_no_failure(name: str) -> None:
    check, damage = ADVISED[name]
    servers = pair()
    damage(servers["root@a"])
    found = run(servers)
    assert "advice" in statuses(found, check)
    assert found.exit_code is ExitCode.DONE


def test_a_pair_that_does_not_reach_each_other() -> None:
    def lossy(script: str) -> str:
        return answer_pings(script).replace("0.00% packet", "100.00% packet", 1)

    found = run(pair(), lossy)
    details = [r.detail for r in found.results if r.check == "ping" and r.status == "fail"]
    assert details == ["NPU 0 to 10.20.2.10", "NPU 0 to 10.20.1.10"]


@pytest.mark.parametrize(("chip", "topic"), [("A2", "-ping "), ("A3", "-hccs_ping ")])
def test_all_pairs_are_pinged_the_way_of_the_chip(chip: str, topic: str) -> None:
    scripts: list[str] = []

    def record(script: str) -> str:
        scripts.append(script)
        return answer_pings(script)

    run(pair(chip), record)
    dies = 8 if chip == "A2" else 16
    assert [script.count(topic) for script in scripts] == [dies * dies] * 2


def test_words_of_a_machine_do_not_become_commands() -> None:
    servers = pair()
    servers["root@b"].change("ip", "--- 0\n", "--- 0;reboot\n")
    scripts: list[str] = []
    run(servers, lambda script: (scripts.append(script), answer_pings(script))[1])
    assert scripts
    assert not any("reboot" in script for script in scripts)


def test_interface_of_this_machine() -> None:
    one = server()

    def ask(host: str, script: str) -> str:
        return one.text()

    for environ, status in (
        ({"HCCL_IF_IP": "192.168.0.1", "HCCL_SOCKET_IFNAME": "enp67s0f0"}, "pass"),
        ({"HCCL_IF_IP": "192.168.0.7"}, "fail"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "fail"),
        ({}, "skipped"),
    ):
        assert statuses(diagnose(None, ask=ask, environ=environ), "nic") == {status}


def test_without_an_npu_every_npu_check_is_skipped() -> None:
    found = diagnose(None, environ={})
    npu = {"chips", "free", "super-pod", "link", "health", "address", "hccn-conf", "tls", "ping"}
    assert all(statuses(found, check) == {"skipped"} for check in npu)
    assert "no NPU device node" in found.as_text()


def test_hosts_are_words() -> None:
    for text in ("", "a b", "-oProxyCommand=x", "root@a;reboot", "a,$(x)"):
        with pytest.raises(Glm5Error):
            diagnose(text, ask=lambda host, script: "")
