"""What is read from the user's vLLM flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glm5_ascend.deploy.vllm_args import VllmArgs, whole_number


@pytest.mark.parametrize(
    "args",
    [
        ["--tensor-parallel-size", "2"],
        ["--tensor-parallel-size=2"],
        ["--tensor_parallel_size", "2"],
        ["-tp", "2"],
        ["-tp=2"],
        ["-tp", "1", "--tensor-parallel-size", "2"],
        ["-dp", "2"],
        ["-pp=2"],
        ["-asc", "2"],
    ],
)
def test_more_than_one_process(args: list[str]) -> None:
    assert not VllmArgs.parse(args).single_process


@pytest.mark.parametrize(
    "args",
    [[], ["-tp", "1"], ["--tensor-parallel-size=1", "--data_parallel_size", "1"], ["--port", "2"]],
)
def test_one_process(args: list[str]) -> None:
    assert VllmArgs.parse(args).single_process


def test_values_and_presence() -> None:
    flags = ["--port", "81", "--no-enforce-eager", "--port=82", "--compilation-config.mode", "3"]
    flags += ["--override_generation_config", '{"temperature": -1}', "--offset", "-0.5"]
    args = VllmArgs.parse(flags)
    assert args.value("--port", "0") == "82"
    assert args.has("--enforce-eager")
    assert args.has("--compilation-config")
    assert args.value("--override-generation-config", "") == '{"temperature": -1}'
    assert not args.has("--host", "--uds")


@pytest.mark.parametrize(
    ("args", "url"),
    [
        ([], "http://127.0.0.1:8000"),
        (["--host", "0.0.0.0", "--port", "9"], "http://127.0.0.1:9"),
        (["--host=::"], "http://[::1]:8000"),
        (["--host", "10.0.0.5", "--ssl-keyfile", "k"], "https://10.0.0.5:8000"),
        (["--uds", "/tmp/s"], None),
        (["--headless"], None),
        (["--port", "many"], None),
        (["--port", "70000"], None),
    ],
)
def test_where_the_server_listens(args: list[str], url: str | None) -> None:
    assert VllmArgs.parse(args).url == url


def test_config_file_counts_as_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "host: '0.0.0.0'  # everywhere\nport: 81\nenforce_eager: false\ntrust-remote-code: true\n"
        "compilation-config:\n  port: 99\n"
    )
    args = VllmArgs.parse(["--config", str(file), "--port", "82"])
    assert args.host == "0.0.0.0"
    assert args.port == 82
    assert args.has("--enforce-eager")
    assert args.values["--trust-remote-code"] == ""


def test_unreadable_config_file_is_left_to_vllm(tmp_path: Path) -> None:
    assert VllmArgs.parse(["--config", str(tmp_path / "no.yaml")]).port == 8000


@pytest.mark.parametrize("text", ["²", "٨٠٠٠", "8_0", " 80", "+80", "", "9" * 400, "65536"])
def test_port_that_only_looks_like_a_number(text: str) -> None:
    if text:
        assert VllmArgs.parse(["--port", text]).port is None
    assert whole_number(text) == (65536 if text == "65536" else None)


def test_config_that_is_a_pipe_is_left_to_vllm(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    assert VllmArgs.parse(["--config", str(tmp_path / "c.yaml")]).port == 8000
