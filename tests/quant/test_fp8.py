"""FP8 sources are dequantised in float32 on the ceiling grid of 128 x 128 blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.convert import read_matrix
from tests.quant.conftest import json_of, quantize, tensors_of
from tests.support.fp8 import dequantise_blocks
from tests.support.tiny_model import write_tiny

# Neither 320 rows (256 latent + 64 rope) nor 96 columns are multiples of 128.
KV_A = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("fp8") / "source", fp8=True, seed=2)


def test_blocks_with_partial_edges(fp8: Path) -> None:
    tensors = tensors_of(fp8)
    names = [name for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn]
    assert KV_A in names
    with CheckpointReader(fp8) as reader:
        for name in names:
            wanted = dequantise_blocks(tensors[name], tensors[f"{name}_scale_inv"])
            assert torch.equal(read_matrix(reader, name).float(), wanted), name
        part = read_matrix(reader, KV_A, slice(120, 300)).float()
    whole = dequantise_blocks(tensors[KV_A], tensors[f"{KV_A}_scale_inv"])
    assert torch.equal(part, whole[120:300])
    assert tensors[f"{KV_A}_scale_inv"].shape == (3, 1)
    # Rows divided evenly among the scale rows is the mistake to avoid.
    even = tensors[KV_A].float() * tensors[f"{KV_A}_scale_inv"].repeat_interleave(107, 0)[:320]
    assert not torch.allclose(even, whole, rtol=0.01)


def test_output_equals_that_of_the_dequantised_checkpoint(fp8: Path, tmp_path: Path) -> None:
    """No scale, no FP8 and no quantization_config is left; values are those of a float32 source."""
    tensors = tensors_of(fp8)
    plain = {
        name: dequantise_blocks(tensor, tensors[f"{name}_scale_inv"])
        if tensor.dtype == torch.float8_e4m3fn
        else tensor.float()
        for name, tensor in tensors.items()
        if not name.endswith("_scale_inv")
    }
    source = tmp_path / "plain"
    source.mkdir()
    config = json_of(fp8 / "config.json")
    del config["quantization_config"]
    (source / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    save_file(plain, source / "model.safetensors")
    from_fp8 = quantize(fp8, tmp_path / "a", "w4a8")
    from_float = quantize(source, tmp_path / "b", "w4a8")
    wanted, found = tensors_of(from_float), tensors_of(from_fp8)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert "quantization_config" not in json_of(from_fp8 / "config.json")


def test_nan_in_fp8_or_its_scale_is_refused(fp8: Path, tmp_path: Path) -> None:
    for name in (KV_A, f"{KV_A}_scale_inv"):
        source = tmp_path / name.rpartition(".")[2]
        source.mkdir()
        (source / "config.json").write_bytes((fp8 / "config.json").read_bytes())
        tensors = tensors_of(fp8)
        tensors[name] = tensors[name].float()
        tensors[name][0, 0] = float("nan")
        kind = torch.float32 if name.endswith("_inv") else torch.float8_e4m3fn
        tensors[name] = tensors[name].to(kind)
        save_file(tensors, source / "model.safetensors")
        with CheckpointReader(source) as reader, pytest.raises(CheckpointError, match=name):
            read_matrix(reader, KV_A)
