"""Flags against the checkpoint that they serve: the header-level verifier inside ``check``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.examine import examine, mend_all
from glm5_ascend.errors import CheckpointError

MTP = {"num_speculative_tokens": 1, "method": "mtp", "enforce_eager": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "small"
    shutil.copytree(SMALL_MODEL, target)
    return target


def context(folder: Path, **flags: object) -> Context:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    command = ServeCommand.build(str(folder), named)
    return Context(command, release("0.30"), directory=folder)


def rules(one: Context) -> set[str]:
    return {f.rule for f in examine([one]) if f.rule.startswith("checkpoint")}


def test_a_good_checkpoint_passes(folder: Path) -> None:
    assert rules(context(folder, speculative_config=MTP)) == set()


def test_quantisation_without_a_description(folder: Path) -> None:
    one = context(folder, quantization="ascend")
    assert "checkpoint-format" in rules(one)
    assert not mend_all([one])[0].given("--quantization")


def test_what_verify_says_is_passed_on(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    found = [f for f in examine([context(folder)]) if f.rule == "checkpoint"]
    assert found
    assert "index" in found[0].message
    assert found[0].where.item == "index-foreign"


def test_drafts_without_an_mtp_layer(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    assert "checkpoint-mtp" in rules(context(folder, speculative_config=MTP))
    assert "checkpoint-mtp" not in rules(context(folder))


def test_int8_keys_without_marks(folder: Path) -> None:
    described = {"version": "1.0.0", "group_size": 0}
    path = folder / "quant_model_description.json"
    path.write_text(json.dumps(described))
    asks = {"attention_config": {"indexer_kv_dtype": "int8"}}
    assert "checkpoint-c8" in rules(context(folder, **asks))
    assert "checkpoint-c8" not in rules(context(folder))
    marked = {**described, "model.layers.0.self_attn.indexer.quant_type": "INT8_DYNAMIC"}
    path.write_text(json.dumps(marked))
    assert "checkpoint-c8" not in rules(context(folder, **asks))


def test_no_checkpoint_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        examine([context(tmp_path)])
