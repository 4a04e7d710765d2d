"""``glm5-ascend export``: files, functions, summary and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from glm5_ascend import cli as command_line
from glm5_ascend.checkpoint import CheckpointReader, TensorSpec
from glm5_ascend.errors import CheckpointError, ExitCode
from glm5_ascend.ops.onnx import save as saving
from glm5_ascend.ops.onnx.functions import calls, with_functions
from glm5_ascend.ops.onnx.graph import GraphBuilder
from glm5_ascend.ops.onnx.names import DOMAIN
from glm5_ascend.ops.onnx.weights import LayerWeights, Part, Weight
from tests.ops.onnx.layers import SMALL
from tests.ops.onnx.session import Session
from tests.support.tiny_model import write_tiny


def export(*arguments: object) -> Result:
    return CliRunner().invoke(command_line.cli, ["export", *map(str, arguments)])


def refused(code: ExitCode, said: str, *arguments: object) -> None:
    """The command fails with ``code``, one error line that says ``said``, and a hint."""
    result = export(*arguments)
    assert result.exit_code == code, result.output
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")


WEIGHTS = (
    "weight_",
    "rmsnorm_gamma",
    "dequant_scale_w",
    "quant_scale",
    "quant_offset",
    "quant_bias",
)
OPERATORS = [
    ("lightning_indexer", "LightningIndexer", ()),
    ("lightning_indexer", "LightningIndexerPaged", ("--layout", "PA_BSND", "--dtype", "bfloat16")),
    ("sparse_flash_attention", "SparseFlashAttention", ("--dtype", "float16")),
    ("sparse_flash_attention", "SparseFlashAttentionPaged", ("--layout", "PA_BSND")),
    ("mlapo", "MlapoPaged", ("--dtype", "bfloat16")),
    ("mlapo", "MlapoPagedW8A8W8A8", ("--weights", "w8a8")),
    ("mlapo", "MlapoPagedW8A8DynamicW8A8Dynamic", ("--weights", "w8a8-dynamic")),
]


@pytest.mark.parametrize(("what", "function", "options"), OPERATORS)
def test_operator(what: str, function: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """One call of one function of our domain, at GLM-5's sizes; ONNX Runtime takes it."""
    file = tmp_path / "operator.onnx"
    result = export(what, "-o", file, *options, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    model = onnx.load(file)
    assert [(node.domain, node.op_type) for node in model.graph.node] == [(DOMAIN, function)]
    assert {f.domain for f in model.functions} == {DOMAIN}
    assert function in summary["functions"]
    assert summary["bytes"] == file.stat().st_size
    session = Session(str(file))
    assert session.inputs == [port["name"] for port in summary["inputs"]]
    assert session.outputs == [port["name"] for port in summary["outputs"]]
    # Everything but the weights has a dynamic axis.
    fixed = {port["name"] for port in summary["inputs"] if not any_text(port["shape"])}
    assert all(name.startswith(WEIGHTS) for name in fixed)
    assert all(any_text(port["shape"]) for port in summary["outputs"])


def any_text(shape: list[int | str]) -> bool:
    return any(isinstance(axis, str) for axis in shape)


def test_sizes_of_a_model_and_two_lengths(tmp_path: Path) -> None:
    file = tmp_path / "indexer.onnx"
    assert export("lightning_indexer", "-o", file, "--model", SMALL).exit_code == 0
    session = Session(str(file))
    for queries, keys in ((1, 3), (5, 90)):
        found = session(
            query=torch.ones(2, queries, 16, 128),
            key=torch.ones(2, keys, 1, 128),
            weights=torch.ones(2, queries, 16),
            actual_seq_lengths_query=torch.tensor([queries, 1], dtype=torch.int32),
            actual_seq_lengths_key=torch.tensor([keys, 1], dtype=torch.int32),
        )["sparse_indices"]
        # Equal scores: the lowest positions.
        wanted = [i if i < keys else -1 for i in range(64)]
        assert found[0, -1, 0].tolist() == wanted
        assert found[1, 0, 0].tolist() == [0] + [-1] * 63


def test_layer(tmp_path: Path) -> None:
    file = tmp_path / "layer.onnx"
    result = export("layer", "--model", SMALL, "--layer", 3, "-o", file)
    assert result.exit_code == 0, result.output
    assert "past_latent float[cached, 256]" in result.stdout
    assert "opset 18" in result.stdout
    model = onnx.load(file)
    called = set(calls(model.graph.node))
    assert {"Mlapo", "SparseFlashAttention", "MoeGating", "MoeExperts", "RmsNorm"} <= called
    assert "LightningIndexer" not in called
    assert called <= {f.name for f in model.functions}
    # Published names, so that another tool finds its weights.
    assert "self_attn.o_proj.weight" in {tensor.name for tensor in model.graph.initializer}


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("--model", ("layer",)),
        ("--layer", ("layer", "--model", SMALL)),
        ("--layer is for layer only", ("mlapo", "--layer", 1)),
        ("--layout", ("mlapo", "--layout", "BSND")),
        ("--dtype", ("layer", "--model", SMALL, "--layer", 1, "--dtype", "float16")),
        ("--weights", ("lightning_indexer", "--weights", "w8a8")),
    ],
)
def test_wrong_usage(said: str, arguments: tuple[object, ...], tmp_path: Path) -> None:
    refused(ExitCode.USAGE, said, *arguments, "-o", tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layer", [-1, 8, 99])
def test_layer_out_of_range(layer: int, tmp_path: Path) -> None:
    arguments = ("layer", "--model", SMALL, "--layer", layer, "-o", tmp_path / "x.onnx")
    refused(ExitCode.INPUT, f"no layer {layer}", *arguments)


def test_wrong_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(ExitCode.INPUT, "llama", "mlapo", "--model", tmp_path, "-o", tmp_path / "x.onnx")
    arguments = ("layer", "--layer", 0, "--model", tmp_path, "-o", tmp_path / "x.onnx")
    refused(ExitCode.INPUT, "llama", *arguments)


def test_fp8_checkpoint(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "fp8", fp8=True)
    arguments = ("layer", "--layer", 0, "--model", source, "-o", tmp_path / "x.onnx")
    refused(ExitCode.INPUT, "FP8", *arguments)


def test_damaged_weights(tmp_path: Path) -> None:
    """A NaN in the file stops the export; one in another layer does not matter."""
    source = write_tiny(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.self_attn.o_proj.weight"][3, 4] = torch.nan
    save_file(tensors, source / "model.safetensors")
    (source / "model.safetensors.index.json").unlink(missing_ok=True)
    arguments = ("layer", "--model", source, "-o", tmp_path / "x.onnx", "--layer")
    refused(ExitCode.INPUT, "NaN or infinity, first at [3, 4]", *arguments, 1)
    assert not (tmp_path / "x.onnx").exists()
    assert export(*arguments, 2).exit_code == 0


def test_output_that_exists(tmp_path: Path) -> None:
    file = tmp_path / "x.onnx"
    file.write_text("mine")
    refused(ExitCode.INPUT, "exists already", "mlapo", "-o", file)
    folder = tmp_path / "folder.onnx"
    folder.mkdir()
    refused(ExitCode.INPUT, "is no file", "mlapo", "-o", folder, "--overwrite")
    assert file.read_text() == "mine"
    assert export("mlapo", "-o", file, "--overwrite").exit_code == 0
    onnx.checker.check_model(str(file))
    (tmp_path / "y.onnx.safetensors").write_text("mine")
    refused(ExitCode.INPUT, "y.onnx.safetensors exists", "mlapo", "-o", tmp_path / "y.onnx")
    (tmp_path / "d.onnx").mkdir()
    refused(ExitCode.INPUT, "exists", "mlapo", "-o", tmp_path / "d.onnx", "--overwrite")


def test_output_that_is_no_onnx_file(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    refused(ExitCode.INPUT, "notes.txt", "mlapo", "-o", file, "--overwrite")
    assert file.read_text() == "mine"


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file/absent/x.onnx", "file/x.onnx"):
        refused(ExitCode.INPUT, "cannot write", "mlapo", "-o", tmp_path / place)
    assert export("mlapo", "-o", tmp_path / "absent" / "x.onnx").exit_code == 0
    assert (tmp_path / "absent" / "x.onnx").is_file()


@pytest.mark.parametrize("package", ["onnx", "torch"])
def test_package_that_is_not_installed(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = command_line.find_spec
    monkeypatch.setattr(
        command_line, "find_spec", lambda name: None if name == package else real(name)
    )
    result = export("mlapo", "-o", tmp_path / "x.onnx")
    assert result.exit_code == ExitCode.PREFLIGHT
    assert f"needs {package}" in result.stderr
    assert f"glm5-ascend[{'onnx' if package == 'onnx' else 'cpu'}]" in result.stderr


def test_nothing_is_left_of_a_failed_export(tmp_path: Path) -> None:
    """The second weight cannot be read: neither the model nor the file of the first is there."""

    def broken() -> np.ndarray:
        raise CheckpointError("the weights are damaged", "download them again")

    spec = TensorSpec((1000,), "F32")
    good = Weight("a", spec, (Part("a", spec, lambda: np.zeros(1000, np.float32)),))
    bad = Weight("b", spec, (Part("b", spec, broken),))
    builder = GraphBuilder("empty")
    for limit in (1, 1 << 20):
        with pytest.raises(CheckpointError, match="damaged"):
            saving.save(with_functions(builder.build()), [good, bad], tmp_path / "x.onnx", limit)
        assert not list(tmp_path.iterdir())


def test_stacked_experts_are_read_one_matrix_at_a_time() -> None:
    with CheckpointReader(SMALL) as reader:
        stacked = LayerWeights(reader, 1).experts(("gate", "up"), "weight", "w13")
        assert stacked.spec == TensorSpec((16, 96, 192), "F32")
        names = [name for name, _ in stacked.chunks()]
        assert names[:3] == [
            "mlp.experts.0.gate_proj.weight",
            "mlp.experts.0.up_proj.weight",
            "mlp.experts.1.gate_proj.weight",
        ]
        assert {len(data) for _, data in stacked.chunks()} == {48 * 192 * 4}
