"""Checks of model, memory and port that need no engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from glm5_ascend.deploy.engine import Engine
from glm5_ascend.deploy.preflight import (
    available_memory,
    check_memory,
    check_model,
    check_port,
    free_port,
)
from glm5_ascend.deploy.vllm_args import VllmArgs
from glm5_ascend.errors import CheckpointError, ConfigError, DoesNotFit, ExitCode, PreflightError
from tests.deploy.conftest import CONFIGS

NONE = VllmArgs.parse([])


def test_sound_model_passes(checkpoint: Path) -> None:
    check_model(checkpoint, NONE, Engine.CPU)
    check_model(checkpoint, NONE, Engine.NPU)


def test_weights_are_not_needed_with_a_load_format(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    check_model(tmp_path, VllmArgs.parse(["--load-format=dummy"]), Engine.CPU)


def test_fp8_checkpoint_is_only_for_the_npu(tmp_path: Path) -> None:
    shutil.copyfile(CONFIGS / "GLM-5.2-FP8.json", tmp_path / "config.json")
    (tmp_path / "model.safetensors").touch()
    check_model(tmp_path, NONE, Engine.NPU)
    with pytest.raises(ConfigError, match="holds FP8 weights") as caught:
        check_model(tmp_path, NONE, Engine.CPU)
    assert "quantize" in caught.value.hint


def test_memory(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(5_000_000_000)  # sparse
    needed = 5_000_000_000 + (256 << 20) + (1 << 30)
    check_memory(tmp_path, NONE, needed)
    check_memory(tmp_path, NONE, None)
    with pytest.raises(DoesNotFit, match=r"at least 6\.34 GB .*5\.00 GB of it weights") as caught:
        check_memory(tmp_path, NONE, needed - 1)
    assert caught.value.exit_code == ExitCode.DOES_NOT_FIT
    check_memory(tmp_path, VllmArgs.parse(["--kv-cache-memory-bytes=1024"]), needed - 1)


def test_available_memory_is_the_smaller_limit(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4000 kB\n")
    assert available_memory(tmp_path, tmp_path / "none") == 4000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path, tmp_path) == 4000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("600000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert available_memory(tmp_path, tmp_path) == 450_000
    assert available_memory(tmp_path / "none", tmp_path / "none") is None


def test_free_port_is_free_and_unknown_host_is_named() -> None:
    check_port("127.0.0.1", free_port())
    with pytest.raises(PreflightError, match=r"--host no\.such\.invalid cannot be resolved"):
        check_port("no.such.invalid", 8123)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, ".", "a" * 70 + ".example"])
def test_host_that_is_no_name(host: str) -> None:
    with pytest.raises(PreflightError, match=f"--host {host} cannot be resolved"):
        check_port(host, 8000)


def test_dangling_link_among_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "lost.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"cannot read .*lost\.safetensors: No such file"):
        check_memory(tmp_path, NONE, 1 << 40)


def test_unfinished_quantisation(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "quantize_journal.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has not finished"):
        check_model(tmp_path, NONE, Engine.NPU)


def test_cache_size_in_other_digits_is_left_to_the_engine(tmp_path: Path) -> None:
    for size in ("²", "٣", "1" * 400):
        args = VllmArgs.parse(["--kv-cache-memory-bytes", size])
        with pytest.raises(DoesNotFit, match=r"at least 1\.34 GB"):
            check_memory(tmp_path, args, 0)
