"""Every NPU of one machine against every NPU of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from glm5_ascend.deploy.doctor.checks_npu import device_addresses
from glm5_ascend.deploy.doctor.machines import Ask, Machine, run_all
from glm5_ascend.deploy.doctor.result import FAIL, PASS, SKIPPED, Result

_GOOD = re.compile(r"\b0(?:\.0+)?% packet loss", re.IGNORECASE)


def script(machine: Machine, others: Sequence[Machine]) -> str:
    """The shell script that pings; all NPUs of the machine work at once."""
    topic = "hccs_ping" if machine.devices("vnic") and not machine.devices("ip") else "ping"
    if any("ipaddr" in text for text in machine.devices("vnic").values()):
        topic = "hccs_ping"
    targets = [a for other in others for a in device_addresses(other).values()]
    lines = ["hccn=$(command -v hccn_tool || echo /usr/local/Ascend/driver/tools/hccn_tool)"]
    for npu in device_addresses(machine):
        asks = "; ".join(
            f'echo "--- {npu}>{target}"; "$hccn" -i {npu} -{topic} -g address {target} 2>&1'
            for target in targets
        )
        lines.append(f"({asks}) > /tmp/glm5-ping.$$.{npu} &")
    lines.append('wait; echo "=== ping"')
    lines += [f"cat /tmp/glm5-ping.$$.{npu}" for npu in device_addresses(machine)]
    lines.append('rm -f /tmp/glm5-ping.$$.*; echo "=== rc 0"')
    return "\n".join(lines) + "\n"


def ping_matrix(machines: Sequence[Machine], ask: Ask) -> Iterator[Result]:
    """Ping from every machine that has NPUs to every other."""
    able = [machine for machine in machines if device_addresses(machine)]
    for machine in machines:
        if machine not in able:
            yield Result("ping", machine.host, SKIPPED, "no NPU address is known")
    if len(able) < 2:
        if able:
            yield Result("ping", able[0].host, SKIPPED, "only one machine has NPUs: name --nodes")
        return
    scripts = {m.host: script(m, [o for o in able if o is not m]) for m in able}
    for answer in run_all([m.host for m in able], scripts, ask):
        if answer.error:
            yield Result("ping", answer.host, FAIL, answer.error)
            continue
        pairs = answer.devices("ping")
        bad = [pair.replace(">", " to ") for pair, text in pairs.items() if not _GOOD.search(text)]
        detail = f"NPU {', '.join(bad[:4])}" if bad else f"{len(pairs)} pairs"
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        yield Result("ping", answer.host, FAIL if bad else PASS, detail + more)
