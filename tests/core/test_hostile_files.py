"""Values that no release has: huge, deep, of the wrong kind, and files that are no files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError, ConfigError
from glm5_ascend.files import JOURNAL_FILE
from glm5_ascend.inspection import inspect_checkpoint
from tests.core import micro

DEEP: Any = []
for _ in range(600):
    DEEP = [DEEP]

CONFIGS: dict[str, tuple[str, Any, str]] = {
    "list as a layer's kind": ("indexer_types", ["full", [], "full"], r"has \[\] at layer 1"),
    "object in the pattern": ("index_topk_pattern", ["F", {}, "F"], r"has \{\} at layer 1"),
    "deep pattern": ("index_topk_pattern", DEEP, "has 1 entries for 3 layers"),
    "deep model type": ("model_type", DEEP, "is another model family"),
    "deep size": ("hidden_size", DEEP, "must be an integer"),
    "deep dtype": ("dtype", DEEP, "`dtype` is"),
    "deep switch": ("hidden_act", DEEP, "`hidden_act` is"),
    "deep token": ("eos_token_id", [DEEP], "not a token id"),
    "huge factor": ("routed_scaling_factor", 10**400, "must be finite and positive"),
    "huge size": ("vocab_size", 10**400, "must be at most 2147483647"),
    "tiny size": ("vocab_size", -(10**400), "must be at least 1"),
    "many layers": ("num_hidden_layers", 10**9, "must be at most 1024"),
    "many MTP layers": ("num_nextn_predict_layers", 10**9, "must be at most 1024"),
    "many experts": ("n_routed_experts", 10**9, "must be at most 4096"),
    "another class": ("architectures", ["Foo"], r"`architectures` is \['Foo'\]"),
    "class as a number": ("architectures", 5, "`architectures` is 5"),
    "two classes": ("architectures", ["GlmMoeDsaForCausalLM"] * 2, "`architectures` is"),
    "no class": ("architectures", [], r"`architectures` is \[\]"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_value_of_the_configuration(case: str) -> None:
    key, value, message = CONFIGS[case]
    with pytest.raises(ConfigError, match=message) as caught:
        Glm5Config.from_dict(micro.CONFIG | {key: value}, source="c")
    assert key in caught.value.message
    assert len(caught.value.message) < 400


def test_class_of_the_releases() -> None:
    micro.config(architectures=["GlmMoeDsaForCausalLM"])


def test_experts_of_all_layers_together() -> None:
    with pytest.raises(ConfigError, match="more than 262144 experts"):
        micro.config(num_hidden_layers=1000, n_routed_experts=4000)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_beyond_the_parser(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json is (nested too deeply|not valid JSON)"):
        Glm5Config.from_dir(tmp_path)
    micro.write(tmp_path)
    _header(tmp_path, text)
    with pytest.raises(CheckpointError, match=r"header is (nested too deeply|not valid JSON)"):
        CheckpointReader(tmp_path)


HEADERS: dict[str, tuple[Any, Any, str]] = {
    "list as dtype": ([], [1], "unknown dtype"),
    "object as dtype": ({}, [1], "unknown dtype"),
    "deep dtype": (DEEP, [1], "unknown dtype"),
    "huge axis": ("F32", [10**4000], "malformed shape"),
    "many huge axes": ("F32", [10**18] * 1000, "malformed shape"),
    "large product": ("F32", [10**18] * 30, "its offsets"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_value_of_a_header(case: str, tmp_path: Path) -> None:
    dtype, shape, message = HEADERS[case]
    micro.write(tmp_path)
    _header(tmp_path, json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]}}))
    with pytest.raises(CheckpointError, match=message):
        CheckpointReader(tmp_path)


def _header(directory: Path, text: str) -> None:
    data = text.encode()
    file = directory / "extra.safetensors"
    file.write_bytes(len(data).to_bytes(8, "little") + data + bytes(4))


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00001.safetensors"])
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    micro.write(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises((ConfigError, CheckpointError), match="Not a regular file"):
        CheckpointReader(tmp_path)


@pytest.mark.parametrize("complete", [False, True])
def test_unfinished_quantisation(complete: bool, tmp_path: Path) -> None:
    if complete:
        micro.write(tmp_path)
    (tmp_path / JOURNAL_FILE).write_text("{}")
    for read in (inspect_checkpoint, Glm5Config.from_dir):
        with pytest.raises(CheckpointError, match="has not finished") as caught:
            read(tmp_path)
        assert "--resume" in caught.value.hint


@pytest.mark.torch
def test_name_of_the_journal() -> None:
    from glm5_ascend.quant.journal import JOURNAL

    assert JOURNAL == JOURNAL_FILE
