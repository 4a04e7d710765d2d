"""Words of ``docker run`` and its relatives: image, variables, devices, mounts, and the command."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from glm5_ascend.deploy.check.context import Launch

_PROGRAMS = ("docker", "podman", "nerdctl")
_DEVICE = re.compile(r"/dev/davinci(\d+)(?:$|:)")
# Options of docker run that take no value.
_SWITCHES = (
    *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-itd", "-dit", "-td"),
    *("--rm", "--privileged", "--init"),
)


def read_container(words: Sequence[str]) -> tuple[Launch, dict[str, str], list[str]] | None:
    """What ``docker run …`` starts: the launch, its variables and the words in the container.

    None where the words are no ``docker run``.
    """
    if not words or os.path.basename(words[0]) not in _PROGRAMS or "run" not in words[:3]:
        return None
    env: dict[str, str] = {}
    devices: list[int] = []
    mounts: list[str] = []
    network, privileged, entry = "", False, ""
    position = list(words).index("run") + 1
    while position < len(words) and words[position].startswith("-"):
        flag, equals, value = words[position].partition("=")
        position += 1
        if not equals and flag not in _SWITCHES and position < len(words):
            value = words[position]
            position += 1
        privileged |= flag == "--privileged"
        if flag in ("-e", "--env"):
            name, _, content = value.partition("=")
            env[name] = content
        elif flag in ("--net", "--network"):
            network = value
        elif flag == "--device" and (match := _DEVICE.match(value)):
            devices.append(int(match[1]))
        elif flag in ("-v", "--volume", "--mount"):
            mounts.append(value.split(":")[0])
        elif flag == "--entrypoint":
            entry = value
    image = words[position] if position < len(words) else ""
    inner = ([entry] if entry else []) + list(words[position + 1 :])
    listed = tuple(devices) if devices and not privileged else None
    return Launch(image, network == "host", listed, tuple(mounts)), env, inner
