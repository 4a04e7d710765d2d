"""Chips, links, addresses and super-pods, from npu-smi and hccn_tool."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from glm5_ascend.deploy.doctor.machines import Machine
from glm5_ascend.deploy.doctor.result import FAIL, PASS, SKIPPED, Result, Survey, check

# "| 0  910B3  | OK  | …" with the name and health of a card, then a line per die with its memory.
_CARD = re.compile(
    r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(OK|Warning|Alarm|Critical|UNKNOWN|Unknown)\s*\|", re.M
)
_MEMORY = re.compile(r"^\|[^|]*\|\s*[0-9A-Fa-f]{4}:[^|]*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$", re.M)
_PROCESS = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(\S+)\s*\|\s*(\d+)\s*\|", re.M)
_BUSY_MB = 3500
_NO_NPU = "no NPU device node"
_ADDRESS = re.compile(r"ipaddr\s*:\s*(\d+\.\d+\.\d+\.\d+)")
_TLS = re.compile(r"tls switch\[(\d)\]")
_CONF = re.compile(r"^address_(\d+)\s*=\s*(\S+)", re.MULTILINE)


@check
def chips(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        text = machine.text("npu-smi")
        if not text:
            yield Result("chips", machine.host, SKIPPED, _why(machine, "npu-smi"))
            yield Result("free", machine.host, SKIPPED, _why(machine, "npu-smi"))
            continue
        cards = _CARD.findall(text)
        ill = [f"NPU {number} {name} {health}" for number, name, health in cards if health != "OK"]
        if not cards:
            yield Result("chips", machine.host, FAIL, "npu-smi info lists no chip")
        elif ill:
            yield Result("chips", machine.host, FAIL, ", ".join(ill))
        elif len(cards) == 16 and cards[0][1].startswith("910B"):
            yield Result("chips", machine.host, FAIL, f"16 cards of {cards[0][1]} in one box")
        else:
            yield Result("chips", machine.host, PASS, f"{len(cards)} cards of {cards[0][1]}")
        yield _free(machine, text)


def _free(machine: Machine, text: str) -> Result:
    busy = [f"{used} MB in use" for used, _ in _MEMORY.findall(text) if int(used) > _BUSY_MB]
    running = [
        f"NPU {npu}: {name} ({pid}), {size} MB"
        for npu, _, pid, name, size in _PROCESS.findall(text)
    ]
    if running or busy:
        return Result("free", machine.host, FAIL, ", ".join((running or busy)[:4]))
    return Result("free", machine.host, PASS, "no process")


def _why(machine: Machine, tool: str) -> str:
    if not machine.npus:
        return _NO_NPU
    return f"{tool} is not there or failed"


@check
def super_pod(survey: Survey) -> Iterator[Result]:
    pods: dict[str, str] = {}
    for machine in survey.machines:
        for text in machine.devices("spod").values():
            match = re.search(r"Super Pod ID\s*:\s*(\S+)", text, re.IGNORECASE)
            if match:
                pods[machine.host] = match[1]
    if not pods:
        yield Result("super-pod", "", SKIPPED, "no machine reports a super-pod (A2, or no NPU)")
    elif len(set(pods.values())) > 1:
        detail = ", ".join(f"{host}: {pod}" for host, pod in pods.items())
        yield Result("super-pod", "", FAIL, detail)
    else:
        yield Result("super-pod", "", PASS, f"super-pod {next(iter(pods.values()))}")


@check
def links(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        yield _each(machine, "link", "link", r"link status\s*:\s*UP", "is not up")
        wanted = r"health status\s*:\s*Success"
        yield _each(machine, "health", "net_health", wanted, "is not healthy")


def _each(machine: Machine, name: str, section: str, wanted: str, problem: str) -> Result:
    texts = machine.devices(section)
    if not texts:
        return Result(name, machine.host, SKIPPED, _why(machine, "hccn_tool"))
    bad = [npu for npu, text in texts.items() if not re.search(wanted, text, re.IGNORECASE)]
    if bad:
        return Result(name, machine.host, FAIL, f"NPU {', '.join(bad)} {problem}")
    return Result(name, machine.host, PASS, f"{len(texts)} NPUs")


def device_addresses(machine: Machine) -> dict[str, str]:
    """Address of each NPU: of its virtual interface on A3, of its own port on A2."""
    own: dict[str, str] = {}
    for section in ("ip", "vnic"):
        for npu, text in machine.devices(section).items():
            match = _ADDRESS.search(text)
            if match and npu.isdigit():  # it becomes a word of a script
                own[npu] = match[1]
    return own


@check
def addresses(survey: Survey) -> Iterator[Result]:
    owners: dict[str, list[str]] = defaultdict(list)
    for machine in survey.machines:
        found = device_addresses(machine)
        if not found:
            yield Result("address", machine.host, SKIPPED, _why(machine, "hccn_tool"))
        for npu, address in found.items():
            owners[address].append(f"{machine.host} NPU {npu}")
    if owners:
        twice = [f"{a}: {' and '.join(who)}" for a, who in owners.items() if len(who) > 1]
        status = FAIL if twice else PASS
        yield Result("address", "", status, "; ".join(twice) or f"{len(owners)} addresses")


@check
def hccn_conf(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        real = {
            npu: match[1]
            for npu, text in machine.devices("ip").items()
            if (match := _ADDRESS.search(text))
        }
        written = dict(_CONF.findall(machine.text("hccn.conf")))
        if not real:
            yield Result("hccn-conf", machine.host, SKIPPED, _why(machine, "hccn_tool"))
        elif not written:
            detail = "/etc/hccn.conf is missing or has no address"
            yield Result("hccn-conf", machine.host, FAIL, detail)
        else:
            stale = [
                f"address_{npu} is {written.get(npu, 'missing')}, the NPU has {address}"
                for npu, address in real.items()
                if written.get(npu) != address
            ]
            status = FAIL if stale else PASS
            yield Result("hccn-conf", machine.host, status, "; ".join(stale) or f"{len(real)} NPUs")


@check
def tls(survey: Survey) -> Iterator[Result]:
    switches: dict[str, list[str]] = defaultdict(list)
    for machine in survey.machines:
        texts = machine.devices("tls")
        if not texts:
            yield Result("tls", machine.host, SKIPPED, _why(machine, "hccn_tool"))
        for npu, text in texts.items():
            match = _TLS.search(text)
            if match:
                switches[match[1]].append(f"{machine.host} NPU {npu}")
    if len(switches) > 1:
        few = min(switches.values(), key=len)
        detail = f"switch 0 on {len(switches['0'])} NPUs, 1 on {len(switches['1'])}; e.g. {few[0]}"
        yield Result("tls", "", FAIL, detail)
    elif switches:
        yield Result("tls", "", PASS, f"switch {next(iter(switches))} on all NPUs")
