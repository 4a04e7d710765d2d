"""Answers of machines with NPUs to the doctor's script.

They are reconstructed from the formats that the documentation of npu-smi, hccn_tool and vllm-ascend
shows: none was recorded on hardware.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BAR = f"+{'=' * 27}+{'=' * 15}+{'=' * 50}+"
_HEAD = (
    "| npu-smi 25.5.0            Version: 25.5.0     |",
    "| NPU   Name                | Health        | Power(W) Temp(C) Hugepages-Usage(page) |",
    "| Chip  Phy-ID              | Bus-Id        | AICore(%) Memory-Usage(MB) HBM-Usage(MB) |",
)


def npu_smi(name: str, cards: int, dies: int) -> str:
    """``npu-smi info``: a card's line, then one per die."""
    lines = [*_HEAD, _BAR]
    for card in range(cards):
        for die in range(dies):
            phy = card * dies + die
            bus = f"0000:{card:02X}:00.{die}"
            lines += [
                f"| {card:<5} {name:<19} | OK            | 93.4     36          0    / 0     |",
                f"| {die:<5} {phy:<19} | {bus}  | 0           0 / 0       3102 / 65536       |",
            ]
        lines.append(_BAR)
    lines.append(
        "| NPU     Chip              | Process id    | Process name | Process memory(MB) |"
    )
    lines += [f"| No running processes found in NPU {card}      |" for card in range(cards)]
    return "\n".join(lines)


@dataclass
class Recorded:
    """Sections of one machine's answer, to be damaged by tests."""

    number: int = 0
    sections: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """What the script would print."""
        return "".join(f"=== {name}\n{body}\n=== rc 0\n" for name, body in self.sections.items())

    def change(self, section: str, old: str, new: str, count: int = 1) -> None:
        """Replace text in a section; it must be there."""
        assert re.search(re.escape(old), self.sections[section]), (section, old)
        self.sections[section] = self.sections[section].replace(old, new, count)


def _per_device(dies: int, text: str, number: int) -> str:
    parts = [f"--- {npu}\n{text.format(npu=npu, host=number + 1)}" for npu in range(dies)]
    return "\n".join(parts)


def server(number: int = 0, chip: str = "A2") -> Recorded:
    """A healthy server; each number has other addresses."""
    dies = 8 if chip == "A2" else 16
    name, cards = ("910B3", 8) if chip == "A2" else ("Ascend910", 8)
    sections = {
        "devices": "\n".join(map(str, range(dies))),
        "npu-smi": npu_smi(name, cards, dies // cards),
        "link": _per_device(dies, "link status: UP", number),
        "net_health": _per_device(dies, "net health status: Success", number),
        "ip": _per_device(dies, "ipaddr:10.20.{host}.1{npu}\nnetmask:255.255.0.0", number),
        "tls": _per_device(
            dies,
            "dev_id:{npu}, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days",
            number,
        ),
        "hccn.conf": "\n".join(
            f"address_{npu}=10.20.{number + 1}.1{npu}\nnetmask_{npu}=255.255.0.0"
            for npu in range(dies)
        ),
        "shm": "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        "tmpfs 536870912 0 536870912 0% /dev/shm",
        "meminfo": "MemTotal: 1583000000 kB\nHugePages_Free: 0\nHugepagesize: 2048 kB",
        "limits": "unlimited\n1048576",
        "governor": "performance",
        "numa_balancing": "0",
        "swappiness": "0",
        "time": "1791000000",
        "user": "0\n0\n1\n1000",
        "addresses": f"2: enp67s0f0 inet 192.168.0.{number + 1}/24 scope global enp67s0f0",
        "listening": "LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\nLISTEN 0 128 127.0.0.1:9000 0.0.0.0:*",
        "driver": "Version=26.0.RC1\nascendhal_version=7.35.23",
        "cann": "# version: 1.0\nruntime_running_version=[9.2.0:9.2.0]",
        "machine": "aarch64",
        "container": "yes",
        "packages": "vllm 0.30.0\nvllm-ascend 0.30.0rc2\ntorch 2.10.0+cpu\n"
        f"torch-npu 2.10.0.post4\nfastapi 0.134.0\ndevice-type {chip}",
        "checkpoint": "0" * 64 + "  config.json\n1000 ./model-00001-of-00002.safetensors\n"
        "900 ./model-00002-of-00002.safetensors",
    }
    if chip == "A3":
        sections["vnic"] = _per_device(
            dies, "vnic ipaddr:172.22.{host}.1{npu}\nvnic netmask:255.255.0.0", number
        )
        sections["spod"] = "\n".join(
            f"--- {card}.0\n    SDID : 37748736\n    Super Pod Size : 384\n    Super Pod ID : 3\n"
            for card in range(cards)
        )
    return Recorded(number, sections)


def answer_pings(script: str) -> str:
    """The answer to a ping script: every pair gets through."""
    pairs = re.findall(r'echo "--- (\d+>[\d.]+)"', script)
    body = "\n".join(
        f"--- {pair}\nrecv seq=0,time=0.4ms\n3 packets transmitted, 3 received, 0.00% packet loss"
        for pair in pairs
    )
    return f"=== ping\n{body}\n=== rc 0\n"
