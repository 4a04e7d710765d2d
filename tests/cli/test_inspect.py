"""``inspect``: sizes, schemes and cache bytes of plain and quantised checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glm5_ascend.checkpoint import expected_tensors, tensor_bytes
from glm5_ascend.cli import cli
from glm5_ascend.config import Glm5Config
from glm5_ascend.inspection import PARTS, cache_bytes_per_token, inspect_checkpoint, part_of
from tests.core import micro
from tests.core.ascend import quantised

CONFIGS = Path(__file__).parent.parent / "data" / "configs"


def release(name: str) -> Glm5Config:
    return Glm5Config.from_dict(json.loads((CONFIGS / f"{name}.json").read_text()), source=name)


# Published per-token sizes incl. the MTP layer; C8 packs 656 bytes of latent and 130 of key.
@pytest.mark.parametrize(
    ("name", "bf16", "li_c8", "sfa_c8", "both"),
    [
        ("GLM-5.1", 111_232, 101_278, 79 * 656 + 79 * 256, 62_094),
        ("GLM-5.2", 96_640, 93_868, 79 * 656 + 22 * 256, 54_684),
    ],
)
def test_cache_bytes_of_the_releases(
    name: str, bf16: int, li_c8: int, sfa_c8: int, both: int
) -> None:
    assert cache_bytes_per_token(release(name)) == {
        "bf16": bf16,
        "li_c8": li_c8,
        "sfa_c8": sfa_c8,
        "li_c8_sfa_c8": both,
    }


def test_parts_of_a_release() -> None:
    config = release("GLM-5.2")
    parameters = dict.fromkeys(PARTS, 0)
    for name, spec in expected_tensors(config).items():
        width = 4 if spec.dtype == "F32" else 2
        parameters[part_of(config, name)] += tensor_bytes(spec) // width
    # Parameters per part as derived from the published shapes.
    assert parameters["routed_experts"] == 75 * 9_663_676_416
    assert parameters["shared_experts"] == 75 * 37_748_736
    assert parameters["dense_mlp"] == 3 * 226_492_416
    assert parameters["gate"] == 75 * (1_572_864 + 256)
    assert parameters["embed_head"] == 2 * 154_880 * 6144
    assert parameters["indexer"] == 21 * 9_371_904
    assert parameters["attention"] == 78 * (165_022_208 - 2560)
    assert parameters["norms"] == 78 * (2 * 6144 + 2560) + 6144
    assert round(parameters["mtp"] / 1e9, 3) == 9.953
    assert parameters["rotation"] == 0


def inspect_json(directory: Path) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["inspect", str(directory), "--json"])
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_plain_checkpoint(tmp_path: Path) -> None:
    stored = micro.write(tmp_path)
    document = inspect_json(tmp_path)
    assert document["schema"] == 1
    assert document["family"] == "GLM-5.2/5.3"
    assert document["quantisation"] == "none"
    assert document["rotated"] is False
    assert document["tensor_count"] == len(stored)
    total = sum(len(data) for _, data in stored.values())
    assert document["size_bytes"] == total == sum(document["part_bytes"].values())
    assert sum(document["dtype_bytes"].values()) == total
    assert document["dtype_bytes"]["F32"] == 3 * 3 * 4
    assert document["indexer_layers"] == 3
    assert document["scheme_modules"] == {}
    assert document["kv_cache_bytes_per_token"] == {
        "bf16": 4 * (10 + 2) * 2 + 3 * 4 * 2,
        "li_c8": 4 * (10 + 2) * 2 + 3 * (4 + 2),
        "sfa_c8": None,
        "li_c8_sfa_c8": None,
    }
    text = CliRunner().invoke(cli, ["inspect", str(tmp_path)]).stdout
    assert "GLM-5.2/5.3: 3 layers + 1 MTP, 3 with an indexer (top 8)" in text
    assert "not possible" in text


def test_quantised_checkpoint(tmp_path: Path) -> None:
    quantised().write(tmp_path)
    document = inspect_json(tmp_path)
    assert document["quantisation"] == "ascend w4a8"
    assert document["rotated"] is True
    assert document["part_bytes"]["rotation"] == 2 * 16 * 16
    schemes = document["scheme_modules"]
    assert schemes["routed_experts"] == {"W4A8_DYNAMIC": 2 * 3 * 3}
    assert schemes["shared_experts"] == {"W8A8_DYNAMIC": 2 * 3}
    assert schemes["indexer"]["W8A8"] == 2
    assert "W4A8_DYNAMIC x18" in inspect_checkpoint(tmp_path).as_text()


def test_incomplete_quantised_checkpoint_is_an_error(tmp_path: Path) -> None:
    made = quantised()
    made.drop("model.layers.1.mlp.experts.0.up_proj.scale_bias")
    result = CliRunner().invoke(cli, ["inspect", str(made.write(tmp_path))])
    assert result.exit_code == 1
    assert "describe tensor model.layers.1.mlp.experts.0.up_proj.scale_bias" in result.stderr


def test_incomplete_source_is_an_error(tmp_path: Path) -> None:
    stored = micro.tensors(micro.config())
    micro.write(tmp_path, micro.without(stored, ["model.norm.weight"]))
    result = CliRunner().invoke(cli, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    assert "lacks tensor model.norm.weight" in result.stderr
