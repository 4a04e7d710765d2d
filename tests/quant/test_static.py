"""Static W8A8: every stored byte against NumPy, the linear that the offline model makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.engine_releases import find_release
from glm5_ascend.quant import stream
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.recipe_file import parse
from glm5_ascend.quant.solutions import NoSolutions, SmoothScales, StaticRange
from glm5_ascend.quant.static_linear import static_tensors
from glm5_ascend.quant.verify import VerifyOptions, run
from glm5_ascend.simulator.offline_linear import StaticLinear
from glm5_ascend.simulator.offline_weights import WeightStore
from tests.quant import damage
from tests.quant.conftest import json_of, tensors_of
from tests.support.ascend import AscendOracle

RECIPE = """
rotate: {rotate}
rules:
  - modules: ["*.q_a_proj", "*.kv_a_proj_with_mqa", "*.q_b_proj", "*.o_proj", "*.wq_b"]
    scheme: W8A8
    rounding: nearest
  - modules: "*"
    scheme: W8A8_DYNAMIC
"""
PARTS = {
    "weight_scale": "F32",
    "weight_offset": "F32",
    "deq_scale": "F32",
    "quant_bias": "I32",
    "input_scale": "F32",
    "input_offset": "F32",
    "weight": "I8",
}
# Exact in bfloat16, one range per input: q_a and kv_a share theirs.
SHARED = StaticRange(0.0234375, -7)
RANGES = {"q_b_proj": StaticRange(0.00390625, 31), "o_proj": StaticRange(1.5, -128)}


class Ranges(NoSolutions):
    """Ranges by module, and nothing else of a calibration."""

    def static_range(self, step: Step) -> StaticRange | None:
        module = step.name.split(".")[-2]
        return RANGES.get(module, SHARED)


def written(source: Path, out: Path, recipe: str, solutions: NoSolutions) -> Path:
    """What the writer makes of a recipe and given solutions."""
    out.mkdir()
    plan, texts, journal, _ = stream.prepare(source, parse(recipe, "static", "static"), 200_000)
    journal.directory = out
    journal.save()
    stream.write_weights(source, plan, journal, 1, solutions)
    stream.finish(source, texts, journal)
    return out


@pytest.fixture(scope="module")
def static(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("static") / "plain"
    return written(source, out, RECIPE.format(rotate="false"), Ranges())


def modules(directory: Path) -> Iterator[str]:
    for name, scheme in json_of(directory / "quant_model_description.json").items():
        if scheme == "W8A8" and name.endswith(".weight"):
            yield name.removesuffix(".weight")


@dataclass(frozen=True)
class Bytes:
    """dtype, shape and content of each tensor, read from the files without any library."""

    tensors: dict[str, tuple[str, list[int], bytes]]

    @classmethod
    def read(cls, directory: Path) -> Bytes:
        found = {}
        for file in directory.glob("*.safetensors"):
            content = file.read_bytes()
            length = int.from_bytes(content[:8], "little")
            header: dict[str, Any] = json.loads(content[8 : 8 + length])
            for name, entry in header.items():
                if name != "__metadata__":
                    first, last = (8 + length + at for at in entry["data_offsets"])
                    assert first % {"I8": 1, "BF16": 2}.get(entry["dtype"], 4) == 0, name
                    found[name] = (entry["dtype"], entry["shape"], content[first:last])
        return cls(found)


def to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round F32 to the nearest BF16, ties to even."""
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype("<u4").view("<f4")


def test_every_byte(source: Path, static: Path) -> None:
    made, plain = Bytes.read(static).tensors, tensors_of(source)
    count = 0
    for module in modules(static):
        weight = plain[f"{module}.weight"].float().numpy().astype("<f4")
        given = RANGES.get(module.split(".")[-1], SHARED)
        scale = to_bfloat16(np.abs(weight).max(1, keepdims=True) / np.float32(127))
        codes = np.clip(np.rint(weight / scale), -128, 127).astype("i1")
        wanted = {
            "weight": codes,
            "weight_scale": scale,
            "weight_offset": np.zeros_like(scale),
            "deq_scale": (np.float64(given.scale) * scale[:, 0].astype("f8")).astype("<f4"),
            "quant_bias": (-given.offset * codes.astype("i8").sum(1)).astype("<i4"),
            "input_scale": np.array([given.scale], "<f4"),
            "input_offset": np.array([given.offset], "<f4"),
        }
        for part, values in wanted.items():
            dtype, shape, content = made[f"{module}.{part}"]
            assert (dtype, shape) == (PARTS[part], list(values.shape)), (module, part)
            assert content == values.tobytes(), (module, part)
            count += 1
    # Four layers, of which three own an indexer; the MTP layer is W8A8_DYNAMIC.
    assert count == 7 * (4 * 4 + 3)


def test_products_and_input_scales_are_exact(static: Path) -> None:
    for module in modules(static):
        tensors = tensors_of(static)
        step, deq = tensors[f"{module}.input_scale"], tensors[f"{module}.deq_scale"]
        assert torch.equal(step.bfloat16().float(), step)
        exact = step.double() * tensors[f"{module}.weight_scale"][:, 0].double()
        assert torch.equal(deq.double(), exact)
        break
    described = json_of(static / "quant_model_description.json")
    for module in modules(static):
        assert {described[f"{module}.{part}"] for part in PARTS} == {"W8A8"}
    assert described["model_quant_type"] == "W8A8_DYNAMIC"
    assert any("norm.bias" in key for key in described)


