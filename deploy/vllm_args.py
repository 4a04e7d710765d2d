"""Read what the user's own vLLM flags say, without vLLM's parser.

The flags themselves are passed on verbatim. Only a few of them matter here: those whose presence
keeps a default of ours away, and those that say where the server will listen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.files import open_regular

# Short forms of the flags looked at here.
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-asc": "--api-server-count",
    "-n": "--nnodes",
}
# The engine stays in one process only while all of these are absent or 1.
_WORLD = (
    *_SHORT.values(),
    "--data-parallel-size-local",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
)


def whole_number(text: str) -> int | None:
    """A number in ASCII digits, as a program writes it; None for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


@dataclass(frozen=True, slots=True)
class VllmArgs:
    """Flags by their long, dashed name; of repeated flags the last value counts, as in vLLM."""

    values: dict[str, str]  # "" for a flag without value

    @classmethod
    def parse(cls, args: Sequence[str]) -> VllmArgs:
        """Read ``--flag value``, ``--flag=value``, ``--flag_name``, ``-tp 2`` and ``--config``.

        Prefixes that argparse would complete (``--max-model``) are not recognised: a default of
        ours that comes first is then simply overridden by the user's flag behind it.
        """
        values: dict[str, str] = {}
        config: str | None = None
        for position, arg in enumerate(args):
            if not re.match(r"--?[A-Za-z]", arg):
                continue
            name, equals, value = arg.partition("=")
            if not equals:
                following = args[position + 1] if position + 1 < len(args) else ""
                value = "" if following.startswith("-") else following
            name = _SHORT.get(name, name.replace("_", "-")).split(".", 1)[0]
            values[name] = value
            if name == "--config":
                config = value
        if config is not None:
            values = _config_keys(Path(config)) | values
        return cls(values)

    def has(self, *names: str) -> bool:
        """True when one of the flags is given, plainly or in its ``--no-`` form."""
        return any(n in self.values or n.replace("--", "--no-", 1) in self.values for n in names)

    def value(self, name: str, default: str) -> str:
        """Return the value of a flag, or ``default`` when it is absent or has none."""
        return self.values.get(name) or default

    @property
    def single_process(self) -> bool:
        """True when the flags ask for one rank and one API server on one machine."""
        return all(self.value(name, "1") == "1" for name in _WORLD)

    @property
    def host(self) -> str:
        """Address that the server will bind, once the defaults of ours are in."""
        return self.value("--host", "127.0.0.1")

    @property
    def listens(self) -> bool:
        """Whether the flags ask for an HTTP server on a TCP port."""
        return not self.has("--uds", "--headless", "--grpc")

    @property
    def port(self) -> int | None:
        """Port of the HTTP server; ``None`` where none is listened on or it is not valid."""
        number = whole_number(self.value("--port", "8000"))
        if not self.listens or number is None:
            return None
        return number if number < 65536 else None

    @property
    def url(self) -> str | None:
        """Where to reach the server from this machine; ``None`` when it has no HTTP port."""
        if self.port is None:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "https" if self.has("--ssl-keyfile", "--ssl-certfile") else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


def _config_keys(path: Path) -> dict[str, str]:
    """Read the top-level scalars of vLLM's ``--config`` YAML file.

    vLLM turns each key into a flag. A missing or malformed file is left for vLLM to report.
    """
    try:
        with open_regular(path) as stream:
            text = stream.read().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    values: dict[str, str] = {}
    for match in re.finditer(r"^([A-Za-z][\w-]*)\s*:[ \t]*([^#\n]*)", text, re.MULTILINE):
        name, value = match[1].replace("_", "-"), match[2].strip().strip("'\"")
        if value == "false":
            values[f"--no-{name}"] = ""
        else:
            values[f"--{name}"] = "" if value == "true" else value
    return values
