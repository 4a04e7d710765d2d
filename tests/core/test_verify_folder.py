"""Files, configuration and description that do not fit together, and the command around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.engine_releases import find_release
from glm5_ascend.verify.check import check_headers
from tests.core import micro
from tests.core.ascend import Quantised
from tests.core.engine_folder import (
    MTP,
    drop_parts,
    edit_json,
    good,
    put_int4,
    put_static,
    static_everywhere,
    to_float,
)

FILE = "model-00001-of-00001.safetensors"
INDEX, OWN_INDEX = "model.safetensors.index.json", "quant_model_weights.safetensors.index.json"
DESCRIPTION = "quant_model_description.json"
ATT = "model.layers.1.self_attn."
GATE = "model.layers.1.mlp.experts.0.gate_proj"


def write_index(directory: Path, name: str, weight_map: dict[str, str]) -> None:
    (directory / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def truncated(directory: Path) -> None:
    data = (directory / FILE).read_bytes()
    (directory / FILE).write_bytes(data[:-5])


def twice(directory: Path) -> None:
    name = "model.norm.weight"
    micro.save(directory / "more.safetensors", {name: good().stored[name]})


def source_index(directory: Path) -> None:
    """The BF16 index that was copied along: it lists files that are not here."""
    write_index(directory, INDEX, {"model.norm.weight": "model-00003-of-00282.safetensors"})


def mtp_not_listed(directory: Path) -> None:
    names = [name for name in good().stored if not name.startswith(MTP)]
    write_index(directory, OWN_INDEX, dict.fromkeys(names, FILE))


def lists_too_much(directory: Path) -> None:
    write_index(directory, INDEX, dict.fromkeys([*good().stored, "model.extra"], FILE))


def broken_json(directory: Path) -> None:
    (directory / DESCRIPTION).write_text("{")


def no_description(directory: Path) -> None:
    (directory / DESCRIPTION).unlink()


def unfinished(directory: Path) -> None:
    (directory / "quantize_journal.json").write_text("{}")


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", **changes)


def description(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / DESCRIPTION, **changes)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {}}
PATTERN = ["full", "shared", "full", "shared"]

# What happens to the written files: the one rule that must speak, and words of its message.
FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "truncated": (truncated, "file-damaged", FILE),
    "stored twice": (twice, "tensor-twice", "more.safetensors"),
    "index of the source": (source_index, "index-foreign", "model-00003-of-00282"),
    "index with too much": (lists_too_much, "index-foreign", "lists model.extra"),
    "MTP not in the index": (mtp_not_listed, "index-stale", "does not list model.layers.4."),
    "broken description": (broken_json, "file-damaged", DESCRIPTION),
    "no description": (no_description, "description-missing", "more"),
    "unfinished": (unfinished, "unfinished", "quantize_journal.json"),
    "FP8 left over": (config(quantization_config=FP8), "config-quantization", "fp8"),
    "compressed-tensors left over": (
        config(quantization_config=COMPRESSED),
        "config-compressed-tensors",
        "compressed-tensors",
    ),
    "another model": (config(model_type="deepseek_v3"), "config-invalid", "deepseek_v3"),
    "contradictory schedule": (
        config(indexer_types=PATTERN),
        "config-schedule",
        "indexer_types",
    ),
    "wrong offset": (config(index_skip_topk_offset=None), "config-schedule", "layer 2"),
    "MTP not announced": (config(num_nextn_predict_layers=None), "config-mtp", "layer 4"),
    "rotation in words": (description(is_rot_used="yes"), "description-value", "is_rot_used"),
    "scheme is a number": (
        description(**{"model.norm.weight": 4}),
        "description-value",
        "model.norm.weight",
    ),
    "described only": (
        description(**{"model.layers.1.x.weight": "FLOAT"}),
        "described-unknown",
        "model.layers.1.x.weight",
    ),
    "cache mark without indexer": (
        description(**{"model.layers.3.self_attn.indexer.quant_type": "INT8_DYNAMIC"}),
        "cache-mark",
        "layer without an indexer",
    ),
    "cache mark of nothing": (
        description(**{f"{ATT}indexer.quant_type": "int8"}),
        "cache-mark",
        "'int8'",
    ),
    "cache rotations": (
        description(indexer_quant_type="INT8_DYNAMIC"),
        "cache-rotations",
        "indexer_quant_type",
    ),
    "part of another scheme": (
        description(**{f"{GATE}.scale_bias": "FLOAT"}),
        "description-part",
        "its weight W4A8_DYNAMIC",
    ),
    "part not described": (
        description(**{f"{GATE}.scale_bias": None}),
        "undescribed-other",
        f"{GATE}.scale_bias",
    ),
    "norm not described": (
        description(**{"model.norm.weight": None}),
        "undescribed-other",
        "model.norm.weight",
    ),
    "950 only": (
        description(**{f"{ATT}o_proj.weight": "W8A8_MXFP8"}),
        "scheme-a5",
        "W8A8_MXFP8",
    ),
    "rotation not announced": (
        description(is_rot_used=False),
        "rotation-unannounced",
        "rot.weight",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files(case: str, tmp_path: Path) -> None:
    change, rule, words = FILES[case]
    change(good().write(tmp_path))
    found = check_headers(tmp_path, find_release("0.23"))
    assert rule in {finding.rule for finding in found}
    message = next(finding.message for finding in found if finding.rule == rule)
    assert words in message


def _trunk_mixed(made: Quantised) -> None:
    static_everywhere(made)
    drop_parts(made, f"{ATT}q_b_proj")
    made.put(f"{ATT}q_b_proj.weight", (12, 6), "I8", "W8A8_DYNAMIC")
    made.put(f"{ATT}q_b_proj.weight_scale", (12, 1), "F32", "W8A8_DYNAMIC")


def _no_norm_bias(made: Quantised) -> None:
    static_everywhere(made)
    for name in [n for n in made.stored if "norm.bias" in n]:
        del made.description[name]


def _grouped(made: Quantised) -> None:
    made.description["group_size"] = 8
    for name in [n for n in made.stored if n.endswith(".scale_bias")]:
        module = name.removesuffix("scale_bias")
        made.put(f"{module}weight_scale_second", (16, 2), "F32", "W4A8_DYNAMIC")


def _version_0(made: Quantised) -> None:
    del made.description["version"]
    made.description["group_size"] = 0
    for name in [n for n in made.stored if n.endswith(".scale_bias")]:
        made.drop(name)
        made.put(name.replace("scale_bias", "weight"), (16, 16), "I8", "W4A8_DYNAMIC")


def _lost(name: str) -> Callable[[Quantised], None]:
    return lambda made: made.drop(name)


def _put(name: str, shape: tuple[int, ...], dtype: str, scheme: str) -> Callable[[Quantised], None]:
    return lambda made: made.put(name, shape, dtype, scheme)


def _no_mtp(made: Quantised) -> None:
    for name in [n for n in made.stored if n.startswith(MTP)]:
        made.drop(name)


TENSORS: dict[str, tuple[Callable[[Quantised], None], str, str, str | None]] = {
    "static and dynamic trunk": (_trunk_mixed, "trunk-mixed", "0.30", None),
    "no key with norm.bias": (_no_norm_bias, "static-norm-bias", "0.23", None),
    "groups": (_grouped, "int4-groups", "0.30", "0.26"),
    "version 0": (_version_0, "int4-version-0", "0.30", "0.26"),
    "norm lost": (_lost("model.layers.1.input_layernorm.weight"), "tensor-missing", "0.30", None),
    "part of the MTP layer lost": (_lost(f"{MTP}hnorm.weight"), "tensor-missing", "0.30", None),
    "whole MTP layer lost": (_no_mtp, "mtp-absent", "0.30", None),
    "left-over FP8 scale": (
        _put(f"{ATT}o_proj.weight_scale_inv", (1, 1), "F32", "FLOAT"),
        "tensor-unknown",
        "0.30",
        None,
    ),
    "shape": (_put(f"{ATT}o_proj.weight", (16, 4), "I8", "W8A8_DYNAMIC"), "shape", "0.30", None),
    "dtype": (
        _put(f"{ATT}o_proj.weight_scale", (16, 1), "I8", "W8A8_DYNAMIC"),
        "dtype",
        "0.30",
        None,
    ),
    "int8 called float": (
        _put(f"{ATT}kv_b_proj.weight", (16, 10), "I8", "FLOAT"),
        "int8-in-float",
        "0.30",
        None,
    ),
    "float called int8": (
        _put(f"{ATT}o_proj.weight", (16, 8), "BF16", "W8A8_DYNAMIC"),
        "float-in-int8",
        "0.30",
        None,
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors(case: str, tmp_path: Path) -> None:
    change, rule, minds, content = TENSORS[case]
    # A key that is missing is missing for tools as well.
    beside = {"undescribed-other"} if rule == "static-norm-bias" else set()
    made = good()
    change(made)
    made.write(tmp_path)
    found = [f.rule for f in check_headers(tmp_path, find_release(minds)) if f.rule not in beside]
    assert found == [rule]
    if content is not None:
        assert check_headers(tmp_path, find_release(content)) == []


def test_two_levels_of_scales_are_compared_too(tmp_path: Path) -> None:
    made = good()
    _grouped(made)
    made.put(f"{GATE}.weight_scale_second", (16, 1), "F32", "W4A8_DYNAMIC")
    found = check_headers(made.write(tmp_path), find_release("0.26"))
    assert [f.rule for f in found] == ["shape"]


def test_plain_checkpoints(tmp_path: Path) -> None:
    """The releases themselves load; only an MTP layer without copies is not for 0.23."""
    types = ["full", "full", "shared"]
    micro.write(tmp_path / "bf16", indexer_types=types)
    assert check_headers(tmp_path / "bf16", find_release("0.30")) == []
    found = check_headers(tmp_path / "bf16", find_release("0.23"))
    assert [f.rule for f in found] == ["mtp-vocabulary"]
    micro.write(tmp_path / "fp8", quantization_config=FP8)
    assert check_headers(tmp_path / "fp8", find_release("0.30")) == []
    stored = micro.tensors(micro.config())
    micro.write(tmp_path / "less", micro.without(stored, ["model.norm.weight"]))
    found = check_headers(tmp_path / "less", find_release("0.30"))
    assert [(f.rule, f.subjects) for f in found] == [("tensor-missing", ("model.norm.weight",))]


def test_compressed_tensors_checkpoint_is_named(tmp_path: Path) -> None:
    micro.write(tmp_path, micro.tensors(micro.config()), quantization_config=COMPRESSED)
    found = check_headers(tmp_path)
    assert [f.rule for f in found] == ["config-invalid"]
    assert "'compressed-tensors' is not read here" in found[0].message


def test_static_checkpoint_of_another_tool(tmp_path: Path) -> None:
    """As msModelSlim writes it: F32 offsets, no weight_scale, and a file of its own for rot."""
    made = good()
    static_everywhere(made)
    made.description |= {"model_quant_type": "W8A8_DYNAMIC", "metadata": {}, "optional": {}}
    made.write(tmp_path)
    assert check_headers(tmp_path) == []


def test_folder_of_modelslim(tmp_path: Path) -> None:
    """Its tree and keys: rot.weight in a file of its own, float MTP layer, marks of the int8 cache,
    F32 norms, and another file below optional/. Only the global cache key is worth a word."""
    made = good()
    static_everywhere(made)
    for name in [n for n in made.stored if n.startswith(MTP) and n.endswith("_proj.weight")]:
        spec, _ = made.stored[name]
        to_float(made, name.removesuffix(".weight"), spec.shape)
    for module in ("q_b_proj", "kv_a_proj_with_mqa", "indexer.wq_b"):
        spec, _ = made.stored[f"{MTP}self_attn.{module}.weight"]
        to_float(made, f"{MTP}self_attn.{module}", spec.shape)
    for name in [n for n in made.stored if n.endswith(("norm.weight", "norm.bias"))]:
        made.put(name, made.stored[name][0].shape, "F32", "FLOAT")
    rotation = made.stored.pop("rot.weight")
    made.description |= {
        "model_quant_type": "W8A8_DYNAMIC",
        "metadata": {},
        "optional": {"quarot": {"rotation_map": {"global_rotation": "optional/q.safetensors"}}},
    }
    for layer in (0, 1, 2):
        made.description[f"model.layers.{layer}.self_attn.indexer.quant_type"] = "INT8_DYNAMIC"
    made.write(tmp_path)
    micro.save(tmp_path / "rot.safetensors", {"rot.weight": rotation})
    (tmp_path / "optional").mkdir()
    micro.save(tmp_path / "optional" / "q.safetensors", {"global_rotation": rotation})
    (tmp_path / "GLM-5_best_practice.yaml").write_text("")
    weight_map = {**dict.fromkeys(made.stored, FILE), "rot.weight": "rot.safetensors"}
    write_index(tmp_path, OWN_INDEX, weight_map)
    for engine in ("0.23", "0.26", "0.30"):
        assert check_headers(tmp_path, find_release(engine)) == [], engine
    edit_json(tmp_path / DESCRIPTION, indexer_quant_type="INT8_DYNAMIC")
    found = check_headers(tmp_path, find_release("0.30"))
    assert [(f.severity, f.rule) for f in found] == [("warning", "cache-rotations")]


def test_many_subjects_are_one_finding(tmp_path: Path) -> None:
    made = good()
    lost = [name for name in made.stored if name.endswith(".weight_scale") and ".experts." in name]
    for name in lost:
        made.drop(name)
    found = check_headers(made.write(tmp_path), find_release("0.30"))
    assert [f.rule for f in found] == ["scale-missing"]
    assert set(found[0].subjects) == set(lost)
    assert f"(and {len(lost) - 3} more)" in found[0].message


def test_fixtures_are_what_they_say() -> None:
    made = good()
    put_static(made, f"{ATT}o_proj", (16, 8))
    put_int4(made, f"{ATT}q_b_proj", (12, 6))
    to_float(made, f"{ATT}o_proj", (16, 8))
    assert made.description[f"{ATT}o_proj.weight"] == "FLOAT"
    assert f"{ATT}o_proj.deq_scale" not in made.stored
