"""Plans of the full-size releases from headers alone: counts, sizes, and the estimate."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.cli import cli
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError, ExitCode
from glm5_ascend.quant import dry_run
from glm5_ascend.quant.calibration.cost import cost_of
from glm5_ascend.quant.calibration.options import CalibrationOptions
from glm5_ascend.quant.command import QuantizeOptions
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe_file import preset
from tests.quant.conftest import contents, quantize, tensors_of
from tests.support.header_only import glm5_specs, write_headers
from tests.support.tiny_config import tiny_config

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
RATES = {"int4": 1e7, "int8": 2e7, "float": 4e7, "hash": 1e9, "read": 2e9, "write": 1e9}

# Tensors, bytes and files of the published releases; 5.2 and 5.3 differ in text only.
RELEASES = {
    "GLM-5": (59_870, 1_507_728_316_928, 282),
    "GLM-5.2": (59_585, 1_506_659_919_872, 282),
    "GLM-5-FP8": (119_028, None, 141),
    "GLM-5.3": (118_629, 755_617_140_416, 141),
}


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("headers")
    for name, (_, _, files) in RELEASES.items():
        config = json.loads((CONFIGS / f"{name}.json").read_text())
        write_headers(directory / name, config, glm5_specs(config), files=files)
    return directory


def plan(source: Path, tmp_path: Path, **options: Any) -> dry_run.DryRun:
    return dry_run.run(QuantizeOptions(source, tmp_path / "out", **options), RATES)


@pytest.fixture(scope="module")
def planned(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dry_run.DryRun]:
    """W4A8 with four workers, and the processor time that each plan took."""
    out = tmp_path_factory.mktemp("out")
    plans = {}
    for name in RELEASES:
        started = time.process_time()
        plans[name] = plan(headers / name, out, scheme="w4a8", workers=4)
        # The limit is 30 s; here without the few matrices that are tried for rates.
        assert time.process_time() - started < 20
    assert list(out.iterdir()) == []
    return plans


@pytest.mark.parametrize("name", RELEASES)
def test_releases(name: str, planned: dict[str, dry_run.DryRun]) -> None:
    count, size, files = RELEASES[name]
    found = planned[name]
    assert found.source_tensors == count
    assert size is None or found.source_bytes == size
    assert found.headers_only == files
    # Published: routed experts are 75 x 9 663 676 416 weights, two per byte, with three F32
    # numbers per row of gate and up, and 18 per row of down.
    rows = 75 * 256 * (2 * 2048 * 3 + 6144 * 18)
    assert found.schemes["W4A8_DYNAMIC"] == 75 * 9_663_676_416 // 2 + 4 * rows
    assert found.parts["routed_experts"][1] == found.schemes["W4A8_DYNAMIC"]
    assert 400e9 < found.output_bytes < 420e9
    assert found.largest_file <= 4 << 30
    assert (found.exit_code is ExitCode.DONE) is (found.free_bytes >= found.needed_bytes)


def test_fp8_and_bf16_sources_give_the_same(planned: dict[str, dry_run.DryRun]) -> None:
    assert planned["GLM-5.3"].output_bytes == planned["GLM-5.2"].output_bytes
    assert planned["GLM-5.3"].source_bytes < 0.51 * planned["GLM-5.2"].source_bytes


def test_other_choices_of_a_release(planned: dict[str, dry_run.DryRun]) -> None:
    raw = json.loads((CONFIGS / "GLM-5.2.json").read_text())
    config = Glm5Config.from_dict(raw, source="GLM-5.2")
    int8 = make_plan(config, preset("w8a8"))
    assert 755e9 < int8.nbytes < 765e9
    float_mtp = make_plan(config, replace(preset("w4a8"), mtp="float"))
    # 9.66 billion weights of the MTP layer's experts, and some linears, in two bytes or in one.
    assert 9.5e9 < float_mtp.nbytes - planned["GLM-5.2"].output_bytes < 10.5e9


def test_time_follows_from_the_rates(planned: dict[str, dry_run.DryRun]) -> None:
    found = planned["GLM-5.2"]
    int4 = 75 * 9_663_676_416 / RATES["int4"]
    hashing = 3 * found.output_bytes / RATES["hash"]
    assert int4 + hashing < found.core_seconds < 1.05 * (int4 + hashing)
    disk = found.source_bytes / RATES["read"] + found.output_bytes / RATES["write"]
    assert found.disk_seconds == pytest.approx(disk)
    assert found.seconds == pytest.approx(found.core_seconds / 4)
    assert set(found.sources.values()) == {"given"}


def test_partial_blocks_in_the_headers() -> None:
    specs = glm5_specs(json.loads((CONFIGS / "GLM-5.3.json").read_text()))
    assert specs["model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"][0] == (5, 48)


def test_sparse_files_of_full_size(tmp_path: Path) -> None:
    config = tiny_config("5.2", moe_intermediate_size=6144, vocab_size=20480)
    specs = glm5_specs(config)
    write_headers(tmp_path / "source", config, specs, files=3, sparse=True)
    found = plan(tmp_path / "source", tmp_path)
    assert found.headers_only == 0
    widths = {"BF16": 2, "F32": 4}
    wanted = sum(math.prod(shape) * widths[dtype] for shape, dtype in specs.values())
    assert found.source_bytes == wanted


def test_headers_alone_are_no_checkpoint(headers: Path) -> None:
    with pytest.raises(CheckpointError, match="truncated"):
        CheckpointReader(headers / "GLM-5.2")


def test_a_file_cut_in_its_data_is_refused(source: Path, tmp_path: Path) -> None:
    file = sorted(source.glob("*.safetensors"))[0]
    (tmp_path / "cut").mkdir()
    for other in source.iterdir():
        (tmp_path / "cut" / other.name).write_bytes(other.read_bytes())
    (tmp_path / "cut" / file.name).write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        plan(tmp_path / "cut", tmp_path)


@pytest.mark.parametrize("scheme", ["w4a8", "w8a8", "none"])
def test_plan_is_what_a_run_writes(scheme: str, source: Path, tmp_path: Path) -> None:
    before = contents(source)
    planned = plan(source, tmp_path, scheme=scheme)
    assert contents(source) == before
    out = quantize(source, tmp_path / "out", scheme)
    written = tensors_of(out)
    assert planned.output_tensors == len(written)
    assert planned.output_bytes == sum(t.numel() * t.element_size() for t in written.values())
    assert planned.files == len(list(out.glob("*.safetensors")))
    assert planned.exit_code is ExitCode.DONE


def test_missing_tensor_is_refused_before_the_run(tmp_path: Path) -> None:
    config = tiny_config("5.2")
    specs = glm5_specs(config)
    del specs["model.layers.2.mlp.experts.7.up_proj.weight"]
    write_headers(tmp_path / "source", config, specs, files=3)
    with pytest.raises(CheckpointError, match=r"experts\.7\.up_proj"):
        plan(tmp_path / "source", tmp_path)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["quantize", *arguments])


def test_command(source: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    result = invoke(str(source), out, "--scheme", "w4a8", "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["rate_sources"] == {
        **dict.fromkeys(("int4", "int8", "float", "hash"), "measured"),
        **dict.fromkeys(("read", "write"), "assumed"),
    }
    assert all(rate > 0 for rate in document["rates"].values())
    assert document["modelled_core_seconds"] >= 0
    assert not (tmp_path / "out").exists()
    text = invoke(str(source), out, "--scheme", "w4a8", "--dry-run", "--rate", "int4=5e6").stdout
    assert "int4 5.0 M weights/s given" in text
    assert "modelled" in text
    for wrong in ("int4", "int4=0", "int4=nan", "speed=3"):
        bad = invoke(str(source), out, "--scheme", "w4a8", "--dry-run", "--rate", wrong)
        assert bad.exit_code == 2, wrong
    assert invoke(str(source), out, "--scheme", "w4a8", "--rate", "int4=1").exit_code == 2


def test_a_calibration_counts(source: Path, tmp_path: Path) -> None:
    usual = dict.fromkeys(dry_run.PRODUCTS, 1e11)
    options = QuantizeOptions(source, tmp_path / "out", scheme="w4a8")
    asked = replace(options, calibration=CalibrationOptions(text="default", tokens=4096))
    before, found = dry_run.run(options, RATES), dry_run.run(asked, RATES | usual)
    assert before.calibration is None
    cost = found.calibration
    assert cost is not None
    assert cost.tokens == 4096
    assert found.core_seconds == pytest.approx(before.core_seconds + cost.core_seconds)
    assert found.needed_bytes - before.needed_bytes == cost.disk_bytes
    assert cost.directory == tmp_path / ".out.calibration"
    assert "calibration" in found.as_text()
    assert found.sources["products-f64"] == "given"
    twice = dry_run.run(replace(asked, calibration=CalibrationOptions("default", 8192)), RATES)
    assert twice.sources["products-f64"] == "measured"
    assert twice.calibration is not None
    assert twice.calibration.disk_bytes == 2 * cost.disk_bytes
    assert not (tmp_path / ".out.calibration").exists()


def test_refined_rotations_are_counted() -> None:
    """Thorough presets: the float pass, two turns of every weight, and the search."""
    raw = json.loads((CONFIGS / "GLM-5.2.json").read_text())
    config = Glm5Config.from_dict(raw, source="GLM-5.2")
    recipe = preset("w4a8-thorough")
    with_it = cost_of(config, make_plan(config, recipe), 262_144, 4096).operations
    plain = replace(recipe, refine_rotation="none")
    without = cost_of(config, make_plan(config, plain), 262_144, 4096).operations
    assert set(with_it) - set(without) == {("refining", "f32"), ("refining", "f64")}
    assert all(with_it[key] == without[key] for key in without)
    # 750e9 weights of layers are turned twice by blocks of 256, 39e9 of them meet a token; scores
    # and sums of 64 heads over some 1,500 rows of 1,088 in 79 layers.
    turns, passes = 4 * 256 * 750e9, 2 * 8192 * 39e9
    attention = 8192 * 79 * 2 * 64 * 1500 * 1088
    assert with_it["refining", "f32"] == pytest.approx(turns + passes + attention, rel=0.1)
    assert with_it["refining", "f64"] == 4 * 60 * 256 * (1 << 24) * (2 * 78 + 1)


def test_products_are_those_that_were_timed() -> None:
    """Against the recorded run of the pieces, whose total is measured at the release's shapes."""
    file = Path(__file__).parents[2] / "tools" / "results" / "calibration_cpu.jsonl"
    row = json.loads(file.read_text().splitlines()[-1])
    raw = json.loads((CONFIGS / "GLM-5.2.json").read_text())
    config = Glm5Config.from_dict(raw, source="GLM-5.2")
    recipe = CalibrationOptions(text="default").applied(preset("w4a8"))
    cost = cost_of(config, make_plan(config, recipe), 262_144, 4096)
    rates = {name: value * 1e9 for name, value in row["gflops"].items()}
    assert cost.seconds(rates) / 3600 == pytest.approx(row["core_hours"], rel=0.2)
    # 75 layers x 256 experts, GPTQ of two [2048, 6144] and a [6144, 2048].
    operations = 75 * 256 * (2 * 2048 * 6144**2 + 6144 * 2048**2)
    assert cost.operations["gptq", "f32"] == pytest.approx(operations, rel=1e-6)