@pytest.mark.parametrize("engine", ["0.23", "0.26", "0.30"])
def test_verify_finds_nothing(static: Path, source: Path, engine: str) -> None:
    report = run(VerifyOptions(static, source, release=find_release(engine), full=True))
    assert report.findings == []


DAMAGE = {
    "deq_scale": ("deq-scale-value", lambda tensor: tensor * 1.01),
    "quant_bias": ("quant-bias-value", lambda tensor: tensor + 2),
    "input_scale": ("shared-input", lambda tensor: tensor * 2),
}


@pytest.mark.parametrize("part", DAMAGE)
def test_verify_sees_each_part(part: str, static: Path, tmp_path: Path) -> None:
    broken = damage.copy_of(static, tmp_path / "broken")
    rule, change = DAMAGE[part]
    damage.edit(broken, f"model.layers.1.self_attn.q_a_proj.{part}", change)
    assert rule in {found.rule for found in run(VerifyOptions(broken, full=True)).findings}


@pytest.mark.parametrize("rotate", ["false", "true"])
def test_the_offline_model_computes_the_formula(
    source: Path, static: Path, tmp_path: Path, rotate: str
) -> None:
    """``(Σ x_q w_q + quant_bias) · deq_scale`` in float64, and close to the float product."""
    folder = static
    if rotate == "true":
        folder = written(source, tmp_path / "out", RECIPE.format(rotate=rotate), Ranges())
    tensors = tensors_of(folder)
    oracle = AscendOracle(folder)
    with WeightStore(folder, torch.float32) as store:
        for module in list(modules(folder))[:5]:
            linear = store.linear(module)
            assert isinstance(linear, StaticLinear)
            codes = tensors[f"{module}.weight"].double()
            given = RANGES.get(module.split(".")[-1], SHARED)
            generator = torch.Generator().manual_seed(1)
            x = torch.randn(7, codes.shape[1], generator=generator) * given.scale * 40
            quantised = torch.clamp(torch.round(x / given.scale + given.offset), -128, 127)
            bias = tensors[f"{module}.quant_bias"].double()
            deq = tensors[f"{module}.deq_scale"].double()
            wanted = (quantised.double() @ codes.T + bias) * deq
            assert torch.allclose(linear(x).double(), wanted, rtol=1e-5, atol=1e-9), module
            # The oracle, which reads the format by itself, has the same parts.
            assert torch.equal(oracle.quantised[module].codes, tensors[f"{module}.weight"])
            inside = (quantised - given.offset).double() * given.scale
            weight = codes * tensors[f"{module}.weight_scale"].double()
            assert torch.allclose(wanted, inside @ weight.T, rtol=1e-9, atol=1e-9), module


@pytest.mark.parametrize(
    ("given", "scale", "words"),
    [
        (StaticRange(0.1, 0), 0.5, "input_scale must be"),
        (StaticRange(-0.5, 0), 0.5, "input_scale must be"),
        (StaticRange(0.5, 0), 0.1, "weight_scale must be"),
        (StaticRange(0.5, 128), 0.5, "input_offset must be"),
        (StaticRange(0.5, -129), 0.5, "input_offset must be"),
    ],
)
def test_values_that_the_engine_would_round(given: StaticRange, scale: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        static_tensors(torch.ones(2, 4, dtype=torch.int8), torch.full((2, 1), scale), given)


def test_a_static_step_without_a_range(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no range of its input is known"):
        written(source, tmp_path / "out", RECIPE.format(rotate="false"), NoSolutions())


class Smoothing(NoSolutions):
    """Doubles the norm and halves what reads it: the product of both is unchanged."""

    def scales(self, step: Step) -> SmoothScales | None:
        if step.name == "model.layers.1.input_layernorm.weight":
            return SmoothScales(rows=torch.full((step.shape[0],), 2.0, dtype=torch.float64))
        if step.name == "model.layers.1.self_attn.q_a_proj.weight":
            return SmoothScales(columns=torch.full((step.shape[1],), 0.5, dtype=torch.float64))
        return None

    def tensors(self, step: Step) -> dict[str, Tensor] | None:
        if step.name == "model.layers.0.self_attn.q_a_proj.weight":
            return {
                name: torch.full(spec.shape, 2.0, dtype=torch.float32)
                for name, spec in step.stored.items()
            }
        return None


@pytest.mark.parametrize("rotate", ["false", "true"])
def test_solutions_reach_the_files(source: Path, tmp_path: Path, rotate: str) -> None:
    recipe = (
        f"rotate: {rotate}\nrules: [{{modules: '*', scheme: FLOAT}}]\nmtp: rules\ndtype: float32"
    )
    made = tensors_of(written(source, tmp_path / "given", recipe, Smoothing()))
    plain = tensors_of(written(source, tmp_path / "plain", recipe, NoSolutions()))
    factors = {
        "model.layers.1.input_layernorm.weight": 2.0,
        "model.layers.1.self_attn.q_a_proj.weight": 0.5,
    }
    for name, values in plain.items():
        wanted = values * factors.get(name, 1.0)
        if name == "model.layers.0.self_attn.q_a_proj.weight":
            wanted = torch.full_like(values, 2.0)
        assert torch.equal(made[name], wanted), name
