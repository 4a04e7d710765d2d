"""Refined rotations: the model stays the same, every reader knows them, runs can be killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError, ConfigError
from glm5_ascend.quant import convert, matrix_cpu, stream
from glm5_ascend.quant.calibration.options import CalibrationOptions
from glm5_ascend.quant.calibration.rotation_run import RotationRun
from glm5_ascend.quant.calibration.session import Session
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.journal import MANIFEST
from glm5_ascend.quant.methods.learned_rotation import Learned
from glm5_ascend.quant.native import kernel_axis
from glm5_ascend.quant.native.errors import NoKernel
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.recipe_file import parse, preset
from glm5_ascend.quant.refinement import REFINEMENTS, as_bytes, refined_rotations
from glm5_ascend.quant.rotation import Orthogonal, in_layer, rotations
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.verify import VerifyOptions
from glm5_ascend.quant.verify import run as verify
from tests.quant import damage
from tests.quant.conftest import contents, json_of, nearly_equal
from tests.quant.test_equivalence import EXACT, Run, change, run_model

FLOAT = "refine_rotation: all\ndtype: float32\nmtp: float\nrules: [{modules: '*', scheme: FLOAT}]\n"
TOKENS = CalibrationOptions(tokens=600)


def turned(config: Glm5Config, seed: int = 5) -> dict[str, torch.Tensor]:
    """A random refinement of every axis, some of them in two blocks."""
    generator = torch.Generator().manual_seed(seed)

    def blocks(size: int, count: int) -> torch.Tensor:
        shape = (count, size // count, size // count)
        return torch.linalg.qr(torch.randn(shape, dtype=torch.float64, generator=generator)).Q

    found = {"R1": blocks(config.hidden_size, 2)}
    for layer in range(config.layer_count):
        found[f"R2.{layer}"] = blocks(config.q_lora_rank, 2)
        found[f"R4.{layer}"] = blocks(config.v_head_dim, 1)
    return found


@pytest.fixture
def given(source: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Runs learn these refinements."""
    found = turned(Glm5Config.from_dir(source))
    learned = {name: Learned(blocks, 2.0, 1.0, 1) for name, blocks in found.items()}
    monkeypatch.setattr(RotationRun, "learn", lambda self, progress: learned)
    return found


def quantized(source: Path, out: Path, text: str, tmp_path: Path, **more: Any) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    run(QuantizeOptions(source, out, recipe=file, calibration=TOKENS, **more))
    return out


@pytest.fixture(scope="module")
def before(source: Path) -> Run:
    return run_model(source)


def test_the_model_is_the_same(
    source: Path, tmp_path: Path, before: Run, given: dict[str, torch.Tensor]
) -> None:
    """transformers' logits, MTP included, with a random rotation behind each of ours."""
    out = quantized(source, tmp_path / "out", FLOAT, tmp_path)
    after = run_model(out)
    assert change(before.main, after.main) < EXACT
    # Later steps of the MTP layer are exact only with equal norms, see test_equivalence.py.
    assert change(before.first, after.first) < EXACT
    assert all(map(torch.equal, before.choices, after.choices))
    names = set(load((out / REFINEMENTS).read_bytes()))
    assert names == set(given)
    assert json_of(out / "quantize_manifest.json")["texts"][REFINEMENTS]["bytes"] > 0
    assert verify(VerifyOptions(out, source=source)).findings == []


def without(name: str) -> Callable[..., dict[str, Orthogonal]]:
    def patched(matrices: dict[str, Orthogonal], layer: int | None) -> dict[str, Orthogonal]:
        found = in_layer(matrices, layer)
        return found if layer != 1 else {**found, name: matrices[name]}

    return patched


