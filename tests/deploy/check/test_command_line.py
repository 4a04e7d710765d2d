"""Reading and changing one command; words are compared with what the shell's own rules give."""

from __future__ import annotations

import shlex

import pytest

from glm5_ascend.deploy.check.command_line import ServeCommand

LINE = """A=1 B='x y' vllm serve /m/GLM-5.2 -tp 8 --max_model_len=128k --enable-expert-parallel
--attention_config.indexer_kv_dtype int8 --served-model-name a b
--additional-config '{"enable_dsa_cp": true, "scheduler_config": {}}' --no-enable-prefix-caching"""


def parsed(line: str = LINE) -> ServeCommand:
    return ServeCommand.parse(shlex.split(line), switches={"--enable-expert-parallel"})


def test_reads_every_form_of_a_flag() -> None:
    command = parsed()
    assert (command.model, command.env) == ("/m/GLM-5.2", {"A": "1", "B": "x y"})
    assert command.whole("--tensor-parallel-size", 1) == 8
    assert command.whole("--max-model-len", 0) == 128000
    assert command.switch("--enable-expert-parallel")
    assert not command.switch("--enable-prefix-caching", True)
    assert command.json("--attention-config") == {"indexer_kv_dtype": "int8"}
    assert command.json("--additional-config")["enable_dsa_cp"] is True
    served = command.option("--served-model-name")
    assert served is not None
    assert served.values == ("a", "b")


def test_words_come_back_as_they_were() -> None:
    assert parsed().to_argv() == shlex.split(LINE)[2:]
    rendered = parsed().render().replace("\\\n", " ")  # shlex knows no continued lines
    assert ServeCommand.parse(shlex.split(rendered)) == ServeCommand.parse(shlex.split(LINE))


@pytest.mark.parametrize("line", ["vllm serve --enable-expert-parallel M", "vllm serve --model M"])
def test_model_behind_the_flags(line: str) -> None:
    command = parsed(line)
    assert command.model == "M"
    assert sorted(command.to_argv()) == sorted(shlex.split(line))


def test_changes_keep_place_and_spelling() -> None:
    command = parsed("vllm serve M --max_model_len=8 --seed 1 --max_model_len=9")
    changed = command.with_flag("--max-model-len", 7).with_flag("--headless", True)
    assert changed.to_argv()[3:] == ["--seed", "1", "--max_model_len=7", "--headless"]
    assert command.without("--max-model-len").to_argv()[2:] == ["M", "--seed", "1"]


def test_json_changes_swallow_dotted_keys() -> None:
    changed = parsed().with_json("--attention-config", {"indexer_kv_dtype": "fp8"})
    assert changed.json("--attention-config") == {"indexer_kv_dtype": "fp8"}
    assert "--attention_config.indexer_kv_dtype" not in changed.to_argv()
    assert not changed.with_json("--attention-config", {}).given("--attention-config")


def test_build_writes_each_kind_of_value() -> None:
    flags = {"port": 1, "headless": True, "x": False, "none": None, "c": {"a": [1]}, "n": ["p", 2]}
    command = ServeCommand.build("M", flags, {"E": "1"})
    words = ["--port", "1", "--headless", "--no-x", "--c", '{"a":[1]}', "--n", "p", "2"]
    assert command.to_argv() == ["vllm", "serve", "M", *words]
    assert command.render().startswith("E=1 \\\n  vllm serve M")


def test_dotted_lists_add_up() -> None:
    command = parsed("vllm serve M --c.sizes+ 1 --c.sizes+ 2 --c.mode full")
    assert command.json("--compilation-config") == {}
    assert command.json("--c") == {"sizes": [1, 2], "mode": "full"}
