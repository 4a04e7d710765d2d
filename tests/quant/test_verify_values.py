"""Numbers that load and compute nonsense, found in checkpoints of this and of another writer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.engine_releases import RELEASES, find_release
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.verify import VerifyOptions, run
from glm5_ascend.verify.report import Report
from glm5_ascend.verify.rules import RULES
from tests.quant import damage
from tests.quant.conftest import quantize
from tests.support.tiny_ascend import write_tiny_ascend
from tests.support.tiny_model import write_tiny

ATT = "model.layers.1.self_attn."
EXPERT = "model.layers.1.mlp.experts.0."
DOWN, GATE = f"{EXPERT}down_proj", f"{EXPERT}gate_proj"
MTP = "model.layers.4."


def verify(directory: Path, engine: str = "0.23", **options: Any) -> Report:
    return run(VerifyOptions(directory, release=find_release(engine), **options))


def rules(report: Report) -> list[str]:
    return [finding.rule for finding in report.findings]


@pytest.fixture(scope="module")
def static(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Static attention and int4 experts by the tests' own writer, which knows no rotation."""
    return write_tiny_ascend(source, tmp_path_factory.mktemp("static"), scheme="w4a8", static=True)


@pytest.mark.parametrize("mtp", ["w8", "float"])
@pytest.mark.parametrize("scheme", ["w4a8", "w8a8"])
@pytest.mark.parametrize("rotate", [True, False])
def test_own_output_has_nothing(
    scheme: str, mtp: str, rotate: bool, source: Path, tmp_path: Path
) -> None:
    out = quantize(source, tmp_path / "out", scheme, rotate=rotate, mtp=mtp)
    for release in RELEASES:
        if release.series >= (0, 19):
            assert run(VerifyOptions(out, release=release)).findings == []
    report = run(VerifyOptions(out, source=source, full=True, manifest=True))
    assert report.findings == []
    worst = {part: row["worst"] for part, row in report.errors.items()}
    assert all(error < 1e-5 for part, error in worst.items() if "FLOAT" in part)
    assert all(error < 2e-4 for part, error in worst.items() if "W8A8" in part)
    assert all(1e-3 < error < 2e-2 for part, error in worst.items() if "W4A8" in part)


