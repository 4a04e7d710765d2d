"""Host, container, software and checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from glm5_ascend.deploy.doctor.machines import LOCAL, Machine
from glm5_ascend.deploy.doctor.result import ADVICE, FAIL, PASS, SKIPPED, Result, Survey, check

_GIB_KB = 1 << 20
_SHM_LEAST, _SHM_WANTED = 1, 16
_FILES = 65_536
_CLOCK_SECONDS = 5
_NIC_NAMES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_CHIP_NAMES = {"910B": "A2", "910_93": "A3", "910C": "A3", "ascend910": "A3", "950": "A5"}


@check
def software(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        have = _packages(machine)
        if not have:
            yield Result("software", machine.host, SKIPPED, "no vLLM or torch in python3 there")
            continue
        if survey.release is None:
            yield Result("software", machine.host, SKIPPED, "no release was named: --for VERSION")
            continue
        wrong = list(_mismatches(machine, have, survey))
        status = FAIL if wrong else PASS
        yield Result("software", machine.host, status, "; ".join(wrong) or survey.release.text)


def _packages(machine: Machine) -> dict[str, str]:
    lines = machine.text("packages").splitlines()
    return dict(line.split(None, 1) for line in lines if " " in line)


def _mismatches(machine: Machine, have: dict[str, str], survey: Survey) -> Iterator[str]:
    assert survey.release is not None
    row = survey.release.software
    wanted = {
        "vllm-ascend": survey.release.text,
        "vllm": survey.release.vllm,
        "torch": row["torch"],
        "torch-npu": row["torch_npu"],
    }
    for name, version in wanted.items():
        plain = have.get(name, "").partition("+")[0]
        if plain and plain != version.partition("+")[0]:
            yield f"{name} {have[name]}, the release wants {version}"
    cann = re.search(r"\d+\.\d+\.(?:\d+|RC\d+)", machine.text("cann"), re.IGNORECASE)
    if cann and cann[0] != row["cann"]:
        yield f"CANN {cann[0]}, the release wants {row['cann']}"
    driver = re.search(r"(\d+)\.(\d+)", machine.text("driver"))
    if driver and "hdk" in row and int(driver[1]) < int(row["hdk"].partition(".")[0]):
        yield f"driver {driver[0]}, the release wants {row['hdk']}"


@check
def same_software(survey: Survey) -> Iterator[Result]:
    if len(survey.machines) < 2:
        return
    versions: dict[str, dict[str, str]] = defaultdict(dict)
    for machine in survey.machines:
        entries = _packages(machine)
        for section in ("driver", "cann"):
            found = re.search(r"\d+\.\d+[\w.]*", machine.text(section))
            entries |= {section: found[0]} if found else {}
        for name, version in entries.items():
            versions[name][machine.host] = version
    differ = [
        f"{name}: {', '.join(f'{h} {v}' for h, v in hosts.items())}"
        for name, hosts in versions.items()
        if len(set(hosts.values())) > 1
    ]
    if versions:
        status = FAIL if differ else PASS
        yield Result("same-software", "", status, "; ".join(differ) or f"{len(versions)} parts")
    else:
        yield Result("same-software", "", SKIPPED, "no versions are known")


@check
def build(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        have = _packages(machine)
        fastapi = re.match(r"(\d+)\.(\d+)", have.get("fastapi", ""))
        vllm = re.match(r"(\d+)\.(\d+)", have.get("vllm", ""))
        if fastapi and vllm and int(vllm[2]) >= 30:
            status = PASS if 133 <= int(fastapi[2]) < 137 else FAIL
            yield Result("fastapi", machine.host, status, f"fastapi {have['fastapi']}")
        text, built = machine.text("npu-smi"), have.get("device-type")
        names = [chip for name, chip in _CHIP_NAMES.items() if name.lower() in text.lower()]
        if built and names:
            status = PASS if built.upper() == names[0] else FAIL
            detail = f"built for {built}, the chips are {names[0]}"
            yield Result("device-type", machine.host, status, detail)
        else:
            yield Result("device-type", machine.host, SKIPPED, "vllm-ascend or npu-smi is missing")


@check
def container(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        if machine.text("container").strip() != "yes":
            yield Result("container", machine.host, SKIPPED, "not inside a container")
            continue
        if not machine.npus:
            yield Result("container", machine.host, SKIPPED, "no NPU device node")
            continue
        lacks = [] if machine.text("hccn.conf") else ["/etc/hccn.conf"]
        lacks += [] if machine.devices("link") else ["hccn_tool"]
        bridged = re.search(r"\beth0\b.*\b172\.1[67]\.", machine.text("addresses"))
        lacks += ["the host's network"] if bridged else []
        status = FAIL if lacks else PASS
        yield Result(
            "container", machine.host, status, f"lacks {', '.join(lacks)}" if lacks else ""
        )


@check
def memory(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        row = re.search(r"\s(\d+)\s+\d+\s+\d+\s+\d+%\s+/dev/shm", machine.text("shm"))
        if row:
            gib = int(row[1]) / _GIB_KB
            status = FAIL if gib < _SHM_LEAST else ADVICE if gib < _SHM_WANTED else PASS
            yield Result("shm", machine.host, status, f"/dev/shm has {gib:.1f} GiB")
        else:
            yield Result("shm", machine.host, SKIPPED, "/dev/shm is not there")
        info = dict(re.findall(r"^(\w+):\s+(\d+)", machine.text("meminfo"), re.MULTILINE))
        pages, size = int(info.get("HugePages_Free", 0)), int(info.get("Hugepagesize", 0))
        held = pages * size / _GIB_KB
        status = ADVICE if held > 0 else PASS
        yield Result("hugepages", machine.host, status, f"{held:.0f} GiB reserved and unused")


@check
def host(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        words = machine.text("limits").split()
        if len(words) == 2:
            files = words[1] == "unlimited" or int(words[1]) >= _FILES
            good = words[0] == "unlimited" and files
            detail = f"memlock {words[0]}, open files {words[1]}"
            yield Result("limits", machine.host, PASS if good else ADVICE, detail)
        slow = [
            f"{name} {value}"
            for name, wanted in (("governor", "performance"), ("numa_balancing", "0"))
            if (value := machine.text(name).strip()) and value != wanted
        ]
        detail = ", ".join(slow)
        yield Result("tuning", machine.host, ADVICE if slow else PASS, detail)
        ids = machine.text("user").split()
        if ids:
            status = PASS if ids[0] in ids[1:] else FAIL
            yield Result("user", machine.host, status, f"UID {ids[0]}")


@check
def clock(survey: Survey) -> Iterator[Result]:
    times = {m.host: int(m.text("time")) for m in survey.machines if m.text("time").strip()}
    if len(times) > 1:
        spread = max(times.values()) - min(times.values())
        status = FAIL if spread > _CLOCK_SECONDS else PASS
        yield Result("clock", "", status, f"{spread} s apart")


@check
def network(survey: Survey) -> Iterator[Result]:
    for machine in survey.machines:
        text = machine.text("addresses")
        names = {n: v for n in _NIC_NAMES if (v := survey.environ.get(n, ""))}
        address = survey.environ.get("HCCL_IF_IP", "")
        if machine.host != LOCAL or not (names or address):
            yield Result(
                "nic", machine.host, SKIPPED, "HCCL_IF_IP and HCCL_SOCKET_IFNAME are unset"
            )
        else:
            wrong = [f"no interface {v} ({n})" for n, v in names.items() if not _has(text, v)]
            if address and not re.search(rf"\b{re.escape(address)}\b", text):
                wrong.append(f"no interface has {address} (HCCL_IF_IP)")
            status = FAIL if wrong else PASS
            yield Result("nic", machine.host, status, "; ".join(wrong) or address)
        yield _ports(machine, survey)


def _has(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name.lstrip('=^'))}\b", text) is not None


def _ports(machine: Machine, survey: Survey) -> Result:
    if not survey.ports:
        return Result("ports", machine.host, SKIPPED, "no port was named: --port N")
    listening = {int(port) for port in re.findall(r":(\d+)\s", machine.text("listening"))}
    taken = [str(port) for port in survey.ports if port in listening]
    status = FAIL if taken else PASS
    return Result("ports", machine.host, status, f"{', '.join(taken)} in use" if taken else "")


@check
def checkpoint(survey: Survey) -> Iterator[Result]:
    if not survey.wants_model:
        yield Result("checkpoint", "", SKIPPED, "no checkpoint was named: --model DIR")
        return
    texts = {machine.host: machine.text("checkpoint").strip() for machine in survey.machines}
    for name, text in texts.items():
        if "config.json" not in text or ".safetensors" not in text:
            yield Result("checkpoint", name, FAIL, "no config.json or no safetensors file there")
    complete = {name: text for name, text in texts.items() if ".safetensors" in text}
    if len(set(complete.values())) > 1:
        first, *others = complete
        differ = [name for name in others if complete[name] != complete[first]]
        lines = set(complete[first].splitlines()) ^ set(complete[differ[0]].splitlines())
        files = sorted({line.split()[-1] for line in lines})
        detail = f"{', '.join(differ)} differs from {first}: {', '.join(files[:4])}"
        yield Result("checkpoint", "", FAIL, detail)
    elif complete:
        count = next(iter(complete.values())).count(".safetensors")
        yield Result("checkpoint", "", PASS, f"{count} lines about shards, alike everywhere")
