"""The catalogue's data against arithmetic, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from glm5_ascend.config import Glm5Config
from glm5_ascend.deploy.catalogue import (
    CatalogueError,
    Model,
    hardware,
    links,
    model,
    models,
    skus,
    tables,
)
from glm5_ascend.deploy.catalogue.tables import sourced

# The package has a function of the module's name.
catalogue_hardware = sys.modules["glm5_ascend.deploy.catalogue.hardware"]
CONFIGS = Path(__file__).parents[2] / "data" / "configs"


def test_every_sku_has_sourced_numbers_in_a_sane_range() -> None:
    assert {"a2-376t", "a2-313t", "a2-280t", "a3-752t", "a3-560t", "cm384"} <= skus().keys()
    for name, sku in skus().items():
        assert sku.chip in ("A2", "A3", "A5"), name
        assert sku.support in ("full", "limited", "refused"), name
        if sku.support == "full":
            assert 200 < sku.bf16_tflops < sku.int8_tops < 1000, name
            assert 55 < sku.hbm_gib < 64, name
        kinds = ("measured", "published", "modelled", "assumed", "unknown")
        assert all(text.startswith(kinds) for text in sku.source.values()), name
    assert all(link.gbs > 0 for link in links().values())


@pytest.mark.parametrize("name", ["glm-5", "glm-5.1", "glm-5.2", "glm-5.3"])
def test_geometry_equals_the_releases_configuration(name: str) -> None:
    files = {path.stem.lower(): path for path in CONFIGS.glob("*.json")}
    if name not in files:
        pytest.skip(f"no configuration of {name} among the test data")
    config = Glm5Config.from_dict(json.loads(files[name].read_text()), source=name)
    from_file = Model.from_config(config, name)
    known = model(name)
    for key in Model.__slots__:
        if key not in ("title", "source"):
            assert getattr(from_file, key) == getattr(known, key), key


def test_parameters_of_glm5_by_part() -> None:
    glm = model("GLM-5")
    assert glm.down_params == 12_582_912 + 3_538_944
    assert glm.query_params == 33_554_432
    assert glm.absorbed_params == 14_680_064
    assert glm.output_params == 100_663_296
    assert glm.indexer_params == 9_371_904 - 256  # without the norm of the key
    assert glm.expert_params == 37_748_736
    assert glm.moe_layers * glm.experts * glm.expert_params == 76 * 9_663_676_416
    assert model("glm-5.2").indexers == 22
    assert model("deepseek-r1").indexers == 0


def test_a_bare_family_is_its_slowest_sku_and_says_so() -> None:
    for family in ("a2", "a3"):
        found = hardware(family)
        assert found.assumed is not None
        assert found.sku.name in found.assumed
        same = [sku for sku in skus().values() if sku.name.startswith(f"{family}-")]
        assert found.sku.bf16_tflops == min(sku.bf16_tflops for sku in same)
    exact = hardware("A3-752T:4")
    assert (exact.dies, exact.assumed) == (64, None)
    assert hardware("a2:2").dies == 16


@pytest.mark.parametrize("text", ["a4", "a3-752t:0", "a3-752:2", "950pr", "", "a3-752t:", ":2"])
def test_unknown_hardware_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        hardware(text)
    assert caught.value.hint


def test_a_near_miss_is_named() -> None:
    with pytest.raises(CatalogueError, match="no model") as caught:
        model("glm-52")
    assert "glm-5.2" in caught.value.hint
    assert all(m.validation_only == name.startswith("deepseek") for name, m in models().items())


def test_a_new_chip_is_an_entry_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (tables.FOLDER / "hardware.toml").read_text()
    start = text.index("[sku.a3-752t]")
    entry = text[start : text.index("[sku.a3-560t]")]
    new = entry.replace("[sku.a3-752t]", "[sku.a4-900t]").replace("752.0", "900.0")
    (tmp_path / "hardware.toml").write_text(text + "\n" + new)
    found = catalogue_hardware._sku(
        "a4-900t", tables.entries(tables.read("hardware.toml", tmp_path), "sku")["a4-900t"]
    )
    monkeypatch.setattr(catalogue_hardware, "skus", lambda: {"a4-900t": found})
    assert hardware("a4-900t:2").dies == 32
    assert hardware("a4-900t").sku.int8_tops == 900.0


def test_a_number_without_source_is_refused() -> None:
    with pytest.raises(CatalogueError, match="gbs has no source"):
        sourced("x", {"gbs": 1.0, "source": {"latency_us": "published"}}, ("gbs", "latency_us"))
    with pytest.raises(CatalogueError, match="which is not there"):
        sourced("x", {"source": {"gbs": "published", "gs": "published"}}, ("gbs",))
