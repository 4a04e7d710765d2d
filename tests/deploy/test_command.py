"""The exact environment and command line of each engine."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from glm5_ascend.deploy.command import Launch, cpu_launch, npu_launch

MODEL = Path("/models/GLM 5.2")
HARD = [
    "--speculative-config",
    '{"method": "deepseek_mtp", "num_speculative_tokens": 1}',
    '--additional-config={"it\'s": ["a b", "$HOME", "\\\\n"]}',
    "--chat-template",
    "{{ x }}\nline two",
    "--empty",
    "",
    "-O3",
    "-cc.mode=0",
    "--max_model_len",
    "1k",
]


def test_cpu_launch_as_text() -> None:
    launch = cpu_launch(MODEL, ["-q", "ascend", "--additional-config", '{"a": 1}'], {})
    assert launch.render().replace(sys.executable, "PYTHON") == (
        "env \\\n"
        "  OMP_NUM_THREADS=1 \\\n"
        "  OMP_WAIT_POLICY=passive \\\n"
        "  VLLM_CPU_OMP_THREADS_BIND=nobind \\\n"
        "  THP_MEM_ALLOC_ENABLE=1 \\\n"
        "  VLLM_LOGGING_LEVEL=WARNING \\\n"
        "  HF_HUB_OFFLINE=1 \\\n"
        "  VLLM_NO_USAGE_STATS=1 \\\n"
        "  DO_NOT_TRACK=1 \\\n"
        "  VLLM_ENABLE_V1_MULTIPROCESSING=0 \\\n"
        "  PYTHON -P -m glm5_ascend.simulator serve '/models/GLM 5.2' \\\n"
        "  --served-model-name 'GLM 5.2' '/models/GLM 5.2' \\\n"
        "  --host 127.0.0.1 \\\n"
        "  --enforce-eager \\\n"
        "  --kv-cache-memory-bytes 268435456 \\\n"
        "  -q ascend --additional-config '{\"a\": 1}'"
    )


def test_parsers_are_added_with_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()

    def defaults(*user: str) -> list[str]:
        return [" ".join(group) for group in cpu_launch(tmp_path, user, {}).defaults]

    assert defaults()[-3:] == [
        "--enable-auto-tool-choice",
        "--tool-call-parser glm47",
        "--reasoning-parser glm45",
    ]
    assert "--tool-call-parser glm47" not in defaults("--tool-call-parser=hermes")
    assert "--reasoning-parser glm45" not in defaults("--reasoning_parser", "qwen3")
    assert "--enable-auto-tool-choice" not in defaults("--no-enable-auto-tool-choice")
    assert not any(flag.startswith("--reasoning") for flag in defaults("--skip-tokenizer-init"))


def test_npu_launch_is_plain_vllm_serve() -> None:
    launch = npu_launch(MODEL, HARD, "/bin/vllm")
    assert launch.command == ["/bin/vllm", "serve", str(MODEL), *HARD]
    assert launch.environ == {}
    launch = npu_launch(Path("/m"), ["-tp", "8"], "/bin/vllm")
    assert launch.render() == "/bin/vllm serve /m \\\n  -tp 8"


def test_user_flags_are_verbatim_and_last() -> None:
    command = cpu_launch(MODEL, HARD, {}).command
    assert command[-len(HARD) :] == HARD


@pytest.mark.parametrize(
    ("user", "gone"),
    [
        (["--host", "0.0.0.0"], "--host"),
        (["--uds=/tmp/socket"], "--host"),
        (["--no-enforce-eager"], "--enforce-eager"),
        (["--enforce_eager"], "--enforce-eager"),
        (["--kv_cache_memory_bytes=1"], "--kv-cache-memory-bytes"),
        (["--gpu-memory-utilization", "0.5"], "--kv-cache-memory-bytes"),
        (["--served-model-name", "a", "b"], "--served-model-name"),
    ],
)
def test_a_given_flag_keeps_the_default_away(user: list[str], gone: str) -> None:
    names = {group[0] for group in cpu_launch(MODEL, user, {}).defaults}
    everything = {group[0] for group in cpu_launch(MODEL, [], {}).defaults}
    assert everything - names == {gone}


def test_environment_of_the_user_wins() -> None:
    environ = {"OMP_NUM_THREADS": "4", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    launch = cpu_launch(MODEL, [], environ)
    assert launch.kept == {"OMP_NUM_THREADS": "4"}
    assert not launch.environ.keys() & environ.keys()
    assert "--kv-cache-memory-bytes" not in launch.command


def test_parallel_engines_keep_multiprocessing() -> None:
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in cpu_launch(MODEL, ["-tp", "2"], {}).environ


def test_op_backend_is_passed_by_environment() -> None:
    chosen = cpu_launch(MODEL, [], {"GLM5_ASCEND_OP_BACKEND": "triton"}, "reference")
    assert chosen.environ["GLM5_ASCEND_OP_BACKEND"] == "reference"
    assert "GLM5_ASCEND_OP_BACKEND" not in cpu_launch(MODEL, [], {}, "auto").environ


def test_rendered_text_can_be_pasted_into_a_shell() -> None:
    """A shell gives the program exactly the planned words and variables back."""
    echo = "import os, sys, json; print(json.dumps([sys.argv[1:], os.environ['A']]))"
    launch = Launch(
        environ={"A": "x y'z $HOME"},
        head=(sys.executable, "-c", echo, "serve"),
        defaults=(("--one", "1 2"),),
        user=tuple(HARD),
        kept={},
    )
    done = subprocess.run(["sh", "-c", launch.render()], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == [launch.command[3:], "x y'z $HOME"]
    assert shlex.split(launch.render().replace("\\\n", ""))[2:] == launch.command
