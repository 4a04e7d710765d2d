"""The exact environment and command that start an engine: one object for dry run and real run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.deploy.vllm_args import VllmArgs

# Tens of thousands of tokens of the small model. With an explicit size vLLM skips the warm-up pass
# that would measure memory.
KV_CACHE_BYTES = 256 << 20

# Environment of the CPU engine; a variable that the user has set is left alone.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # two spinning threads on a busy machine are far slower than one
    "OMP_WAIT_POLICY": "passive",  # of more threads the idle ones would spin on a core each
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "THP_MEM_ALLOC_ENABLE": "1",  # weights and caches in large pages: fewer misses of the TLB
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start.

    Attributes:
        environ: variables to add to the caller's environment, only where they differ.
        head: program and model.
        defaults: flags that the user did not give, one group of words per flag.
        user: the user's vLLM flags, verbatim.
        kept: variables of the user's that took the place of a default.
    """

    environ: Mapping[str, str]
    head: tuple[str, ...]
    defaults: tuple[tuple[str, ...], ...]
    user: tuple[str, ...]
    kept: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """The argument vector."""
        return [*self.head, *(word for group in self.defaults for word in group), *self.user]

    def render(self) -> str:
        """Return the launch as text for a POSIX shell, one item a line."""
        lines = [f"{name}={shlex.quote(value)}" for name, value in self.environ.items()]
        lines.append(shlex.join(self.head))
        lines += [shlex.join(group) for group in self.defaults]
        if self.user:
            lines.append(shlex.join(self.user))
        return " \\\n  ".join(["env", *lines] if self.environ else lines)


def npu_launch(model: Path, user: Sequence[str], vllm_command: str) -> Launch:
    """Return ``vllm serve MODEL`` with the user's flags and nothing else."""
    return Launch(
        environ={},
        head=(vllm_command, "serve", str(model)),
        defaults=(),
        user=tuple(user),
        kept={},
    )


def cpu_launch(
    model: Path, user: Sequence[str], environ: Mapping[str, str], op_backend: str = "auto"
) -> Launch:
    """Return the launch of vLLM on CPU through the project's plugin.

    Args:
        model: checkpoint directory.
        user: vLLM flags of the user; each keeps the default of the same name away.
        environ: the caller's environment; a variable in it is never changed, except by an
            explicit ``op_backend``.
        op_backend: operator backend, ``auto`` to leave the choice to the plugin.
    """
    args = VllmArgs.parse(user)
    wanted = dict(CPU_ENVIRONMENT)
    if args.single_process:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    added = {name: value for name, value in wanted.items() if name not in environ}
    kept = {n: environ[n] for n, v in wanted.items() if n in environ and environ[n] != v}
    if op_backend != "auto":
        added["GLM5_ASCEND_OP_BACKEND"] = op_backend
    return Launch(
        environ=added,
        # -P: a folder named vllm or torch in the current directory must not be imported.
        head=(sys.executable, "-P", "-m", "glm5_ascend.simulator", "serve", str(model)),
        defaults=_cpu_flags(model, args, environ),
        user=tuple(user),
        kept=kept,
    )


def _cpu_flags(
    model: Path, args: VllmArgs, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    flags: list[tuple[str, ...]] = []
    if not args.has("--served-model-name"):
        # The folder name for people, the path as given for scripts written for plain `vllm serve`.
        names = dict.fromkeys([model.resolve().name, str(model)])
        flags.append(("--served-model-name", *names))
    if not args.has("--host", "--uds"):
        flags.append(("--host", "127.0.0.1"))
    if not args.has("--enforce-eager"):
        flags.append(("--enforce-eager",))
    sized = args.has("--kv-cache-memory-bytes", "--gpu-memory-utilization")
    if not sized and "VLLM_CPU_KVCACHE_SPACE" not in environ:
        flags.append(("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)))
    # Both parsers look up GLM's special tokens at start-up.
    if has_tokenizer(model) and not args.has("--skip-tokenizer-init"):
        if not args.has("--enable-auto-tool-choice"):
            flags.append(("--enable-auto-tool-choice",))
        if not args.has("--tool-call-parser"):
            flags.append(("--tool-call-parser", "glm47"))
        if not args.has("--reasoning-parser"):
            flags.append(("--reasoning-parser", "glm45"))
    return tuple(flags)


def has_tokenizer(model: Path) -> bool:
    """Return whether the checkpoint brings its tokenizer."""
    return (model / "tokenizer.json").is_file()
