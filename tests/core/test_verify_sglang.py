"""``verify --for sglang``: the rules that SGLang documents for ModelSlim's format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.verify.check import examine
from glm5_ascend.verify.sglang import PAGE, judge_for_sglang
from tests.core.ascend import Quantised
from tests.core.engine_folder import edit_json, good, put_int4, static_everywhere, to_float

ATT = "model.layers.1.self_attn."
EXPERTS = "model.layers.1.mlp.experts."


def found(made: Quantised, directory: Path) -> list[tuple[str, str]]:
    folder, _, schemes = examine(made.write(directory))
    return [(one.rule, one.severity) for one in judge_for_sglang(folder, schemes)]


ROTATION = ("sglang-rotation", "warning")


def test_our_formats_are_listed(tmp_path: Path) -> None:
    assert found(good(), tmp_path / "dynamic") == [ROTATION]
    made = good()
    static_everywhere(made)
    assert found(made, tmp_path / "static") == [ROTATION]
    del made.stored["rot.weight"]
    made.description["is_rot_used"] = False
    assert found(made, tmp_path / "unrotated") == []


@pytest.mark.torch
def test_a_release_is_not_quantised(tmp_path: Path) -> None:
    from tests.support.tiny_model import write_tiny

    source = write_tiny(tmp_path / "source")
    folder, _, schemes = examine(source)
    only, *others = judge_for_sglang(folder, schemes)
    assert others == []
    assert (only.rule, only.severity) == ("sglang-unquantised", "error")
    assert "quant_model_description.json is missing" in only.message


def undescribed(made: Quantised) -> None:
    del made.description[f"{ATT}o_proj.weight"]


def unlisted(made: Quantised) -> None:
    for part in ("weight", "weight_scale"):
        made.description[f"{ATT}o_proj.{part}"] = "W8A16"


def int4_linear(made: Quantised) -> None:
    put_int4(made, f"{ATT}o_proj", made.stored[f"{ATT}o_proj.weight"][0].shape)


def half_float(made: Quantised) -> None:
    to_float(made, f"{ATT}q_a_proj", made.stored[f"{ATT}q_a_proj.weight"][0].shape)


def no_scale(made: Quantised) -> None:
    del made.stored[f"{EXPERTS}0.gate_proj.weight_scale"]


CASES: dict[str, tuple[Callable[[Quantised], object], str]] = {
    "undescribed": (undescribed, "sglang-undescribed"),
    "unlisted scheme": (unlisted, "sglang-scheme"),
    "int4 linear": (int4_linear, "sglang-scheme"),
    "half of a fused layer": (half_float, "fused-mixed"),
    "missing scale": (no_scale, "scale-missing"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_page_excludes(case: str, tmp_path: Path) -> None:
    change, rule = CASES[case]
    made = good()
    change(made)
    assert (rule, "error") in found(made, tmp_path / "made")


def test_what_only_vllm_ascend_minds(tmp_path: Path) -> None:
    """Keys that older releases of it want are no part of SGLang's documentation."""
    made = good()
    for key in ("version", "group_size"):
        del made.description[key]
    assert found(made, tmp_path / "made") == [ROTATION]


def test_command(tmp_path: Path) -> None:
    directory = good().write(tmp_path / "made")
    result = CliRunner().invoke(cli, ["verify", str(directory), "--for", "sglang"])
    assert result.exit_code == 0
    assert "checked for SGLang" in result.stdout
    edit_json(directory / "config.json", quantization_config={"quant_method": "fp8"})
    result = CliRunner().invoke(cli, ["verify", str(directory), "--for", "sglang", "--json"])
    assert result.exit_code == 1
    assert '"engine": "SGLang"' in result.stdout
    assert "config-quantization" in result.stdout
    assert "not run" in PAGE
