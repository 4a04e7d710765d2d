"""The compressed-tensors export: its own library's values, vLLM's reading of it, equal logits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.cli import cli
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.calibration.options import CalibrationOptions
from glm5_ascend.quant.compressed_tensors import quantization_config
from glm5_ascend.quant.plan import Plan, make_plan
from glm5_ascend.quant.recipe_file import overridden, preset
from glm5_ascend.quant.scheme import Scheme
from tests.quant.conftest import json_of, quantize, tensors_of
from tests.quant.test_equivalence import EXACT, change, run_model
from tests.support.tiny_config import tiny_config
from tests.support.tiny_model import write_tiny

FORMAT: Any = "compressed-tensors"
CALIBRATED = {"calibration": CalibrationOptions("default", 1024)}
BITS = {Scheme.W8A8_DYNAMIC: 8, Scheme.W4A8_DYNAMIC: 4}


def plan_of(config: Glm5Config, scheme: str) -> Plan:
    return make_plan(config, overridden(preset(scheme), format=FORMAT))


def schemes_of(plan: Plan) -> dict[str, Scheme]:
    return {
        step.name.removesuffix(".weight"): step.scheme
        for shard in plan.shards
        for step in shard.steps
        if len(step.shape) == 2
    }


@pytest.fixture(scope="module")
def exports(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("compressed")
    return {
        scheme: quantize(source, home / scheme, scheme, format=FORMAT)
        for scheme in ("w8a8", "w4a8")
    }


@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_its_own_library_decompresses_it(
    exports: dict[str, Path], source: Path, scheme: str
) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    directory = exports[scheme]
    stated = json_of(directory / "config.json")["quantization_config"]
    read = quantization.QuantizationConfig.model_validate(stated)
    assert read.format == ("int-quantized" if scheme == "w8a8" else "mixed-precision")
    made, plain = tensors_of(directory), tensors_of(source)
    with CheckpointReader(source) as reader:
        schemes = schemes_of(plan_of(reader.config, scheme))
    limits = {8: 2e-4, 4: 2e-2}
    seen = set()
    for module, kind in schemes.items():
        if kind is Scheme.FLOAT:
            assert made[f"{module}.weight"].dtype is torch.bfloat16, module
            continue
        groups = [
            group
            for group in read.config_groups.values()
            if any(re.match(target.removeprefix("re:"), module) for target in group.targets)
        ]
        assert [group.weights.num_bits for group in groups] == [BITS[kind]], module
        parts = {n.rpartition(".")[2]: t for n, t in made.items() if n.startswith(f"{module}.")}
        compressor = compressors.BaseCompressor.get_value_from_registry(groups[0].format)
        assert set(parts) == set(compressor.compression_param_names(groups[0]))
        value = compressor.decompress(parts, groups[0])["weight"]
        # The writer of the format makes the same bytes of the values that it reads from them.
        again = compressor.compress({**parts, "weight": value}, groups[0])
        for part, tensor in parts.items():
            assert (tensor.dtype, tensor.tolist()) == (again[part].dtype, again[part].tolist())
        if ".mlp." in module:
            # Nothing is folded into these: γ and the rotation of the residual stream stay outside.
            weight = plain[f"{module}.weight"].double()
            error = float((value.double() - weight).square().sum() / weight.square().sum())
            assert error < limits[BITS[kind]], module
        seen.add(BITS[kind])
    assert seen == ({8} if scheme == "w8a8" else {4, 8})


@pytest.mark.parametrize("options", [{}, CALIBRATED], ids=["data-free", "calibrated"])
def test_codes_are_those_for_the_npu(tmp_path: Path, options: dict[str, Any]) -> None:
    """Without an MTP layer both formats are rotated alike, so only the container differs."""
    source = write_tiny(
        tmp_path / "source", num_nextn_predict_layers=0, head_dim=16, tokenizer=True
    )
    npu = tensors_of(quantize(source, tmp_path / "npu", "w4a8", **options))
    other = tensors_of(quantize(source, tmp_path / "other", "w4a8", format=FORMAT, **options))
    found = [name for name in other if name.endswith(".weight_scale")]
    assert {4, 8} == {8 if f"{name.removesuffix('_scale')}" in other else 4 for name in found}
    for name in found:
        module = name.removesuffix(".weight_scale")
        assert torch.equal(npu[name], other[name]), name
        codes = npu[f"{module}.weight"]
        if f"{module}.weight" in other:
            assert torch.equal(codes, other[f"{module}.weight"]), name
            continue
        wanted = torch.stack([(codes << 4) >> 4, codes >> 4], 1).reshape(-1, codes.shape[1])
        words = other[f"{module}.weight_packed"].long()
        nibbles = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)], -1)
        assert torch.equal(nibbles.reshape(wanted.shape) - 8, wanted.long()), name
        assert other[f"{module}.weight_shape"].tolist() == list(wanted.shape)


def test_rotations_of_the_attention_keep_every_draft(source: Path, tmp_path: Path) -> None:
    """Also the later MTP steps, which a rotated residual stream changes."""
    turned = quantize(source, tmp_path / "out", "none", dtype="float32", format=FORMAT)
    assert "rot.weight" not in tensors_of(turned)
    assert not (tmp_path / "out" / "quant_model_description.json").exists()
    plain, after = run_model(source), run_model(turned)
    for one, other in ((plain.main, after.main), (plain.drafts, after.drafts)):
        assert change(one, other) < EXACT
    before, made = tensors_of(source), tensors_of(turned)
    layer = "model.layers.1."
    for name in ("input_layernorm", "post_attention_layernorm", "mlp.gate"):
        same = before[f"{layer}{name}.weight"].float()
        assert torch.equal(made[f"{layer}{name}.weight"].float(), same), name
    assert bool((made[f"{layer}self_attn.q_a_layernorm.weight"] == 1).all())
    assert (
        change(
            before[f"{layer}self_attn.q_b_proj.weight"], made[f"{layer}self_attn.q_b_proj.weight"]
        )
        > 0.1
    )


def test_without_an_mtp_layer_everything_is_rotated(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", num_nextn_predict_layers=0, head_dim=16)
    turned = quantize(source, tmp_path / "out", "none", dtype="float32", format=FORMAT)
    made = tensors_of(turned)
    assert "rot.weight" not in made
    assert bool((made["model.layers.1.input_layernorm.weight"] == 1).all())


def test_a_mixture_of_layers_has_patterns_of_exactly_its_modules() -> None:
    config = Glm5Config.from_dict(tiny_config("5.2"), source="tiny")
    schemes = schemes_of(plan_of(config, "w4a8"))
    odd = {
        name: Scheme.FLOAT if ".layers.2.mlp.shared" in name else kind
        for name, kind in schemes.items()
    }
    for given in (schemes, odd):
        stated: Any = quantization_config({f"{name}.weight": kind for name, kind in given.items()})
        for module, kind in given.items():
            hits = {
                group["weights"]["num_bits"]
                for group in stated["config_groups"].values()
                for target in group["targets"]
                if re.match(target.removeprefix("re:"), module)
            }
            ignored = any(re.match(one.removeprefix("re:"), module) for one in stated["ignore"])
            assert hits == ({BITS[kind]} if kind in BITS else set()), module
            assert ignored is (kind is Scheme.FLOAT), module


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_vllm_reads_the_same_schemes(exports: dict[str, Path], source: Path, scheme: str) -> None:
    """vLLM's own configuration class, with the names of the modules that it fuses."""
    reading = pytest.importorskip(
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors"
    )
    stated = json_of(exports[scheme] / "config.json")["quantization_config"]
    config = reading.CompressedTensorsConfig.from_config(stated)
    config.packed_modules_mapping = {
        "gate_up_proj": ["gate_proj", "up_proj"],
        "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
    }
    with CheckpointReader(source) as reader:
        schemes = schemes_of(plan_of(reader.config, scheme))
    fused = {
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
        "q_a_proj": "fused_qkv_a_proj",
        "kv_a_proj_with_mqa": "fused_qkv_a_proj",
    }
    layer = torch.nn.Linear(1, 1)
    for module, kind in schemes.items():
        head, _, last = module.rpartition(".")
        names = [module] if ".experts." in module else [f"{head}.{fused.get(last, last)}"]
        for name in names:
            found = config.get_scheme_dict(layer, name)
            if kind is Scheme.FLOAT:
                assert found is None, name
                continue
            assert found is not None, name
            weights, inputs = found["weights"], found["input_activations"]
            assert weights.num_bits == BITS[kind], name
            if kind is Scheme.W8A8_DYNAMIC:
                assert config._is_dynamic_token_w8a8(weights, inputs), name
                assert found["format"] == "int-quantized", name
            else:
                assert config._is_wNa16_group_channel(weights, inputs), name
                assert found["format"] == "pack-quantized", name


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli, ["quantize", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scheme", "w8a8c8"], "kv c8 is a mark for vllm-ascend only"),
        (["--scheme", "w8a8", "--for", "0.30"], "there are no rules for compressed-tensors"),
        (["--recipe", "static.yaml"], "W8A8 is written for vllm-ascend only"),
    ],
)
def test_what_the_format_cannot_say(
    source: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    rules = (
        "rules:\n - {modules: '*.experts.*', scheme: W8A8_DYNAMIC}\n - {modules: '*', scheme: W8A8}"
    )
    (tmp_path / "static.yaml").write_text(rules)
    given = [str(tmp_path / word) if word.endswith(".yaml") else word for word in words]
    more = ["--format", "compressed-tensors", "--dry-run"]
    result = invoke(source, tmp_path / "out", *given, *more)
    assert result.exit_code == 1
    assert message in result.stderr
