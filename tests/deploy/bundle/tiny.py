"""An index of wheels that hold one line each, and a docker that writes what it is asked to save."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

PROJECT = "glm5_ascend-9.0-py3-none-any.whl"


def wheel(folder: Path, name: str, version: str, *requires: str, tag: str = "py3-none-any") -> Path:
    """A wheel with the module ``tiny_NAME``."""
    inner = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    files = {
        f"tiny_{name}.py": f"tag = {tag!r}\n",
        f"{inner}/METADATA": "\n".join(lines) + "\n",
        f"{inner}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    for path, text in files.items():
        digest = hashlib.sha256(text.encode()).digest()
        sum_ = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        record += f"{path},sha256={sum_},{len(text)}\n"
    files[f"{inner}/RECORD"] = f"{record}{inner}/RECORD,,\n"
    target = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return target


def index(folder: Path, python: str, archs: tuple[str, ...]) -> dict[str, str]:
    """The project, what it needs and what nobody needs, and pip's settings for it alone."""
    folder.mkdir()
    wheel(folder, "glm5_ascend", "9.0", "stone>=2")
    wheel(folder, "stone", "1.0")
    wheel(folder, "stone", "2.0", "pebble")
    tag = f"cp{python.replace('.', '')}"
    for arch in archs:
        wheel(folder, "pebble", "0.5", tag=f"{tag}-{tag}-manylinux2014_{arch}")
    wheel(folder, "needless", "1.0")
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_CONSTRAINT": "",
    }


DOCKER = """#!/bin/sh
echo "$@" >> "{log}"
[ "$1" = pull ] && [ "$4" = "{broken}" ] && exit 7
[ "$1" = save ] && echo "layers of $4" > "$3"
exit 0
"""


def docker(folder: Path, broken: str = "none") -> Path:
    """A docker whose pull of one image fails; returns where it writes what it was asked."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    (folder / "docker").write_text(DOCKER.format(log=log, broken=broken))
    (folder / "docker").chmod(0o755)
    return log
