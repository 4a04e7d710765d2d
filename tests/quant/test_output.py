"""The output is what vllm-ascend's loader wants: files, names, dtypes, shapes, values."""

from __future__ import annotations

import itertools
import json
import re
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.rotation import rotations
from tests.quant.conftest import json_of, quantize, tensors_of
from tests.quant.test_rounding import unpack_with_numpy
from tests.support.tiny_model import write_tiny

DESCRIPTION = "quant_model_description.json"
METADATA = {
    "version": "1.0.0",
    "group_size": 0,
    "is_rot_used": True,
    "metadata": {},
    "optional": {},
}
INT8_MODULE = re.compile(
    r"self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)"
    r"|mlp\.(shared_experts\.)?(gate|up|down)_proj"
)
EXPERT = re.compile(r"mlp\.experts\.\d+\.(gate|up|down)_proj")


def wanted_scheme(module: str, experts: str, *, layers: int = 4, mtp: str = "w8") -> str:
    """Scheme of a module by the issue's words, independent of the recipe."""
    parts = module.split(".", 3)
    if not module.startswith("model.layers."):
        return "FLOAT"
    is_mtp = int(parts[2]) >= layers
    if is_mtp and mtp == "float":
        return "FLOAT"
    if EXPERT.fullmatch(parts[3]):
        return "W8A8_DYNAMIC" if is_mtp else experts
    return "W8A8_DYNAMIC" if INT8_MODULE.fullmatch(parts[3]) else "FLOAT"


@pytest.mark.parametrize(
    ("scheme", "experts", "mtp"),
    [("w4a8", "W4A8_DYNAMIC", "w8"), ("w8a8", "W8A8_DYNAMIC", "float"), ("none", "FLOAT", "rules")],
)
def test_description_index_and_files_agree(
    source: Path, tmp_path: Path, scheme: str, experts: str, mtp: str
) -> None:
    output = quantize(source, tmp_path / "out", scheme, mtp=mtp)
    stored, described = tensors_of(output), json_of(output / DESCRIPTION)
    quant_type = {"w4a8": "W4A8_DYNAMIC", "w8a8": "W8A8_DYNAMIC", "none": "FLOAT"}[scheme]
    for key, value in {**METADATA, "model_quant_type": quant_type}.items():
        assert described.pop(key) == value, key
    assert set(described) == set(stored) - {"rot.weight"}
    for name, found in described.items():
        module = name.rpartition(".")[0]
        wanted = "FLOAT" if scheme == "none" else wanted_scheme(module, experts, mtp=mtp)
        assert found == wanted, name
    stem = "model" if scheme == "none" else "quant_model_weights"
    index = json_of(output / f"{stem}.safetensors.index.json")
    assert set(index["weight_map"]) == set(stored)
    assert index["weight_map"]["rot.weight"] == "rot.safetensors"
    assert set(index["weight_map"].values()) == {p.name for p in output.glob("*.safetensors")}
    assert [p.name for p in output.glob("*.index.json")] == [f"{stem}.safetensors.index.json"]


