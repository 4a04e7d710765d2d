"""Agreement with transformers' own configuration class, and reading what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError

pytestmark = pytest.mark.torch

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))


def hf_config(raw: dict[str, Any]) -> Any:
    from transformers import GlmMoeDsaConfig

    return GlmMoeDsaConfig(**raw)


@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_saves_is_read_as_the_original(name: str, tmp_path: Path) -> None:
    raw = json.loads((CONFIGS / f"{name}.json").read_text())
    hf_config(raw).save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() != (CONFIGS / f"{name}.json").read_text()
    original = Glm5Config.from_dict(raw, source=name)
    assert Glm5Config.from_dir(tmp_path) == original


@pytest.mark.parametrize("complete", [False, True], ids=["difference", "every key"])
def test_every_key_of_the_class_is_known(complete: bool, tmp_path: Path) -> None:
    config = hf_config({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=not complete))
    text = json.loads((tmp_path / "config.json").read_text())
    if complete:
        assert Glm5Config.from_dir(tmp_path).family == "GLM-5/5.1"
    else:
        essential = json.loads((CONFIGS / "GLM-5.json").read_text())
        assert Glm5Config.from_dict(essential | text, source="x").num_hidden_layers == 78


@pytest.mark.parametrize("freq", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("offset", [None, 0, 1, 2, 3, 9])
def test_schedule_is_that_of_transformers(freq: int, offset: int | None) -> None:
    raw = json.loads((CONFIGS / "GLM-5.json").read_text())
    raw |= {"index_topk_freq": freq}
    if offset is not None:
        raw["index_skip_topk_offset"] = offset
    theirs = hf_config(dict(raw)).indexer_types
    if theirs[0] == "shared":
        with pytest.raises(ConfigError, match="layer 0 has a shared indexer"):
            Glm5Config.from_dict(raw, source="x")
        return
    assert list(Glm5Config.from_dict(raw, source="x").indexer_types) == theirs