def test_own_output_without_mtp(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", mtp=False, head_dim=16)
    out = quantize(source, tmp_path / "out", "w4a8")
    assert verify(out, source=source, full=True, manifest=True).findings == []


def test_output_of_another_writer_has_nothing(static: Path, source: Path) -> None:
    report = verify(static, full=True, source=source)
    assert report.findings == []
    assert report.errors["attention W8A8"]["worst"] < 2e-4


def test_fp8_source_is_compared_dequantised(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", fp8=True, head_dim=16)
    out = quantize(source, tmp_path / "out", "w4a8")
    assert verify(out, full=True, source=source).findings == []


def _bfloat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def _half_row(tensor: torch.Tensor) -> torch.Tensor:
    tensor[3] = 0.5 * tensor[3]
    return tensor


def _swap_columns(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(1, dims=1)


def _set(value: float) -> damage.Edit:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[1] = value
        return tensor

    return change


def _other_nibble_order(tensor: torch.Tensor) -> torch.Tensor:
    """The odd row in the low half."""
    return ((tensor & 0xF) << 4) | ((tensor >> 4) & 0xF)


def _packed_along_input(tensor: torch.Tensor) -> torch.Tensor:
    """The right shape, but bytes of pairs of columns."""
    low, high = (tensor << 4) >> 4, tensor >> 4
    codes = torch.stack([low, high], 1).reshape(2 * tensor.shape[0], tensor.shape[1])
    pairs = codes.reshape(codes.shape[0], -1, 2)
    return ((pairs[..., 1] << 4) | (pairs[..., 0] & 0xF)).reshape(tensor.shape)


DYNAMIC: dict[str, tuple[str, damage.Edit, str]] = {
    "NaN in a norm": ("model.norm.weight", _set(float("nan")), "not-finite"),
    "infinity in a router": ("model.layers.1.mlp.gate.weight", _set(float("inf")), "not-finite"),
    "NaN in a scale": (f"{GATE}.weight_scale", _set(float("nan")), "not-finite"),
    "zero scale": (f"{GATE}.weight_scale", _set(0.0), "scale-value"),
    "negative scale": (f"{ATT}o_proj.weight_scale", _set(-1.0), "scale-value"),
    "offset": (f"{ATT}o_proj.weight_offset", _set(3.0), "offset-value"),
    "scale beyond BF16": (f"{ATT}o_proj.weight_scale", lambda t: t * 1.001, "scale-rounded"),
    "bias halved": (f"{GATE}.scale_bias", _half_row, "scale-bias-value"),
    "bias without the factor 8": (f"{GATE}.scale_bias", lambda t: t / 8, "scale-bias-value"),
    "bias of other slices": (f"{DOWN}.scale_bias", _swap_columns, "scale-bias-split"),
    "scale doubled": (f"{DOWN}.weight_scale", lambda t: 2 * t, "scale-bias-value"),
    "nibbles swapped": (f"{GATE}.weight", _other_nibble_order, "scale-bias-value"),
    "packed along the input": (f"{GATE}.weight", _packed_along_input, "scale-bias-value"),
    "expert of zeros": (f"{ATT}o_proj.weight", torch.zeros_like, "codes-zero"),
    "float matrix of zeros": (f"{ATT}kv_b_proj.weight", torch.zeros_like, "codes-zero"),
    "int4 in int8": (f"{ATT}o_proj.weight", lambda t: (t // 16).to(torch.int8), "codes-narrow"),
    "other MTP embedding": (f"{MTP}embed_tokens.weight", _half_row, "mtp-embedding-value"),
    "lopsided rotation": ("rot.weight", _set(9.0), "rotation-value"),
}


@pytest.mark.parametrize("case", DYNAMIC)
def test_values(case: str, w4a8: Path, tmp_path: Path) -> None:
    name, change, rule = DYNAMIC[case]
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    damage.edit(broken, name, change)
    report = verify(broken, full=True)
    assert rules(report) == [rule]
    wanted = f"{name.rpartition('.')[0]}.scale_bias" if rule == "scale-bias-value" else name
    assert report.findings[0].subjects == (wanted,)
    assert verify(broken).findings == []


def _unequal(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 1.01


STATIC: dict[str, tuple[str, damage.Edit, str]] = {
    "deq_scale rounded": (f"{ATT}o_proj.deq_scale", _bfloat, "deq-scale-rounded"),
    "deq_scale wrong": (f"{ATT}o_proj.deq_scale", _unequal, "deq-scale-value"),
    "quant_bias wrong": (f"{ATT}o_proj.quant_bias", lambda t: -t - 5, "quant-bias-value"),
    "input_scale zero": (f"{ATT}o_proj.input_scale", torch.zeros_like, "scale-value"),
    "input_scale NaN": (f"{ATT}o_proj.input_scale", lambda t: t * float("nan"), "not-finite"),
}


@pytest.mark.parametrize("case", STATIC)
def test_static_values(case: str, static: Path, tmp_path: Path) -> None:
    name, change, rule = STATIC[case]
    broken = damage.copy_of(static, tmp_path / "broken")
    damage.edit(broken, name, change)
    report = verify(broken, full=True)
    assert rules(report) == [rule]
    assert report.findings[0].subjects == (name,)


def test_rounded_deq_scale_without_weight_scale(static: Path, tmp_path: Path) -> None:
    """msModelSlim stores no weight_scale beside static codes, and rounds the product to BF16."""
    broken = damage.copy_of(static, tmp_path / "broken")
    for part in ("weight_scale", "weight_offset"):
        damage.drop(broken, f"{ATT}o_proj.{part}")
    assert verify(broken, full=True).findings == []
    damage.edit(broken, f"{ATT}o_proj.deq_scale", _bfloat)
    assert rules(verify(broken, full=True)) == ["deq-scale-rounded"]


def test_weights_of_another_layer_are_found(w4a8: Path, source: Path, tmp_path: Path) -> None:
    """Consistent in themselves; only the source tells."""
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    parts = ("weight", "weight_scale", "scale_bias")
    other = {
        p: damage.load_file(damage.file_with(w4a8, f"{GATE}.{p}"))[f"{GATE}.{p}"] for p in parts
    }
    up = f"{EXPERT}up_proj"
    for part, tensor in other.items():
        damage.edit(broken, f"{up}.{part}", lambda _, tensor=tensor: tensor)  # type: ignore[misc]
    assert verify(broken, full=True).findings == []
    report = verify(broken, full=True, source=source)
    assert [(f.rule, f.subjects) for f in report.findings] == [("source-error", (f"{up}.weight",))]
    assert report.errors["routed_experts W4A8_DYNAMIC"]["worst"] > 1


def test_wrong_recycled_state_is_found(w4a8: Path, source: Path, tmp_path: Path) -> None:
    """The identity instead of R1ᵀ diag(γ) R1, as without the norm's weights."""
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    damage.edit(broken, "rot.weight", lambda t: 3 * torch.eye(len(t), dtype=t.dtype))
    assert verify(broken, full=True).findings == []
    assert rules(verify(broken, full=True, source=source)) == ["rotation-value"]


def test_another_source_is_said_not_to_fit(w4a8: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other", seed=7)
    report = verify(w4a8, full=True, source=other)
    assert rules(report) == ["source-unlike"]
    assert report.errors == {}


def test_a_source_of_other_shapes_is_refused(w4a8: Path, source: Path, tmp_path: Path) -> None:
    """As of a model whose experts were pruned."""
    pruned = damage.copy_of(source, tmp_path / "pruned")
    damage.edit(pruned, "model.layers.1.mlp.gate.weight", lambda t: t[:-1].clone())
    with pytest.raises(CheckpointError, match=r"the source holds model\.layers\.1\.mlp\.gate"):
        verify(w4a8, full=True, source=pruned)
    with pytest.raises(CheckpointError, match="is quantised already"):
        verify(w4a8, sample=3, source=w4a8)


def test_smoothing_is_taken_out(static: Path, source: Path, tmp_path: Path) -> None:
    """Factors between a norm and its readers, and between up and down, are no error."""
    smoothed = damage.copy_of(static, tmp_path / "smoothed")
    gen = torch.Generator().manual_seed(1)
    factors = 0.5 + torch.rand(16, generator=gen)
    down = "model.layers.1.mlp.shared_experts."
    damage.edit(smoothed, f"{down}up_proj.weight_scale", lambda t: t / factors[:, None])
    report = verify(smoothed, full=True, source=source)
    assert "source-error" not in rules(report)
    assert report.errors["shared_experts W8A8_DYNAMIC"]["worst"] < 1e-3


def test_samples_come_from_every_part(w4a8: Path) -> None:
    report = verify(w4a8, sample=12)
    assert "values of 12 of" in report.looked_at
    assert report.findings == []


def flipped(directory: Path) -> str:
    file = sorted(directory.glob("*.safetensors"))[1]
    damage.flip_byte(file)
    return file.name


def text_changed(directory: Path) -> str:
    damage.edit_json(directory / "config.json", use_cache=False)
    return "config.json"


def file_lost(directory: Path) -> str:
    (directory / "tokenizer.json").unlink()
    return "tokenizer.json"


def file_too_much(directory: Path) -> str:
    extra = directory / "more.safetensors"
    damage.save_file({"model.layers.99.x": torch.zeros(1)}, extra)
    return extra.name


def manifest_lost(directory: Path) -> str:
    (directory / "quantize_manifest.json").unlink()
    return "quantize_manifest.json"


COPIES: dict[str, tuple[Callable[[Path], str], str]] = {
    "a bit flipped": (flipped, "manifest-file"),
    "a text changed": (text_changed, "manifest-file"),
    "a file lost": (file_lost, "file-missing"),
    "a file too much": (file_too_much, "manifest-extra"),
    "no manifest": (manifest_lost, "manifest-missing"),
}


@pytest.mark.parametrize("case", COPIES)
def test_copies(case: str, w4a8: Path, tmp_path: Path) -> None:
    change, rule = COPIES[case]
    copy = damage.copy_of(w4a8, tmp_path / "copy")
    assert verify(copy, manifest=True).findings == []
    name = change(copy)
    found = {finding.rule: finding.subjects for finding in verify(copy, manifest=True).findings}
    assert found[rule] == (name,)


def test_manifest_says_what_was_made_from_what(w4a8: Path, source: Path) -> None:
    document = json.loads((w4a8 / "quantize_manifest.json").read_text())
    assert document["recipe"]["name"] == "w4a8"
    assert document["seed"] == 1234
    assert document["tool"].startswith("glm5-ascend ")
    assert set(document["sources"]) == {file.name for file in source.glob("*.safetensors")}
    listed = set(document["weights"]) | set(document["texts"])
    assert listed | {"quantize_manifest.json"} == {file.name for file in w4a8.iterdir()}


def test_source_files_are_hashed_on_demand(source: Path, w8a8: Path, tmp_path: Path) -> None:
    assert "source_sha256" not in json.loads((w8a8 / "quantize_manifest.json").read_text())
    out = quantize(source, tmp_path / "out", "w8a8", hash_source=True)
    wanted = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in source.glob("*.safetensors")
    }
    document = json.loads((out / "quantize_manifest.json").read_text())
    assert document["source_sha256"] == wanted
    assert verify(out, manifest=True).findings == []
    assert quantize(source, out, "w8a8", resume=True) == out


def test_command_reads_values(w4a8: Path, source: Path, tmp_path: Path) -> None:
    broken = damage.copy_of(w4a8, tmp_path / "broken")
    damage.edit(broken, f"{GATE}.scale_bias", _half_row)
    arguments = ["verify", str(broken), "--full", "--source", str(source), "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [finding["rule"] for finding in document["findings"]] == ["scale-bias-value"]
    assert document["relative_error"]["attention W8A8_DYNAMIC"]["mean"] < 1e-4
    text = CliRunner().invoke(cli, arguments[:-1]).stdout
    assert re.search(r"attention W8A8_DYNAMIC +relative error \d", text)


def test_every_rule_has_a_test() -> None:
    tests = Path(__file__).parent.parent
    files = [*tests.glob("core/test_verify_*.py"), *tests.glob("quant/test_verify_*.py")]
    text = " ".join(file.read_text() for file in files)
    assert {rule for rule in RULES if not re.search(rf"[\"' ]{rule}[\"' ]", text)} == set()
