"""Checks before an engine is started: model directory, port, memory."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path

from glm5_ascend.config import Glm5Config
from glm5_ascend.console import format_bytes
from glm5_ascend.deploy.command import KV_CACHE_BYTES
from glm5_ascend.deploy.engine import Engine
from glm5_ascend.deploy.vllm_args import VllmArgs, whole_number
from glm5_ascend.errors import CheckpointError, ConfigError, DoesNotFit, PreflightError, brief
from glm5_ascend.files import file_size

# Interpreter, torch and vLLM in two processes; about this much was measured without the cache.
ENGINE_BYTES = 1 << 30


def check_model(model: Path, args: VllmArgs, engine: Engine) -> None:
    """Check that ``model`` is a GLM-5 checkpoint that ``engine`` can load.

    Raises:
        ConfigError: no such directory, another architecture, or FP8 weights on the CPU engine.
        CheckpointError: the directory holds no weights.
    """
    hint = "give the directory that holds config.json and the weights"
    try:
        mode = model.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot open model {model}: {error.strerror}", hint) from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"model {model} is not a directory", hint)
    config = Glm5Config.from_dir(model)
    if engine is Engine.CPU and config.fp8 is not None:
        raise ConfigError(
            f"{model} holds FP8 weights, which the CPU engine does not read",
            f"convert it first: glm5-ascend quantize {model} DST --scheme w4a8",
        )
    if not args.has("--load-format") and not any(model.glob("*.safetensors")):
        raise CheckpointError(
            f"{model} holds no *.safetensors file", "download or quantise the weights first"
        )


def check_port(host: str, port: int) -> None:
    """Check that a server can listen on ``host:port`` by doing it for a moment.

    Raises:
        PreflightError: the port is taken, or the address is not one of this machine's.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise PreflightError(
            f"--host {host} cannot be resolved: {reason}", "use an address, e.g. 127.0.0.1"
        ) from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PreflightError(
                    f"port {port} on {host} is in use",
                    f"stop the server that listens there, or choose another: --port {port + 1}",
                ) from error
            raise PreflightError(
                f"cannot listen on {host} port {port}: {error.strerror}",
                "choose another --host or --port",
            ) from error


def check_port_number(args: VllmArgs) -> None:
    """Check that ``--port`` is a number of a TCP port, where the server listens on one.

    Raises:
        PreflightError: it is not.
    """
    if args.listens and args.port is None:
        raise PreflightError(
            f"--port {brief(args.value('--port', ''))} is no number from 0 to 65535",
            "give the number in plain digits, e.g. --port 8000",
        )


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def check_memory(model: Path, args: VllmArgs, available: int | None) -> None:
    """Check that the weights as stored, the KV cache and the engine itself fit.

    Args:
        model: checkpoint directory.
        args: the user's flags; ``--kv-cache-memory-bytes`` counts when it is a plain number.
        available: bytes of free memory, ``None`` when unknown.

    Raises:
        DoesNotFit: they do not.
    """
    if available is None:
        return
    weights = sum(file_size(file) for file in model.glob("*.safetensors"))
    given = whole_number(args.value("--kv-cache-memory-bytes", ""))
    cache = KV_CACHE_BYTES if given is None else given
    needed = weights + cache + ENGINE_BYTES
    if needed > available:
        raise DoesNotFit(
            f"serving {model} on CPU needs at least {format_bytes(needed)} of memory "
            f"({format_bytes(weights)} of it weights), {format_bytes(available)} are available",
            "use a smaller model or a machine with more memory; full-size GLM-5 needs NPUs",
        )


def available_memory(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes of memory a new process may take: free in the machine and in the cgroup."""
    limits = []
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            used = int((cgroup / "memory.current").read_text())
            # Page cache counts as used but is given back on demand.
            stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
            limits.append(int(limit) - used + int(stat.get("inactive_file", 0)))
    except FileNotFoundError:  # no cgroup v2, or not Linux
        pass
    return min(limits, default=None)


def check_all(model: Path, args: VllmArgs, engine: Engine) -> None:
    """Run the checks of a real start, cheapest first; see the single checks for the errors."""
    check_model(model, args, engine)
    check_port_number(args)
    if engine is Engine.CPU:
        check_memory(model, args, available_memory())
    if args.port is not None:
        host = args.value("--host", "0.0.0.0" if engine is Engine.NPU else "127.0.0.1")
        check_port(host, args.port)