@pytest.mark.parametrize("name", ["R2", "R4"])
def test_a_layer_that_is_forgotten_is_seen(
    source: Path,
    tmp_path: Path,
    before: Run,
    given: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Planted: one reader of layer 1 turned with the rotation of all layers."""
    reader = {"R2": "q_b_proj", "R4": "o_proj"}[name]
    plain = convert.data_free

    def planted(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        step: Step = args[1]
        if step.name == f"model.layers.1.self_attn.{reader}.weight":
            monkeypatch.setattr(convert, "in_layer", without(name))
        try:
            return plain(*args, **kwargs)
        finally:
            monkeypatch.setattr(convert, "in_layer", in_layer)

    monkeypatch.setattr(convert, "data_free", planted)
    out = quantized(source, tmp_path / "out", FLOAT, tmp_path)
    assert change(before.main, run_model(out).main) > 1e-3
    found = verify(VerifyOptions(out, source=source)).findings
    assert [finding.rule for finding in found] == ["source-error"]
    assert found[0].subjects == (f"model.layers.1.self_attn.{reader}.weight",)


def test_kernels_equal_the_reference(source: Path) -> None:
    """Float and integers: products in float32 behind the kernels, all of it in float64."""
    from glm5_ascend.quant.backend import REFERENCE

    with CheckpointReader(source) as reader:
        config = reader.config
        file = source.parent / "refinements"
        file.write_bytes(as_bytes(turned(config)))
        matrices = refined_rotations(config, file)
        steps = [step for shard in make_plan(config, preset("w4a8")).shards for step in shard.steps]
        matrices_seen = 0
        for step in steps:
            if step.scheme is Scheme.FLOAT:
                continue
            found = convert.unrounded(reader, step, matrices, None)
            wanted = convert.unrounded(reader, step, matrices, None, REFERENCE)
            assert torch.allclose(found, wanted, atol=2e-6 * float(wanted.abs().max())), step.name
            matrices_seen += 1
        assert matrices_seen > 30


def test_a_vocabulary_matrix_by_pieces(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointReader(source) as reader:
        file = source.parent / "refinements"
        file.write_bytes(as_bytes(turned(reader.config)))
        matrices = refined_rotations(reader.config, file)
        plan = make_plan(reader.config, preset("w4a8"))
        steps = {step.name: step for shard in plan.shards for step in shard.steps}
        step = steps["lm_head.weight"]
        whole = convert.unrounded(reader, step, matrices, None)
        monkeypatch.setattr(matrix_cpu, "_CHUNK", 7 * step.shape[1])
        assert nearly_equal(convert.unrounded(reader, step, matrices, None).bfloat16(), whole)


def test_kernels_alone_refuse_them(source: Path) -> None:
    config = Glm5Config.from_dir(source)
    file = source.parent / "refinements"
    file.write_bytes(as_bytes(turned(config)))
    matrices = refined_rotations(config, file)
    with CheckpointReader(source) as reader:
        plan = make_plan(reader.config, preset("w4a8"))
    step = next(
        s for shard in plan.shards for s in shard.steps if s.name.endswith("q_a_proj.weight")
    )
    with pytest.raises(NoKernel, match="R1"):
        kernel_axis(step.fold.columns, matrices)


THOROUGH = """
refine_rotation: all
mtp: float
smoothing: [fit]
rules:
  - {modules: "*.mlp.experts.*", scheme: W4A8_DYNAMIC, rounding: gptq}
  - {modules: "*", scheme: W8A8_DYNAMIC, rounding: gptq}
"""


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("refined")
    return quantized(source, work / "out", THOROUGH, work)


def test_learned_from_text_and_weights(source: Path, wanted: Path) -> None:
    config = Glm5Config.from_dir(source)
    found = load((wanted / REFINEMENTS).read_bytes())
    assert "R1" in found
    for name, blocks in found.items():
        size = rotations(config)[name.split(".")[0]].size
        assert blocks.shape[0] * blocks.shape[1] == size
    assert verify(VerifyOptions(wanted, source=source, manifest=True)).findings == []


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_the_learning(
    source: Path, wanted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    refine = Session.refine

    def dying(self: Session) -> None:
        if moment == "after":
            refine(self)
        raise Killed

    monkeypatch.setattr(Session, "refine", dying)
    with pytest.raises(Killed):
        quantized(source, tmp_path / "out", THOROUGH, tmp_path)
    monkeypatch.undo()
    if moment == "after":
        monkeypatch.setattr(RotationRun, "learn", lambda self, progress: pytest.fail("again"))
    quantized(source, tmp_path / "out", THOROUGH, tmp_path, resume=True)
    assert contents(tmp_path / "out") == contents(wanted)
    assert not (tmp_path / ".out.calibration").exists()
    # A finished job is only looked at.
    monkeypatch.setattr(RotationRun, "learn", lambda self, progress: pytest.fail("again"))
    quantized(source, tmp_path / "out", THOROUGH, tmp_path, resume=True)
    assert contents(tmp_path / "out") == contents(wanted)


def test_lost_after_a_layer_is_solved(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = Session._solve

    def dying(self: Session, *args: Any) -> None:
        if self.solved:
            raise Killed
        solve(self, *args)

    monkeypatch.setattr(Session, "_solve", dying)
    with pytest.raises(Killed):
        quantized(source, tmp_path / "out", THOROUGH, tmp_path)
    monkeypatch.undo()
    (tmp_path / ".out.calibration" / REFINEMENTS).unlink()
    with pytest.raises(CheckpointError, match="solved layers are in its basis"):
        quantized(source, tmp_path / "out", THOROUGH, tmp_path, resume=True)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "not orthogonal": lambda file: file.write_bytes(
        as_bytes({"R1": 1.01 * load(file.read_bytes())["R1"]})
    ),
    "another model": lambda file: file.write_bytes(
        as_bytes({"R1": torch.eye(8, dtype=torch.float64)[None]})
    ),
    "another name": lambda file: file.write_bytes(
        as_bytes({"R9": torch.eye(8, dtype=torch.float64)[None]})
    ),
    # The last bit of a number: as orthogonal as before.
    "one bit": lambda file: damage.flip_byte(file, -8),
    "renamed": lambda file: file.write_bytes(file.read_bytes().replace(b'"R2.3"', b'"R2.4"')),
    "no digest": lambda file: file.write_bytes(save(load(file.read_bytes()))),
}


@pytest.mark.parametrize("name", ["R1.0", "R2", "R2.5", "R2.x", "R2.00", "R3", "R3.0"])
def test_names_of_no_refinement(source: Path, tmp_path: Path, name: str) -> None:
    """A rotation that fits, for an axis or a layer that has no refinement of its own."""
    config = Glm5Config.from_dir(source)
    size = rotations(config)[name.split(".")[0]].size
    file = tmp_path / REFINEMENTS
    file.write_bytes(as_bytes({name: torch.eye(size, dtype=torch.float64)[None]}))
    with pytest.raises(CheckpointError, match=f"{name} is no rotation of this model"):
        refined_rotations(config, file)


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_files(source: Path, wanted: Path, tmp_path: Path, case: str) -> None:
    file = tmp_path / REFINEMENTS
    file.write_bytes((wanted / REFINEMENTS).read_bytes())
    DAMAGES[case](file)
    with pytest.raises(CheckpointError, match=r"damaged|no rotation of this model"):
        refined_rotations(Glm5Config.from_dir(source), file)


@pytest.mark.parametrize("case", ["gone", "one bit", "cut"])
def test_resuming_what_is_finished_hides_no_damage(
    source: Path, wanted: Path, tmp_path: Path, case: str
) -> None:
    """The manifest would be written anew, with the damaged file or without any."""
    out = damage.copy_of(wanted, tmp_path / "out")
    if case == "gone":
        (out / REFINEMENTS).unlink()
    else:
        DAMAGES[case](out / REFINEMENTS)
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(CheckpointError, match=REFINEMENTS):
        quantized(source, out, THOROUGH, tmp_path, resume=True)
    assert (out / MANIFEST).read_bytes() == before


def test_damaged_once_all_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the texts; the file in the work directory is the only one."""

    def dying(*args: object, **kwargs: object) -> None:
        raise Killed

    monkeypatch.setattr(stream, "finish", dying)
    with pytest.raises(Killed):
        quantized(source, tmp_path / "out", THOROUGH, tmp_path)
    monkeypatch.undo()
    DAMAGES["one bit"](tmp_path / ".out.calibration" / REFINEMENTS)
    with pytest.raises(CheckpointError, match="is damaged"):
        quantized(source, tmp_path / "out", THOROUGH, tmp_path, resume=True)


def test_manifest_knows_the_file(source: Path, wanted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in wanted.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    damage.flip_byte(copy / REFINEMENTS, -1)
    found = verify(VerifyOptions(copy, manifest=True)).findings
    assert [finding.subjects for finding in found] == [(REFINEMENTS,)]


def test_recipes() -> None:
    with pytest.raises(ConfigError, match="`refine_rotation` is all, but `rotate` is false"):
        parse(f"rotate: false\n{FLOAT}", "x", "recipe")
    assert preset("w4a8-thorough").refine_rotation == "all"
    plain = QuantizeOptions(Path("a"), Path("b"), "w4a8-thorough", rotate=False).wanted()
    assert (plain.rotate, plain.refine_rotation) == (False, "none")


def test_compressed_tensors_keep_the_stream(
    source: Path, tmp_path: Path, given: dict[str, torch.Tensor], before: Run
) -> None:
    """With an MTP layer the residual stream is not turned; attention's axes are, and undone."""
    out = quantized(source, tmp_path / "out", FLOAT, tmp_path, format="compressed-tensors")
    assert change(before.main, run_model(out).main) < EXACT
