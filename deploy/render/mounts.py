"""What containers get of the host, and which path can be the checkpoint among it."""

from __future__ import annotations

import posixpath
import stat
from pathlib import Path

from glm5_ascend.deploy.plan_file import PlanError
from glm5_ascend.errors import brief

# vllm-ascend's installation page, and /etc/hccn.conf for the cache transfer (issue #7711).
MOUNTS = (
    "/usr/local/dcmi",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
)
# The image's own: a mount would hide them from its programs. Below some of them lie user's files.
_IMAGES_OWN = (
    *("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt"),
    *("/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/var"),
    *("/usr/bin", "/usr/lib", "/usr/local/Ascend", "/usr/local/bin", "/usr/local/lib"),
    *("/usr/local/python", "/var/lib", "/var/tmp", "/vllm-workspace", "/vllm-workspace/vllm"),
    *("/dev/shm", "/vllm-workspace/vllm-ascend"),
)
_KERNELS = ("/proc/", "/sys/")
_CONFIG = "config.json"
_HINT = "give the folder on the servers that holds config.json and the weights"


def checkpoint_path(path: str) -> str:
    """The path of the checkpoint on the servers, without what does not change its meaning.

    A path that is not on this machine cannot be looked at and is taken as it is.

    Raises:
        PlanError: it is not absolute, a folder of the system, or on this machine something that is
            no checkpoint.
    """
    if not path.startswith("/") or not path.isprintable():
        raise PlanError(f"checkpoint {brief(path)} is no absolute path", _HINT)
    if ".." in path.split("/"):
        raise PlanError(f"checkpoint {brief(path)} has .. in it", "give the path without it")
    plain = "/" + posixpath.normpath(path).lstrip("/")
    below = plain.rstrip("/") + "/"
    hides = next((m for m in MOUNTS if f"{m}/".startswith(below) or below.startswith(f"{m}/")), "")
    if plain == "/" or plain in _IMAGES_OWN or below.startswith(_KERNELS) or hides:
        raise PlanError(f"checkpoint {brief(plain)} is a folder of the system", _HINT)
    _look(plain)
    return plain


def _look(path: str) -> None:
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISDIR(mode):
            raise PlanError(f"checkpoint {brief(path)} is a file on this machine", _HINT)
        if not stat.S_ISREG((Path(path) / _CONFIG).stat().st_mode):
            raise PlanError(f"{_CONFIG} in checkpoint {brief(path)} is no file", _HINT)
    except FileNotFoundError as error:
        if str(error.filename).endswith(f"/{_CONFIG}") and Path(path).is_dir():
            raise PlanError(
                f"checkpoint {brief(path)} is a folder without {_CONFIG} on this machine", _HINT
            ) from error
    except NotADirectoryError as error:
        raise PlanError(
            f"checkpoint {brief(path)} is below a file on this machine", _HINT
        ) from error
    except OSError:
        return  # not for us to see, or too long a name, which the servers will say
