"""Each mutation that was loaded into the real engine, judged for 0.23 and for 0.30.

The two columns are what 0.23.0.post1 and 0.30.0rc2 did with such a checkpoint on a CPU: an error or
a silent load must be found under the rule named here, and what is fine must give nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_ascend.engine_releases import RELEASES, find_release
from glm5_ascend.verify.check import check_headers
from glm5_ascend.verify.rules import RULES
from tests.core.ascend import Quantised
from tests.core.engine_folder import (
    MTP,
    drop_parts,
    edit_json,
    good,
    put_int4,
    put_int8,
    put_static,
    static_everywhere,
    to_float,
)

Change = Callable[[Quantised], None]
L1 = "model.layers.1."
ATT = f"{L1}self_attn."
GATE, DOWN = f"{L1}mlp.experts.0.gate_proj", f"{L1}mlp.experts.2.down_proj"
OLD, NEW = find_release("vllm-ascend==0.23"), find_release("vllm-ascend==0.30")


def describe(**keys: object) -> Change:
    return lambda made: made.description.update(keys)


def forget(*names: str) -> Change:
    """Take names out of the description only."""

    def change(made: Quantised) -> None:
        for name in [n for n in made.description if n.startswith(names)]:
            del made.description[name]

    return change


def lose(*names: str) -> Change:
    """Take tensors out of the files only."""

    def change(made: Quantised) -> None:
        for name in [n for n in made.stored if n.startswith(names)]:
            del made.stored[name]

    return change


def gone(*names: str) -> Change:
    """Take tensors out of files and description."""

    def change(made: Quantised) -> None:
        for name in [n for n in made.stored if n.startswith(names)]:
            made.drop(name)

    return change


def put(name: str, shape: tuple[int, ...], dtype: str, scheme: str | None) -> Change:
    return lambda made: made.put(name, shape, dtype, scheme)


def both(*changes: Change) -> Change:
    def change(made: Quantised) -> None:
        for one in changes:
            one(made)

    return change


def int8(module: str) -> Change:
    return lambda made: put_int8(made, module, made.stored[f"{module}.weight"][0].shape)


def without_index_fields(made: Quantised) -> None:
    """The files of GLM-5.2 with the configuration of GLM-5: three schedule keys are gone."""
    for key in ("index_topk_freq", "index_skip_topk_offset", "indexer_types"):
        made.config[key] = None


def float_expert(made: Quantised) -> None:
    to_float(made, DOWN, (16, 16))


def static_fused(made: Quantised) -> None:
    drop_parts(made, f"{ATT}q_a_proj")
    put_static(made, f"{ATT}q_a_proj", (6, 16))


def input_scales(made: Quantised) -> None:
    static_everywhere(made)
    spec, _ = made.stored[f"{ATT}q_a_proj.input_scale"]
    made.stored[f"{ATT}q_a_proj.input_scale"] = (spec, b"\0\0\x80\x3f")


def static_without(part: str) -> Change:
    return both(static_everywhere, gone(f"{ATT}o_proj.{part}"))


def float_query(made: Quantised) -> None:
    for layer in range(5):
        to_float(made, f"model.layers.{layer}.self_attn.q_b_proj", (12, 6))


def float_index_query(made: Quantised) -> None:
    for layer in (0, 1, 2, 4):
        to_float(made, f"model.layers.{layer}.self_attn.indexer.wq_b", (8, 6))


# Mutation: the rules for 0.23.0.post1 and for 0.30.0rc2, None where that engine is content.
ROWS: dict[str, tuple[Change, str | None, str | None]] = {
    "q_a static, kv_a dynamic": (static_fused, "fused-mixed", "fused-mixed"),
    "kv_a not described": (
        forget(f"{ATT}kv_a_proj_with_mqa"),
        "undescribed-fused",
        "undescribed-fused",
    ),
    "o_proj not described, int8 and scale": (
        forget(f"{ATT}o_proj"),
        "undescribed-int8",
        "undescribed-int8",
    ),
    "o_proj not described, int8 only": (
        both(gone(f"{ATT}o_proj.weight_"), forget(f"{ATT}o_proj")),
        "scale-missing undescribed-int8",
        "scale-missing undescribed-int8",
    ),
    "wk int8": (int8(f"{ATT}indexer.wk"), "scheme-float-only", "scheme-float-only"),
    "kv_b int8": (int8(f"{ATT}kv_b_proj"), "scheme-float-only", "scheme-float-only"),
    "q_b float": (float_query, None, "query-up-float"),
    "router int8": (int8(f"{L1}mlp.gate"), "scheme-float-only", "scheme-float-only"),
    "unknown scheme": (
        describe(**{f"{ATT}o_proj.weight": "W3A3"}),
        "scheme-unknown",
        "scheme-unknown",
    ),
    "int4 linear": (
        lambda made: put_int4(made, f"{ATT}o_proj", (16, 8)),
        "scheme-int4-linear",
        "scheme-int4-linear",
    ),
    "one float expert": (float_expert, "fused-mixed", "fused-mixed"),
    "down scale_bias in one column": (
        put(f"{DOWN}.scale_bias", (16, 1), "F32", "W4A8_DYNAMIC"),
        "scale-bias-columns",
        "scale-bias-columns",
    ),
    "one scale_bias missing": (
        gone(f"{GATE}.scale_bias"),
        "scale-bias-missing",
        "scale-bias-missing",
    ),
    "one weight_scale missing": (gone(f"{GATE}.weight_scale"), "scale-missing", "scale-missing"),
    "static deq_scale missing": (static_without("deq_scale"), "static-missing", "static-missing"),
    "static quant_bias missing": (static_without("quant_bias"), "static-missing", "static-missing"),
    "static input_scale missing": (
        static_without("input_scale"),
        "static-missing",
        "static-missing",
    ),
    "unpacked int4": (
        put(f"{GATE}.weight", (16, 16), "I8", "W4A8_DYNAMIC"),
        "int4-unpacked",
        "int4-unpacked",
    ),
    "int4 packed along in": (
        put(f"{GATE}.weight", (16, 8), "I8", "W4A8_DYNAMIC"),
        "int4-unpacked",
        "int4-unpacked",
    ),
    "1-D scale": (
        put(f"{GATE}.weight_scale", (16,), "F32", "W4A8_DYNAMIC"),
        "scale-axis",
        "scale-axis",
    ),
    "extra scale_second": (
        put(f"{GATE}.weight_scale_second", (16, 1), "F32", "W4A8_DYNAMIC"),
        "tensor-unknown",
        "tensor-unknown",
    ),
    "group_size 256": (describe(group_size=256), "group-size", "group-size"),
    "group_size missing": (forget("group_size"), "group-size-missing", None),
    "version missing": (forget("version"), "version-key", None),
    "no weight_offset anywhere": (
        lambda made: [made.drop(n) for n in list(made.stored) if n.endswith("offset")] and None,
        None,
        None,
    ),
    "MTP not described": (forget(MTP), "mtp-undescribed", "mtp-undescribed"),
    "MTP without embedding and head": (
        gone(f"{MTP}embed_tokens", f"{MTP}shared_head.head"),
        "mtp-vocabulary",
        None,
    ),
    "is_rot_used without rot.weight": (
        lose("rot.weight"),
        "rotation-missing",
        "rotation-missing",
    ),
    "indexer absent, no index fields": (
        without_index_fields,
        "config-schedule",
        "config-schedule",
    ),
    "different input scales": (input_scales, "shared-input", "shared-input"),
}


def found(directory: Path, engine: str) -> list[tuple[str, str]]:
    release = find_release(engine)
    return [(finding.severity, finding.rule) for finding in check_headers(directory, release)]


def write(made: Quantised, directory: Path) -> Path:
    """Write it; a None in the configuration removes the key."""
    config = dict(made.config)
    made.config = {key: value for key, value in config.items() if value is not None}
    made.write(directory)
    edit_json(directory / "config.json", **{k: v for k, v in config.items() if v is None})
    return directory


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str, tmp_path: Path) -> None:
    change, old, new = ROWS[row]
    made = good()
    change(made)
    write(made, tmp_path)
    for engine, rules in (("0.23", old), ("0.30", new)):
        errors = [name for severity, name in found(tmp_path, engine) if severity == "error"]
        assert sorted(errors) == (rules or "").split(), engine
    # Without an engine, whatever some release minds is mentioned.
    everything = {finding.rule for finding in check_headers(tmp_path)}
    assert {*(old or "").split(), *(new or "").split()} <= everything


def test_unused_indexers(tmp_path: Path) -> None:
    """GLM-5 with index_topk_freq in config.json: KeyError in 0.23, tensors dropped in 0.30."""
    made = good(index_topk_freq=1, indexer_types=["full"] * 4)
    made.config["indexer_types"] = ["full", "full", "full", "shared"]
    made.config["index_topk_freq"] = 2
    made.write(tmp_path)
    assert found(tmp_path, "0.23") == [("error", "indexer-unused")]
    assert found(tmp_path, "0.30") == [("warning", "indexer-unused")]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("engine", [r.text for r in RELEASES if r.series >= (0, 19)])
def test_good_folder_is_good_everywhere(static: bool, engine: str, tmp_path: Path) -> None:
    made = good()
    if static:
        static_everywhere(made)
    assert found(made.write(tmp_path), engine) == []
    assert check_headers(tmp_path) == []


def test_what_differs_within_a_gap_is_a_warning(tmp_path: Path) -> None:
    made = good()
    float_query(made)
    float_index_query(made)
    made.write(tmp_path)
    assert found(tmp_path, "0.23") == []
    assert ("warning", "query-up-float") in found(tmp_path, "0.26")
    assert ("error", "index-query-float") in found(tmp_path, "0.26")
    assert found(tmp_path, "0.30") == [("error", "query-up-float")]


def test_keys_that_old_engines_need(tmp_path: Path) -> None:
    """Seen with 0.23.0.post1, which 0.30.0rc2 loads: no indexer_types, and an odd head_dim."""
    write(good(indexer_types=None), tmp_path / "types")
    assert found(tmp_path / "types", "0.23") == [("error", "config-indexer-types")]
    made = good()
    made.config["head_dim"] = 80
    made.write(tmp_path / "head")
    assert found(tmp_path / "head", "0.23") == [("error", "config-head-dim")]
    for folder, rule in (("types", "config-indexer-types"), ("head", "config-head-dim")):
        assert found(tmp_path / folder, "0.26") == [("warning", rule)]
        assert found(tmp_path / folder, "0.30") == []


def test_float_linear_that_is_not_described(tmp_path: Path) -> None:
    made = good()
    del made.description[f"{ATT}kv_b_proj.weight"]
    made.write(tmp_path)
    assert found(tmp_path, "0.26") == [("error", "undescribed-linear")]
    assert found(tmp_path, "0.27") == []


def test_shared_indexers_need_a_newer_engine(tmp_path: Path) -> None:
    good().write(tmp_path)
    assert found(tmp_path, "0.18") == [("error", "release-too-old")]


def test_every_verdict_has_a_source_and_an_effect() -> None:
    for name, rule in RULES.items():
        assert rule.problem, name
        assert rule.fix, name
        assert rule.verdicts, name
        for verdict in rule.verdicts:
            assert verdict.effect, name
            assert verdict.source, name
            assert verdict.severity in ("error", "warning"), name