def test_files_and_modes(w4a8: Path, source: Path) -> None:
    names = {path.name for path in w4a8.iterdir()}
    count = len(list(w4a8.glob("quant_model_weights-*.safetensors")))
    shards = {f"quant_model_weights-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)}
    copied = {p.name for p in source.iterdir() if "safetensors" not in p.name}
    assert {"tokenizer.json", "chat_template.jinja", "config.json"} <= copied
    assert names == shards | copied | {
        "rot.safetensors",
        DESCRIPTION,
        "quant_model_weights.safetensors.index.json",
        "quantize_manifest.json",
    }
    for path in w4a8.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    for name in copied - {"config.json"}:
        assert (w4a8 / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("output", ["w4a8", "w8a8"])
def test_shapes_and_dtypes_per_scheme(
    source: Path, output: str, request: pytest.FixtureRequest
) -> None:
    original = tensors_of(source)
    original |= {
        "model.layers.4.embed_tokens.weight": original["model.embed_tokens.weight"],
        "model.layers.4.shared_head.head.weight": original["lm_head.weight"],
        "rot.weight": torch.empty(96, 96),
    }
    experts = "W4A8_DYNAMIC" if output == "w4a8" else "W8A8_DYNAMIC"
    stored = tensors_of(request.getfixturevalue(output))
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for name, tensor in original.items():
        module = name.removesuffix(".weight")
        scheme = wanted_scheme(module, experts) if name.endswith(".weight") else "FLOAT"
        shape = tuple(tensor.shape)
        is_f32 = name.endswith((".mlp.gate.weight", "e_score_correction_bias"))
        wanted[name] = (shape, torch.float32 if is_f32 else torch.bfloat16)
        if scheme == "FLOAT":
            continue
        wanted[f"{module}.weight_scale"] = ((shape[0], 1), torch.float32)
        wanted[f"{module}.weight_offset"] = ((shape[0], 1), torch.float32)
        wanted[name] = (shape, torch.int8)
        if scheme == "W4A8_DYNAMIC":
            wanted[name] = ((shape[0] // 2, shape[1]), torch.int8)
            columns = 16 if module.endswith("down_proj") else 1
            wanted[f"{module}.scale_bias"] = ((shape[0], columns), torch.float32)
    assert {name: (tuple(t.shape), t.dtype) for name, t in stored.items()} == wanted


def test_scales_and_biases(w4a8: Path) -> None:
    stored, described = tensors_of(w4a8), json_of(w4a8 / DESCRIPTION)
    seen = dict.fromkeys(("W8A8_DYNAMIC", "W4A8_DYNAMIC"), 0)
    for name in [n for n in stored if n.endswith(".weight_scale")]:
        module, scheme = name.removesuffix(".weight_scale"), described[name]
        seen[scheme] += 1
        assert (stored[name] > 0).all()
        assert not stored[f"{module}.weight_offset"].any()
        if scheme == "W8A8_DYNAMIC":
            assert torch.equal(stored[name], stored[name].bfloat16().float()), name
            continue
        codes = unpack_with_numpy(stored[f"{module}.weight"].numpy())
        products = codes * stored[name].numpy().astype(float)
        bias = stored[f"{module}.scale_bias"].numpy()
        sums = 8 * products.reshape(len(codes), bias.shape[1], -1).sum(-1)
        assert np.allclose(bias, sums, rtol=1e-6, atol=1e-7), module
    # 3 MoE layers of 8 experts; the MTP layer's 8 experts stay int8.
    assert seen["W4A8_DYNAMIC"] == 3 * 8 * 3
    # 5 layers of 4 linears, 4 indexers, 5 dense or shared MLPs, 8 MTP experts.
    assert seen["W8A8_DYNAMIC"] == 5 * 4 + 4 + 5 * 3 + 8 * 3


def test_bytes_on_disk_are_those_of_the_formats(w4a8: Path, w8a8: Path) -> None:
    """int4 experts take half a byte per weight; nothing is stored twice."""
    sizes = {}
    for output in (w4a8, w8a8):
        codes = [
            t for n, t in tensors_of(output).items() if re.search(r"layers\.[123]\.mlp\.experts", n)
        ]
        sizes[output] = sum(t.numel() for t in codes if t.dtype == torch.int8)
    assert sizes[w4a8] * 2 == sizes[w8a8] == 3 * 8 * 3 * 96 * 16


def test_norms_become_ones_and_copies_are_rotated(source: Path, rotated: Path) -> None:
    original, stored = tensors_of(source), tensors_of(rotated)
    r1 = rotations(Glm5Config.from_dir(source))["R1"]
    dense = r1.dense()
    embed = original["model.embed_tokens.weight"].double() @ dense
    head = original["lm_head.weight"].double()
    gamma = original["model.norm.weight"].double()
    mtp_gamma = original["model.layers.4.shared_head.norm.weight"].double()
    exact = {
        "model.embed_tokens.weight": embed,
        "model.layers.4.embed_tokens.weight": embed,
        "lm_head.weight": head * gamma @ dense,
        "model.layers.4.shared_head.head.weight": head * mtp_gamma @ dense,
        "rot.weight": dense.T @ torch.diag(gamma) @ dense,
    }
    # Float32 with at most 14 roundings on a side, each at most 2^-24 of the sum of magnitudes.
    once = 14 * 2.0**-24 * (original["lm_head.weight"].double().abs() @ dense.abs()).max()
    allowed = dict.fromkeys(exact, once + 14 * 2.0**-24 * embed.abs().max() * len(dense) ** 0.5)
    allowed["rot.weight"] = 28 * 2.0**-24 * (dense.abs().T @ torch.diag(gamma) @ dense.abs()).max()
    for name, wanted in exact.items():
        assert (stored[name].double() - wanted).abs().max() <= allowed[name], name
    norms = [n for n in original if n.endswith("norm.weight") and ".k_norm." not in n]
    assert len(norms) == 5 * 4 + 3 + 1
    assert all(torch.equal(stored[n], torch.ones_like(stored[n])) for n in norms)
    for name in original:
        if ".k_norm." in name or name.endswith("correction_bias"):
            assert torch.equal(stored[name], original[name].float()), name


def test_plain_output_equals_the_source(source: Path, tmp_path: Path) -> None:
    """`--scheme none --no-rotate` is an ordinary checkpoint with the source's values and names."""
    output = quantize(source, tmp_path / "plain", "none", rotate=False)
    original, stored = tensors_of(source), tensors_of(output)
    assert original.keys() == stored.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in original.items())
    assert all(stored[name].dtype == tensor.dtype for name, tensor in original.items())
    assert not (output / DESCRIPTION).exists()
    assert json_of(output / "config.json") == json_of(source / "config.json")


def test_unrotated_quantisation_keeps_norms_and_shares_the_vocabulary(
    source: Path, tmp_path: Path
) -> None:
    output = quantize(source, tmp_path / "out", "w4a8", rotate=False)
    original, stored = tensors_of(source), tensors_of(output)
    assert json_of(output / DESCRIPTION)["is_rot_used"] is False
    assert not (output / "rot.safetensors").exists()
    norms = [n for n in original if n.endswith("norm.weight")]
    assert all(torch.equal(stored[n], original[n]) for n in norms)
    # The engine leaves absent ones uninitialised without an error.
    copies = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}
    for copy, shared in copies.items():
        copied = stored[f"model.layers.4.{copy}.weight"]
        assert torch.equal(copied, original[f"{shared}.weight"])


def test_float32_tensors(source: Path, tmp_path: Path) -> None:
    output = quantize(source, tmp_path / "out", "w4a8", dtype="float32")
    kinds = {tensor.dtype for tensor in tensors_of(output).values()}
    assert kinds == {torch.int8, torch.float32}
    assert json_of(output / "config.json")["dtype"] == "float32"


def test_a_model_without_mtp_layer(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", mtp=False, style="5.1")
    output = quantize(source, tmp_path / "out", "w4a8")
    assert not [name for name in tensors_of(output) if name.startswith("model.layers.4.")]


def test_codes_follow_the_rotated_weight(w4a8: Path, rotated: Path) -> None:
    """Dequantised weights lie near the exact rotated ones, each scheme within its own error."""
    stored, exact = tensors_of(w4a8), tensors_of(rotated)
    described = json_of(w4a8 / DESCRIPTION)
    limits = {"W8A8_DYNAMIC": 1e-4, "W4A8_DYNAMIC": 0.02}
    checked = 0
    for name, scheme in described.items():
        if not name.endswith(".weight") or scheme == "FLOAT":
            continue
        codes = stored[name].numpy()
        if scheme == "W4A8_DYNAMIC":
            codes = unpack_with_numpy(codes)
        back = torch.from_numpy(codes.astype(float)) * stored[f"{name}_scale"].double()
        error = (back - exact[name].double()).square().sum() / exact[name].double().square().sum()
        assert error < limits[scheme], name
        checked += 1
    assert checked == 3 * 8 * 3 + 5 * 4 + 4 + 5 * 3 + 8 * 3


def test_every_tensor_is_aligned_in_its_file(w4a8: Path) -> None:
    for file in w4a8.glob("*.safetensors"):
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        sizes = {"F32": 4, "BF16": 2, "I8": 1}
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        assert all((8 + length + e["data_offsets"][0]) % sizes[e["dtype"]] == 0 for e in entries)
        ends = [e["data_offsets"] for e in entries]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
