"""The comparison with other quantisers: containers, ratios, goals, and what a row may claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_ascend.config import Glm5Config
from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.errors import CheckpointError
from glm5_ascend.heldout import HELDOUT_PACKAGES
from glm5_ascend.simulator.model import OfflineModel
from tests.support.tiny_model import write_tiny
from tools.compare_quantisers import GOALS, _close_to_best, ratio, verdicts
from tools.peers import inside_patches
from tools.peers.container import _require_same_values, from_compressed_tensors, weights
from tools.peers.contestants import OURS, Contestant, Skipped, Workshop, contestants
from tools.peers.install import PEERS
from tools.peers.source import CALIBRATION_PACKAGES, calibration_text, with_all_indexers
from tools.peers.table import README, ROWS, last_runs, markdown, problems, tables

EXPERTS = r"re:.*mlp\.experts\.\d+\.(gate_proj|up_proj|down_proj)$"
LINEARS = r"re:.*self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj)$"


def compressed(directory: Path, bits: int) -> Path:
    """A tiny checkpoint rounded to nearest in the format of compressed-tensors, without MTP."""
    write_tiny(directory, tokenizer=True)
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    written: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith("model.layers.4."):
            continue
        is_expert, is_linear = ".mlp.experts." in name, name.split(".")[-2] in LINEARS
        if not name.endswith(".weight") or not (is_expert or (is_linear and "self_attn" in name)):
            written[name] = tensor
            continue
        top = 7 if is_expert and bits == 4 else 127
        scale = (tensor.float().abs().amax(1, keepdim=True) / top).bfloat16()
        written[f"{name}_scale"] = scale
        written[name] = (tensor.float() / scale.float()).round().clamp(-top - 1, top).to(torch.int8)
    save_file(written, directory / "model.safetensors")
    group = {"strategy": "channel", "type": "int", "symmetric": True}
    config["quantization_config"] = {
        "config_groups": {
            "a": {"targets": [LINEARS], "weights": {"num_bits": 8, **group}},
            "b": {"targets": [EXPERTS], "weights": {"num_bits": bits, **group}},
        }
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_only_the_container_changes(tmp_path: Path) -> None:
    source = compressed(tmp_path / "other", bits=4)
    ready = from_compressed_tensors(source, tmp_path / "ready")
    raw = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    packed = load_file(ready / "model.safetensors")[name].numpy().astype(np.uint8)
    low = ((packed & 15).astype(np.int8) ^ 8) - 8
    assert (low == raw[name].numpy()[0::2]).all()
    schemes = weights(ready)
    assert schemes[name] == "W4A8_DYNAMIC"
    assert schemes["model.layers.1.self_attn.o_proj.weight"] == "W8A8_DYNAMIC"
    assert schemes["model.layers.1.self_attn.kv_b_proj.weight"] == "FLOAT"
    model = OfflineModel.load(ready)
    assert model.mtp_layer is None
    assert bool(model.forward(torch.arange(40)).logits.isfinite().all())


def test_a_changed_value_is_noticed(tmp_path: Path) -> None:
    source = compressed(tmp_path / "other", bits=8)
    ready = from_compressed_tensors(source, tmp_path / "ready")
    tensors = load_file(source / "model.safetensors")
    _require_same_values(tensors, ready)
    name = "model.layers.2.mlp.experts.1.up_proj.weight_scale"
    tensors[name] = tensors[name] * 1.01
    with pytest.raises(CheckpointError, match=r"experts\.1\.up_proj"):
        _require_same_values(tensors, ready)


def test_groups_are_refused(tmp_path: Path) -> None:
    source = compressed(tmp_path / "other", bits=4)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["config_groups"]["b"]["weights"]["strategy"] = "group"
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="per group"):
        from_compressed_tensors(source, tmp_path / "ready")


def row(tool: str, scheme: str, kl: float, **more: Any) -> dict[str, Any]:
    generator = np.random.default_rng(len(tool))
    window = kl * (1 + 0.1 * generator.standard_normal(50))
    return {
        "kind": "contestant",
        "name": f"{tool}-{kl}",
        "tool": tool,
        "scheme": scheme,
        "schemes": "same",
        "metrics": {"kl_mean": {"value": kl}},
        "window_kl": window.tolist(),
        **more,
    }


def test_the_best_of_a_tool_counts() -> None:
    rows = [
        row(OURS, "w4a8", 0.6),
        row("msmodelslim", "w4a8", 1.0),
        row("msmodelslim", "w4a8", 0.7),
    ]
    found = {(v["tool"], v["scheme"]): v for v in verdicts(rows)}
    slim = found["msmodelslim", "w4a8"]
    assert slim["peer"] == "msmodelslim-0.7"
    assert slim["ratio"] == pytest.approx(0.6 / 0.7, rel=0.05)
    assert slim["reached"] is False


def test_a_skipped_peer_is_no_pass() -> None:
    skipped = {**row("msmodelslim", "w4a8", 1.0), "skipped": "not installed"}
    del skipped["metrics"]
    found = list(verdicts([row(OURS, "w4a8", 0.1), skipped]))
    assert len(found) == len(GOALS)
    assert not any(v["reached"] for v in found)
    assert found[0]["missing"] == "msmodelslim"


def test_other_schemes_are_no_pass() -> None:
    rows = [row(OURS, "w4a8", 0.1), row("msmodelslim", "w4a8", 1.0, schemes="other")]
    found = next(v for v in verdicts(rows) if v["tool"] == "msmodelslim" and v["scheme"] == "w4a8")
    assert found["ratio"] < 0.2
    assert (found["same_schemes"], found["reached"]) == (False, False)


def test_only_what_is_close_to_a_peers_best_is_measured_in_full() -> None:
    found = {
        "ours": row(OURS, "w4a8", 9.0),
        "best": row("x", "w4a8", 1.0),
        "close": row("x", "w4a8", 1.05),
        "copy": row("x", "w4a8", 1.0),
        "far": row("x", "w4a8", 1.2),
        "other scheme": row("x", "w8a8", 5.0),
    }
    assert _close_to_best(found, found) == ["ours", "best", "close", "other scheme"]


def test_ratio_is_paired() -> None:
    """Windows of very different difficulty, all halved: the interval has no width."""
    peer = np.arange(1.0, 101.0)
    value, (low, high) = ratio((peer / 2).tolist(), peer.tolist())
    assert (value, low, high) == pytest.approx((0.5, 0.5, 0.5))
    other = np.random.default_rng(0).permutation(peer) / 2
    assert np.diff(ratio(other.tolist(), peer.tolist())[1]) > 0.05


def test_a_peer_that_is_absent_or_fails_says_why(tmp_path: Path) -> None:
    shop = Workshop(SMALL_MODEL, tmp_path, tmp_path / "none")
    with pytest.raises(Skipped, match=r"tools\.peers\.install llm-compressor"):
        shop.build(Contestant("llm-compressor", "w4a8", "rtn", ()))
    with pytest.raises(Skipped, match="exit code 2"):
        shop.build(Contestant(OURS, "w4a8", "data-free", ("--no-such-option",)))


def test_calibration_text_is_not_what_is_evaluated() -> None:
    assert not set(CALIBRATION_PACKAGES) & set(HELDOUT_PACKAGES)
    pieces = calibration_text(16)
    assert len(set(pieces)) == 16
    assert all(1500 <= len(piece) < 3000 for piece in pieces)
    assert pieces == calibration_text(16)


def test_shared_layers_get_the_indexer_that_they_share(tmp_path: Path) -> None:
    made = load_file(with_all_indexers(SMALL_MODEL, tmp_path / "all") / "model.safetensors")
    original = load_file(SMALL_MODEL / "model.safetensors")
    config = Glm5Config.from_dir(SMALL_MODEL)
    last = 0
    for layer in range(config.layer_count):
        name = "model.layers.{}.self_attn.indexer.wk.weight"
        last = layer if name.format(layer) in original else last
        assert torch.equal(made[name.format(layer)], original[name.format(last)])
    assert all(torch.equal(made[name], tensor) for name, tensor in original.items())


def test_the_index_names_the_copies(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source")
    made = with_all_indexers(source, tmp_path / "all")
    index = json.loads((made / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(load_file(made / "model.safetensors"))


def test_every_peer_lists_its_patches_in_the_readme() -> None:
    text = (Path(inside_patches.__code__.co_filename).parent / "README.md").read_text()
    for peer in PEERS.values():
        assert peer.version in text
        for name in inside_patches(peer.script):
            assert f"`{name}`" in text
    assert len({contestant.name for contestant in contestants()}) == len(contestants())


def test_readme_shows_the_recorded_rows() -> None:
    assert problems(README, ROWS, SMALL_MODEL) == []


def test_the_random_model_has_a_goal_of_its_own() -> None:
    rows = [row(OURS, "w4a8", 0.9), row("msmodelslim", "w4a8", 1.0)]
    assert [one["reached"] for one in verdicts(rows)] == [False] * 4
    named = [{**one, "model": "tiny78"} for one in rows]
    first, *others = verdicts(named)
    assert (first["goal"], first["reached"]) == (1.0, True)
    assert [one["reached"] for one in others] == [False] * 3


def test_every_kind_of_run_has_its_tables(tmp_path: Path) -> None:
    row = {"kind": "goal", "tool": "x", "scheme": "w4a8", "goal": 0.75, "missing": "x"}
    shown = {"hardware": "h", "commit": "c", "dirty": False, "metrics": {}, "command": "python"}
    text = {"text": {"tokens": 5, "windows": 1, "name": "n"}}
    kinds = [
        {"model": "small", "date": "2026-01-01"},
        {"model": "tiny78", "date": "2026-01-02", "samples": 2},
        {"model": "small", "date": "2026-01-03", "samples": 256},
        {"model": "small", "date": "2026-01-04", "samples": 16},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**row, **shown, **text, **kind}) + "\n" for kind in kinds))
    runs = last_runs(file, "small")
    assert [rows[0]["date"] for rows in runs] == ["2026-01-04", "2026-01-03", "2026-01-02"]
    found = tables(runs)
    heads = [line for line in found.splitlines() if line.startswith("#")]
    assert heads == [
        "### Calibrated on 256 pieces of text",
        "### Calibrated on 2 pieces of text of tiny78, 78 random layers",
    ]


def test_table_says_skipped_missed_and_not_shown() -> None:
    shared = {"hardware": "h", "date": "2026-01-01T", "commit": "c" * 40, "dirty": False}
    text = {"tokens": 5, "windows": 1, "name": "n"}
    metrics = {
        "kl_mean": {"value": 0.5, "interval": [0.4, 0.6]},
        "kl_p99": {"value": 1.0},
        "top1_agreement": {"value": 0.9},
    }
    rest = {key: value for key, value in row("y", "w4a8", 2.0).items() if key != "metrics"}
    rows: list[dict[str, Any]] = [
        {**row(OURS, "w4a8", 0.5), "variant": "v", "metrics": metrics, "cost": {"cpu_s": 3}},
        {**row("x", "w4a8", 1.0), "variant": "v", "skipped": "no wheel", "version": "1"},
        {**rest, "variant": "v", "screened": {"tokens": 512, "kl_mean": 2}, "cost": {"cpu_s": 1}},
        {"kind": "goal", "tool": "x", "scheme": "w4a8", "goal": 0.75, "missing": "x"},
    ]
    found = markdown([{**shared, "text": text, "command": "python", **r} for r in rows])
    assert "0.50000 [0.40000, 0.60000]" in found
    assert "skipped: no wheel" in found
    assert "2.00000 on 512 tokens" in found
    assert "NOT SHOWN: no result of x" in found
    assert "reached" not in found
